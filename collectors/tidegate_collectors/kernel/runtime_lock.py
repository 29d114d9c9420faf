"""The lock on the runtime directory: a file that is there while one collector holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path


class RuntimeLock:
    """Held from the constructor to :meth:`release`, which removes the file, or to the end of the process.

    Raises:
        BlockingIOError: another process holds it; ``strerror`` is its number, or ``unknown``.
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        while True:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                self._take()
            except BaseException:
                os.close(self._fd)
                raise
            # Whoever held it may have removed the file after we opened it; then the lock on it keeps nobody out.
            if self._is_at_its_name():
                break
            os.close(self._fd)
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Remove the file and give the lock back."""
        with contextlib.suppress(OSError):
            if self._is_at_its_name():
                self._path.unlink()  # while we hold it: its name can be nobody else's yet
        os.close(self._fd)

    def _take(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32).decode("ascii", "replace").strip() or "unknown"
            raise BlockingIOError(errno.EAGAIN, holder) from None

    def _is_at_its_name(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.lstat())
        except FileNotFoundError:
            return False
