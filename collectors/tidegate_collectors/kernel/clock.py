"""From the kernel's monotonic clock, in which programs stamp their events, to UTC.

The offset is measured by reading the monotonic clock before and after the wall clock; the tightest of a few brackets
wins, and its half width is the error. It is measured again about every second, as the wall clock is slewed by NTP and
may be set by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_TRIES = 5
_REMEASURE_NS = 1_000_000_000
STEP_US = 10_000
"""A change of the offset beyond this, and beyond what slewing can do since the last time, is a step."""
_MAX_SLEW_PPM = 500


def now_us() -> int:
    """Microseconds UTC."""
    return time.time_ns() // 1000


class Clock:
    """Converts nanoseconds of CLOCK_MONOTONIC to microseconds UTC.

    Args:
        monotonic_ns, wall_ns: the two clocks; others are given by tests only.
    """

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self.steps = 0
        """Times that the wall clock was set since the start."""
        self.last_step_us = 0
        """By how much at the last time; positive when it was put forward."""
        self.offset_ns, self.error_ns = self._measure()
        self._measured_ns = monotonic_ns()

    def _measure(self) -> tuple[int, int]:
        best_width, best_offset = 1 << 62, 0
        for _ in range(_TRIES):
            before = self._monotonic_ns()
            wall = self._wall_ns()
            after = self._monotonic_ns()
            if after - before < best_width:
                best_width, best_offset = after - before, wall - (before + after) // 2
        return best_offset, best_width // 2

    def remeasure(self) -> bool:
        """Measure now; whether the wall clock was stepped since the last time."""
        old, measured_ns = self.offset_ns, self._measured_ns
        self.offset_ns, self.error_ns = self._measure()
        self._measured_ns = self._monotonic_ns()
        change_us = (self.offset_ns - old) // 1000
        if abs(change_us) < STEP_US + (self._measured_ns - measured_ns) * _MAX_SLEW_PPM // 1_000_000_000:
            return False
        self.steps += 1
        self.last_step_us = change_us
        return True

    def refresh(self) -> bool:
        """Measure if the last time is more than a second ago; whether the wall clock was stepped."""
        if self._monotonic_ns() - self._measured_ns < _REMEASURE_NS:
            return False
        return self.remeasure()

    def utc_us(self, monotonic_ns: int) -> int:
        """Microseconds UTC of a monotonic time."""
        return (monotonic_ns + self.offset_ns) // 1000
