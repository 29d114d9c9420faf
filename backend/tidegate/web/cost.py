"""What the backend itself takes of the host."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")


class OwnCost:
    """CPU time since the last reading and resident memory of this process."""

    def __init__(self) -> None:
        self._time = time.monotonic()
        self._cpu = time.process_time()
        self._ratio = 0.0

    def read(self) -> dict[str, float | int | None]:
        """``cpu_ratio`` of one core since the last reading, at least a second ago; ``rss_bytes``."""
        now = time.monotonic()
        if now - self._time >= 1.0:
            cpu = time.process_time()
            self._ratio = (cpu - self._cpu) / (now - self._time)
            self._time, self._cpu = now, cpu
        return {"cpu_ratio": self._ratio, "rss_bytes": _rss_bytes()}


def _rss_bytes() -> int | None:
    try:
        return int(_STATM.read_text("ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
