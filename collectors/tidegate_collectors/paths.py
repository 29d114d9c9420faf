"""Where Tidegate's processes find each other: directories and sockets, all of them overridable by environment.

``TIDEGATE_RUNTIME_DIR`` and ``TIDEGATE_STATE_DIR`` win over everything else, so that tests and second instances keep
to themselves.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

RUNTIME_ENV = "TIDEGATE_RUNTIME_DIR"
STATE_ENV = "TIDEGATE_STATE_DIR"
AGENT_SOCKET_ENV = "TIDEGATE_AGENT_SOCKET"


def runtime_dir() -> Path:
    """Directory of sockets and locks; it is not created here.

    ``/run/tidegate`` for root, else below ``$XDG_RUNTIME_DIR``, else ``/tmp/tidegate-<uid>``.
    """
    if given := os.environ.get(RUNTIME_ENV):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/run/tidegate")
    if base := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(base) / "tidegate"
    return Path(f"/tmp/tidegate-{os.geteuid()}")  # noqa: S108 - last resort; its owner is checked before use


def state_dir() -> Path:
    """Directory of what outlives a reboot; it is not created here."""
    if given := os.environ.get(STATE_ENV):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/tidegate")
    return Path.home() / ".local" / "share" / "tidegate"


def programs_dir() -> Path:
    """Directory of programs for the kernel that were compiled here; it is not created here. See :func:`own_dir`.

    Below ``TIDEGATE_STATE_DIR``, else ``/var/cache/tidegate`` for root, whose state directory is the web process's too,
    else ``~/.cache/tidegate``.
    """
    if given := os.environ.get(STATE_ENV):
        return Path(given) / "bpf"
    if os.geteuid() == 0:
        return Path("/var/cache/tidegate")
    return Path.home() / ".cache" / "tidegate"


def link_socket() -> Path:
    """Socket of the backend, where collectors connect."""
    return runtime_dir() / "link.sock"


def agent_socket() -> Path:
    """Socket of the kernel collector, where ``tidegate run`` and ``tidegate exec`` connect.

    ``TIDEGATE_AGENT_SOCKET``, set for everything that runs inside a session, wins. A user who starts an agent under a
    collector of root finds root's socket when there is none of their own.
    """
    if given := os.environ.get(AGENT_SOCKET_ENV):
        return Path(given)
    own = runtime_dir() / "agent.sock"
    system = Path("/run/tidegate/agent.sock")
    if RUNTIME_ENV not in os.environ and not own.exists() and system.exists():
        return system
    return own


def make_private_dir(path: Path, mode: int = 0o755, owners: frozenset[int] = frozenset()) -> Path:
    """Create a directory of ours, or accept one that belongs to us, to root or to one of ``owners`` (user ids).

    Raises:
        PermissionError: it belongs to another user or others may write to it, so a socket in it could be swapped.
    """
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid not in owners | {0, os.geteuid()}:
        raise PermissionError(f"{path} belongs to uid {status.st_uid}, not to uid {os.geteuid()}; set {RUNTIME_ENV}")
    if status.st_mode & 0o022:
        raise PermissionError(f"{path} can be written by others; run: chmod go-w {path}")
    return path


def own_dir(path: Path) -> Path:
    """Create a directory (0700) for what the kernel is given, or accept ours; its real path. Its parent must exist.

    More than :func:`make_private_dir` asks: whoever may write to a directory above it could put another in its place.

    Raises:
        PermissionError: somebody but us and root could.
        OSError: it cannot be created.
    """
    real = settled_dir(path.parent) / path.name
    real.mkdir(mode=0o700, exist_ok=True)
    status = real.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid()) or _others_may_write(status):
        raise PermissionError(f"{real} is no directory, belongs to uid {status.st_uid}, or others may write to it")
    return real


def settled_dir(path: Path) -> Path:
    """The real path of a directory in which nobody but us and root can exchange what we make.

    Raises:
        PermissionError: somebody can; the message says where.
        OSError: it does not exist.
    """
    real = path.resolve(strict=True)
    for place in (real, *real.parents):
        status = place.stat()
        if status.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"{place} belongs to uid {status.st_uid}, who could exchange what lies in it")
        if _others_may_write(status) and not status.st_mode & stat.S_ISVTX:
            raise PermissionError(f"others may exchange what lies in {place}; run: chmod go-w {place}")
    return real


def _others_may_write(status: os.stat_result) -> bool:
    # Where each user has a group of their own, it may write to their directories.
    return bool(status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid()))
