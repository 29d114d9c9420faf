"""How ``tidegate run`` finds the gateway of this machine: a file in the runtime directory. Standard library only.

The file says where it listens. An agent is sent there with its API keys, so the file alone is not believed: it must
belong to root or to the user who asks, nobody else may be able to write it, and whoever listens at that port must be
the file's owner, as the kernel says. A file that a killed gateway left behind therefore means nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from tidegate_collectors import paths

NAME: Final = "gateway.json"
_MAX_BYTES: Final = 4096
_LISTEN: Final = "0A"


class Running(NamedTuple):  # a dataclass would load `inspect`, which every agent would wait for
    """A gateway that runs: ``url`` of it and of its ``upstream``, without a slash at the end."""

    url: str
    upstream: str


def gateway_file() -> Path:
    """The file of this user's gateway, or root's where this user has none."""
    own = paths.runtime_dir() / NAME
    system = Path("/run/tidegate") / NAME
    if paths.RUNTIME_ENV not in os.environ and not own.exists() and system.exists():
        return system
    return own


def write(path: Path, url: str, port: int, upstream: str) -> None:
    """Say where this process listens. Raises ``OSError``."""
    text = json.dumps({"pid": os.getpid(), "port": port, "url": url, "upstream": upstream})
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    temporary.replace(path)


def remove(path: Path) -> None:
    """Take the file away, unless it is another process's by now."""
    with contextlib.suppress(OSError, ValueError):
        if json.loads(path.read_bytes()).get("pid") == os.getpid():
            path.unlink()


def running(path: Path | None = None) -> Running | None:
    """The gateway that runs on this machine; None when there is none that can be trusted."""
    try:
        descriptor = os.open(path or gateway_file(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            text = os.read(descriptor, _MAX_BYTES)
        finally:
            os.close(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o022 or status.st_uid not in (0, os.geteuid()):
            return None
        said = json.loads(text)
        url, upstream, port = said["url"], said["upstream"], said["port"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not (isinstance(url, str) and isinstance(upstream, str) and isinstance(port, int)):
        return None
    return Running(url, upstream) if status.st_uid in listeners(port) else None


def listeners(port: int) -> set[int]:
    """Users who listen at a TCP port of this machine (``proc_net_tcp``: column 2 address, 4 state, 8 user)."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                found.add(int(words[7]))
    return found
