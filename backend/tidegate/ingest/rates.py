"""Small figures about the ingest itself, for the Health page."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

_KEEP: Final = 512
_WINDOW_S: Final = 10.0


class Rates:
    """Records a second over the last ten seconds, and how long commits take."""

    def __init__(self) -> None:
        self.records = 0
        self.batches = 0
        self._commits: deque[float] = deque(maxlen=_KEEP)
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_records = 0
        self._started = time.monotonic()

    def add(self, records: int, commit_s: float) -> None:
        """Count one committed batch."""
        self.records += records
        self.batches += 1
        self._commits.append(commit_s)
        self._recent.append((time.monotonic(), records))
        self._recent_records += records
        self._trim()

    def records_per_s(self) -> float:
        """Mean over the last ten seconds, or since the start when that is shorter."""
        self._trim()
        span = min(_WINDOW_S, max(1.0, time.monotonic() - self._started))
        return self._recent_records / span

    def commit_ms(self, quantile: float) -> float | None:
        """A quantile (0..1) of the last commits in milliseconds; None before the first."""
        if not self._commits:
            return None
        ordered = sorted(self._commits)
        return 1000 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]

    def _trim(self) -> None:
        before = time.monotonic() - _WINDOW_S
        while self._recent and self._recent[0][0] < before:
            self._recent_records -= self._recent.popleft()[1]
