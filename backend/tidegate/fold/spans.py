"""Intervals that arrive one by one: the union of their time, and lanes in which overlapping ones do not touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Coverage:
    """Union of half-open intervals ``[start, end)`` in microseconds, in any order of arrival.

    Holds at most ``limit`` disjoint spans; beyond it the older half is kept as a sum only, and an interval that later
    arrives in front of it counts no more.
    """

    __slots__ = ("_ends", "_folded_us", "_limit", "_starts")

    def __init__(self, limit: int = 10_000) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._folded_us = 0
        self._limit = max(limit, 2)

    def add(self, start_us: int, end_us: int) -> None:
        """Add an interval; an empty or reversed one adds nothing."""
        if end_us <= start_us:
            return
        starts, ends = self._starts, self._ends
        first = bisect_left(ends, start_us)
        last = bisect_right(starts, end_us)
        if first < last:
            start_us = min(start_us, starts[first])
            end_us = max(end_us, ends[last - 1])
        starts[first:last] = [start_us]
        ends[first:last] = [end_us]
        if len(starts) > self._limit:
            self._fold_older_half()

    def total_us(self) -> int:
        """Length of the union."""
        return self._folded_us + sum(self._ends) - sum(self._starts)

    def total_with_us(self, start_us: int, end_us: int) -> int:
        """Length of the union with one further interval, which is not added."""
        if end_us <= start_us:
            return self.total_us()
        inside = 0
        index = len(self._starts) - 1
        while index >= 0 and self._ends[index] > start_us:
            inside += max(0, min(self._ends[index], end_us) - max(self._starts[index], start_us))
            index -= 1
        return self.total_us() + (end_us - start_us) - inside

    def spans(self) -> list[tuple[int, int]]:
        """The disjoint spans that are kept, in order of time."""
        return list(zip(self._starts, self._ends, strict=True))

    def _fold_older_half(self) -> None:
        half = len(self._starts) // 2
        self._folded_us += sum(self._ends[:half]) - sum(self._starts[:half])
        del self._starts[:half], self._ends[:half]


class Lanes:
    """Gives each interval the lowest lane that is free at its start, before its end is known.

    A lane never changes once given, so that a call does not jump while it is drawn. With more than ``limit``
    intervals at once the last lane is shared.
    """

    __slots__ = ("_free_from", "_limit")

    def __init__(self, limit: int = 256) -> None:
        self._free_from: list[int | None] = []
        self._limit = max(limit, 1)

    def take(self, start_us: int) -> int:
        """Occupy a lane (from 0) from ``start_us`` on."""
        for lane, free_from in enumerate(self._free_from):
            if free_from is not None and free_from <= start_us:
                self._free_from[lane] = None
                return lane
        if len(self._free_from) < self._limit:
            self._free_from.append(None)
        return len(self._free_from) - 1

    def release(self, lane: int, end_us: int) -> None:
        """Free a lane from ``end_us`` on."""
        self._free_from[lane] = end_us
