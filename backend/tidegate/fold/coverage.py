"""The union of intervals that arrive one by one: how long any of them lasted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from msgspec import Struct

from .packing import Beside, Part, pack, unpack

BLOCK_SPANS: Final = 256
"""Spans that one block of a snapshot holds."""

TAIL_SPANS: Final = 32
"""The newest spans are in no block: intervals that arrive late change them still."""


class WrittenSpans(Struct, array_like=True):
    """Coverage as the session's part holds it. ``blocks`` are the ordinals of the snapshots they were written with."""

    limit: int
    folded_us: int
    length_us: int
    blocks: list[int]
    starts: list[int]
    ends: list[int]


class Coverage(Beside):
    """Union of half-open intervals ``[start, end)`` in microseconds, in any order of arrival.

    Holds at most ``limit`` disjoint spans; beyond it the older half is kept as a sum only, and an interval that later
    arrives in front of it counts no more. Old spans that were read from a snapshot stay in its blocks until an interval
    reaches back to them.
    """

    __slots__ = ("_blocks", "_closed", "_ends", "_folded_us", "_length_us", "_limit", "_name", "_part", "_starts")

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = max(limit, 2)
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._folded_us = 0
        self._length_us = 0  # of all spans
        self._closed = 0  # spans in front of the lists, in blocks that were not read yet
        self._blocks: list[int] = []  # snapshots that the first blocks were written with, as they are now
        self._part: Part | None = None
        self._name = ""

    def add(self, start_us: int, end_us: int) -> None:
        """Add an interval; an empty or reversed one adds nothing."""
        if end_us <= start_us:
            return
        first = bisect_left(self._ends, start_us)
        if first == 0 and self._closed:
            self._open()
            first = bisect_left(self._ends, start_us)
        starts, ends = self._starts, self._ends
        last = bisect_right(starts, end_us)
        if first < last:
            start_us = min(start_us, starts[first])
            end_us = max(end_us, ends[last - 1])
            self._length_us -= sum(ends[first:last]) - sum(starts[first:last])
        self._length_us += end_us - start_us
        starts[first:last] = [start_us]
        ends[first:last] = [end_us]
        del self._blocks[(self._closed + first) // BLOCK_SPANS :]
        if self._closed + len(starts) > self._limit:
            self._fold_older_half()

    def total_us(self) -> int:
        """Length of the union."""
        return self._folded_us + self._length_us

    def total_with_us(self, start_us: int, end_us: int) -> int:
        """Length of the union with one further interval, which is not added."""
        if end_us <= start_us:
            return self.total_us()
        if self._closed and not (self._ends and self._ends[0] <= start_us):
            self._open()
        inside = 0
        index = len(self._starts) - 1
        while index >= 0 and self._ends[index] > start_us:
            inside += max(0, min(self._ends[index], end_us) - max(self._starts[index], start_us))
            index -= 1
        return self.total_us() + (end_us - start_us) - inside

    def spans(self) -> list[tuple[int, int]]:
        """The disjoint spans that are kept, in order of time."""
        self._open()
        return list(zip(self._starts, self._ends, strict=True))

    def _fold_older_half(self) -> None:
        self._open()
        half = len(self._starts) // 2
        folded = sum(self._ends[:half]) - sum(self._starts[:half])
        self._folded_us += folded
        self._length_us -= folded
        del self._starts[:half], self._ends[:half]
        self._blocks.clear()

    # --- snapshots -----------------------------------------------------------------------------------------------

    def attach(self, written: WrittenSpans, name: str, part: Part) -> None:
        """Become what was written; blocks are read from part ``name`` + their number."""
        self._limit, self._folded_us, self._length_us = written.limit, written.folded_us, written.length_us
        self._starts, self._ends, self._blocks = written.starts, written.ends, written.blocks
        self._closed = len(written.blocks) * BLOCK_SPANS
        self._name, self._part = name, part

    def closed(self) -> list[tuple[str, int]]:
        """Parts that may still be asked for, and the ordinals they were written with."""
        return [(f"{self._name}{number}", ord_) for number, ord_ in enumerate(self._blocks)] if self._closed else []

    def write(self, name: str, ord_: int) -> dict[str, bytes]:
        """The blocks that are complete and not as they were last written, as parts; they count as written then."""
        parts: dict[str, bytes] = {}
        while (start := len(self._blocks) * BLOCK_SPANS - self._closed) + BLOCK_SPANS + TAIL_SPANS <= len(self._starts):
            block = slice(start, start + BLOCK_SPANS)
            parts[f"{name}{len(self._blocks)}"] = pack((self._starts[block], self._ends[block]))
            self._blocks.append(ord_)
        return parts

    def written(self) -> WrittenSpans:
        """What the session's own part says: all that is in no block."""
        start = len(self._blocks) * BLOCK_SPANS - self._closed
        return WrittenSpans(
            self._limit, self._folded_us, self._length_us, self._blocks, self._starts[start:], self._ends[start:]
        )

    def forget_written(self) -> None:
        """Take all blocks as not written."""
        self._open()
        self._blocks.clear()

    def _open(self) -> None:
        """Read the blocks that were not read yet."""
        if not self._closed:
            return
        if self._part is None:
            raise RuntimeError("these spans were read from a snapshot whose parts nobody gave")
        starts: list[int] = []
        ends: list[int] = []
        for number in range(self._closed // BLOCK_SPANS):
            block: tuple[list[int], list[int]] = unpack(
                self._part(f"{self._name}{number}", self._blocks[number]), tuple[list[int], list[int]]
            )
            starts += block[0]
            ends += block[1]
        self._starts, self._ends = starts + self._starts, ends + self._ends
        self._closed = 0
