"""Numbers of calls that outlive the collector: a session id that comes again goes on counting where it stopped.

Numbers are reserved in blocks before they are used, so a collector that is killed can skip numbers but not repeat them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path

from tidegate_collectors.names import check_id

log = logging.getLogger(__name__)

BLOCK = 64
MAX_FILES = 4096


class CallLedger:
    """One small file a session id, holding the first number that was never reserved."""

    def __init__(self, directory: Path) -> None:
        """The directory is made when it is missing.

        Raises:
            OSError: it cannot be made, or is a link or another user's. The runtime directory may belong to the
                backend's user, who could otherwise have root write wherever the link leads.
        """
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(directory, flags)
        if os.fstat(self._fd).st_uid not in (0, os.geteuid()):
            os.close(self._fd)
            raise PermissionError(errno.EPERM, f"{directory} belongs to another user; remove it")
        self._failed = False
        self._begun = 0
        self._reserved: dict[str, int] = {}
        self._forget_oldest()

    def begin(self, session: str) -> int:
        """First number for the calls of a session that begins now."""
        self._begun += 1
        if self._begun % MAX_FILES == 0:
            self._forget_oldest()  # ids are cheap to make up
        first = self._read(session)
        self._reserved[session] = first
        self.ensure(session, first)
        return first

    def ensure(self, session: str, next_call: int) -> None:
        """See to it that ``next_call`` and some after it are reserved."""
        if next_call + BLOCK // 4 > self._reserved.get(session, 0):
            self._reserved[session] = next_call + BLOCK
            self._write(session, self._reserved[session])

    def finish(self, session: str, next_call: int) -> None:
        """Give back what was reserved and not used."""
        if self._reserved.pop(session, None) is not None:
            self._write(session, next_call)

    def close(self) -> None:
        """Close the directory; again is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, session: str) -> int:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(check_id("session", session), flags, dir_fd=self._fd)
        except OSError:
            return 1
        try:
            text = os.read(descriptor, 32).strip()
        except OSError:
            return 1
        finally:
            os.close(descriptor)
        return max(int(text), 1) if text.isdigit() else 1

    def _write(self, session: str, number: int) -> None:
        """A full disk costs the numbers after a restart, not the observation."""
        # Names of sessions never begin with "+", so the temporary file meets no session.
        temporary = f"+{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o644, dir_fd=self._fd)
            try:
                os.write(descriptor, str(number).encode())
            finally:
                os.close(descriptor)
            os.replace(temporary, check_id("session", session), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as error:
            if not self._failed:
                log.warning("numbers of calls are not kept over a restart: %s", error)
            self._failed = True

    def _forget_oldest(self) -> None:
        with os.scandir(self._fd) as entries:
            ages = sorted((entry.stat(follow_symlinks=False).st_mtime, entry.name) for entry in entries)
        for _, name in ages[: max(len(ages) - MAX_FILES, 0)]:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._fd)
