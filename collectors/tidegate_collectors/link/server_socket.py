"""Making the unix socket that others connect to: its directory, its mode, and what an earlier process left."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path


def make_runtime_dir(path: Path) -> None:
    """Create the directory of the sockets, which only its owner can write.

    Everybody may pass through it (mode 0755), because the agents of any user look for the collector's socket there;
    each socket has its own mode. An existing directory is left as it is, unless others could replace sockets in it.

    Raises:
        OSError: it cannot be made, or others than its owner and its group may write in it.
    """
    try:
        path.mkdir(mode=0o755, parents=True)
    except FileExistsError:
        status = path.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(f"{path} is not a directory") from None
        if status.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"{path} belongs to user {status.st_uid}, who could replace the socket") from None
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise PermissionError(f"everybody may write in {path}, and could replace the socket") from None


def listen_unix(path: Path, *, gid: int | None = None, mode: int = 0o660) -> socket.socket:
    """A non-blocking listening unix stream socket at ``path``.

    A socket left by a process that is gone is replaced; one that somebody listens on is not.

    Raises:
        FileExistsError: somebody listens there, or the path is something else than a socket.
        OSError: the socket cannot be made, for example because the path is longer than 107 bytes.
    """
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        # The mode must be right from the first moment: a chmod after bind leaves a window.
        previous = os.umask(0o777 & ~mode)
        try:
            sock.bind(str(path))
        finally:
            os.umask(previous)
        if gid is not None:
            os.chown(path, -1, gid)
        sock.listen(64)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(f"{path} exists and is not a socket; remove it or choose another runtime directory")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass
    raise FileExistsError(f"another process already listens on {path}")
