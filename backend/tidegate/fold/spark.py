"""The sparkline of a session: its last two minutes in a bounded ring that keeps the extremes."""

from __future__ import annotations

from collections import deque

SparkPoint = tuple[int, int, int]
"""t_us, runtime_bytes, calls_bytes."""


class Spark:
    """At most ``points`` points over ``length_us``; of the samples in one slot the one with the most memory stays.

    The newest point is always the highest of its slot too: for the value of this moment read the session itself.
    """

    __slots__ = ("_length_us", "_points", "_ring", "_slot_us")

    def __init__(self, length_us: int = 120_000_000, points: int = 240) -> None:
        self._points = max(points, 1)
        self._length_us = max(length_us, 1)
        # One slot more than fits would be cut in half by the moving edge, so a slot is a little longer than needed.
        self._slot_us = max(1, -(-self._length_us // max(self._points - 1, 1)))
        self._ring: deque[SparkPoint] = deque(maxlen=self._points)

    def add(self, t_us: int, runtime_bytes: int, calls_bytes: int) -> None:
        """Add a sample; one that is older than the newest slot is left out."""
        ring = self._ring
        if not ring:
            ring.append((t_us, runtime_bytes, calls_bytes))
            return
        last_t, last_runtime, last_calls = ring[-1]
        slot, last_slot = t_us // self._slot_us, last_t // self._slot_us
        if slot > last_slot:
            oldest = t_us - self._length_us
            while ring and ring[0][0] < oldest:
                ring.popleft()
            ring.append((t_us, runtime_bytes, calls_bytes))
        elif slot == last_slot and runtime_bytes + calls_bytes > last_runtime + last_calls:
            ring[-1] = (t_us, runtime_bytes, calls_bytes)

    @property
    def limit(self) -> int:
        """Most points it holds."""
        return self._points

    def points(self) -> list[SparkPoint]:
        """The points in order of time."""
        return list(self._ring)
