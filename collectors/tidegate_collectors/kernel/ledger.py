"""Numbers of calls that outlive the collector: a session id that comes again goes on counting where it stopped.

Numbers are reserved in blocks before they are used, so a collector that is killed can skip numbers but not repeat them.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidegate_collectors.names import check_id

BLOCK = 64
MAX_FILES = 4096


class CallLedger:
    """One small file a session id, holding the first number that was never reserved."""

    def __init__(self, directory: Path) -> None:
        """The directory is made when it is missing."""
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._directory = directory
        self._reserved: dict[str, int] = {}
        self._forget_oldest()

    def begin(self, session: str) -> int:
        """First number for the calls of a session that begins now."""
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

    def _path(self, session: str) -> Path:
        return self._directory / check_id("session", session)

    def _read(self, session: str) -> int:
        try:
            text = self._path(session).read_text().strip()
        except OSError:
            return 1
        return max(int(text), 1) if text.isdigit() else 1

    def _write(self, session: str, number: int) -> None:
        # Names of sessions never begin with "+", so the temporary file meets no session.
        temporary = self._directory / f"+{os.getpid()}"
        temporary.write_text(str(number))
        temporary.replace(self._path(session))

    def _forget_oldest(self) -> None:
        files = sorted(self._directory.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in files[: max(len(files) - MAX_FILES, 0)]:
            path.unlink(missing_ok=True)
