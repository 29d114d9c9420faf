"""Where in a run which instant is: the chunks of its log, each with the greatest time that there was by its end."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator
from itertools import accumulate
from typing import Final

import msgspec

from tidegate.errors import StoreError
from tidegate.store import Run, Store
from tidegate.store.chunks import unpack

_HEADS: Final = "SELECT no, first_ord, n, last_t FROM chunks WHERE run = ? AND no >= ? ORDER BY no"
_CHUNK: Final = "SELECT first_ord, codec, data FROM chunks WHERE run = ? AND no = ?"


class _Time(msgspec.Struct):
    t: int = 0


_time: Final = msgspec.json.Decoder(_Time)


class ChunkIndex:
    """Finds chunks by ordinal and by time. All methods may raise StoreError."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run
        self._nos: list[int] = []
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._tops: list[int] = []  # greatest time up to the end of the chunk
        self._refreshing = asyncio.Lock()
        self._times: tuple[int, int, list[int]] = (-1, 0, [])  # chunk, records, greatest time up to each of them
        self._last: tuple[int, int, list[bytes]] = (-1, 0, [])  # chunk, its first ordinal, lines

    async def end_us(self) -> int:
        """The greatest time; the start of the run while there is no record."""
        await self._refresh()
        return self._tops[-1] if self._tops else self._run.started_us

    async def ord_at(self, at_us: int) -> int:
        """Ordinal of the last record before the first that is later than ``at_us``; 0 when that is the first one."""
        await self._refresh()
        at = bisect_right(self._tops, at_us)
        if at == len(self._tops):
            return self._ends[-1] if self._ends else 0
        return self._firsts[at] - 1 + bisect_right(await self._times_of(at), at_us)

    async def at_of(self, ord_: int) -> int:
        """The greatest time up to a record; up to the last record for an ordinal that there is not."""
        await self._refresh()
        at = bisect_right(self._firsts, ord_) - 1
        if at < 0:
            return self._run.started_us
        return self._tops[at] if ord_ >= self._ends[at] else (await self._times_of(at))[ord_ - self._firsts[at]]

    async def lines(self, from_ord: int, to_ord: int) -> AsyncIterator[tuple[int, list[bytes]]]:
        """The lines of these ordinals by chunk: (ordinal of the first, lines)."""
        await self._refresh()
        at = max(0, bisect_right(self._firsts, from_ord) - 1)
        while at < len(self._firsts) and self._firsts[at] <= to_ord:
            first, lines = await self._read(at)
            start = max(from_ord, first)
            part = lines[start - first : to_ord + 1 - first]
            if part:
                yield start, part
            at += 1

    async def _times_of(self, at: int) -> list[int]:
        count = self._ends[at] + 1 - self._firsts[at]
        if self._times[:2] != (at, count):
            floor = self._tops[at - 1] if at else 0
            _, lines = await self._read(at)
            self._times = (at, count, list(accumulate(map(_time_of, lines[:count]), max, initial=floor))[1:])
        return self._times[2]

    async def _read(self, at: int) -> tuple[int, list[bytes]]:
        chunk, count = self._nos[at], self._ends[at] + 1 - self._firsts[at]
        if self._last[0] == chunk and len(self._last[2]) >= count:
            return self._last[1:]  # a seek needs the chunk of its instant twice, and so do the next ones near it
        no = await self._store.reads.number_of(self._run.id)
        found = await self._store.reads.driver_all(_CHUNK, (no, chunk))
        try:
            if not found:
                raise ValueError("it is not there any more")
            ((first, codec, data),) = found
            lines = unpack(codec, data)
        except ValueError as error:
            raise StoreError(f"{self._store.path}: run {self._run.id}, chunk {chunk}: {error}") from None
        self._last = (chunk, first, lines)
        return first, lines

    async def _refresh(self) -> None:
        """Learn of chunks that were written since, and of the growth of the last one."""
        async with self._refreshing:  # so that what is known only ever grows
            if self._ends and self._ends[-1] >= self._run.last_ord:
                return
            no = await self._store.reads.number_of(self._run.id)
            heads = await self._store.reads.driver_all(_HEADS, (no, self._nos[-1] if self._nos else 0))
            for chunk, first, count, last_t in heads:
                if self._nos and self._nos[-1] == chunk:  # it was the last one, and may have grown
                    for column in (self._nos, self._firsts, self._ends, self._tops):
                        column.pop()
                self._nos.append(chunk)
                self._firsts.append(first)
                self._ends.append(first + count - 1)
                self._tops.append(max(last_t, self._tops[-1] if self._tops else 0))


def _time_of(line: bytes) -> int:
    try:
        return _time.decode(line).t
    except msgspec.MsgspecError:
        return 0
