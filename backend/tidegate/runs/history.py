"""A run at any instant: the state is read from the newest snapshot before it and folded on from there.

A position is an instant, microseconds UTC. What it shows are the records of the longest prefix of the run of which none
is later: the records in the order they came, up to the first that lies in its future.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from tidegate.fold import State, apply
from tidegate.runs.index import ChunkIndex
from tidegate.store import AnyLine, EventRow, Run, Store, snapshots
from tidegate.store.marks import TYPE_OF_KIND
from tidegate.store.rows import decode_stored
from tidegate.store.schema import IS_OOM, MARKED, MAYBE_OOM

SLICE: Final = 512
"""Records folded before the event loop gets a turn: a few milliseconds."""

LOOKED_AT_S: Final = 600.0
"""How long somebody is taken to look at a run after something of it was asked for, seconds."""

KINDS: Final = frozenset(TYPE_OF_KIND) - {"loss"}
"""Kinds of events that one can step to."""


class History:
    """One run at any instant. Every state it gives is the caller's own.

    Args:
        store: holds the run.
        run: the run; one that is being written grows while it is looked at.
    """

    def __init__(self, store: Store, run: Run) -> None:
        self.store: Final = store
        self.run: Final = run
        self._index = ChunkIndex(store, run)
        self._asked_s: float | None = None

    @property
    def looked_at(self) -> bool:
        """Whether somebody looks at the run, as far as one can tell."""
        return self._asked_s is not None and time.monotonic() - self._asked_s < LOOKED_AT_S

    def touch(self) -> None:
        """Somebody looks at the run."""
        self._asked_s = time.monotonic()

    async def extent(self) -> tuple[int, int]:
        """The first and the last instant. Raises StoreError."""
        self.touch()
        if self.run.last_ord == 0:
            return self.run.started_us, self.run.started_us
        return await self._index.at_of(1), await self._index.end_us()

    async def ord_at(self, at_us: int) -> int:
        """Ordinal of the last record that is shown at an instant, 0 when there is none yet. Raises StoreError."""
        self.touch()
        return await self._index.ord_at(at_us)

    async def at_of(self, ord_: int) -> int:
        """The first instant at which the record of that ordinal is shown. Raises StoreError."""
        return await self._index.at_of(ord_)

    async def state_at(self, at_us: int, *, track: bool = False) -> State:
        """The state at an instant.

        Args:
            at_us: the instant.
            track: whether :meth:`~tidegate.fold.State.changes` is wanted from there on.

        Raises:
            StoreError: the run cannot be read.
        """
        ord_ = await self.ord_at(at_us)
        state = State(track=False)
        await snapshots.load(self.store, self.run, state, to_ord=ord_)
        async for records in self.records(state.ord + 1, ord_):
            for ordinal, record in records:
                apply(state, ordinal, record)
            await asyncio.sleep(0)
        if track:
            state.follow()
        return state

    async def records(self, from_ord: int, to_ord: int) -> AsyncIterator[list[tuple[int, AnyLine]]]:
        """The records of these ordinals, at most :data:`SLICE` at a time. Raises StoreError."""
        async for first_ord, lines in self._index.lines(from_ord, to_ord):
            for start in range(0, len(lines), SLICE):
                yield [
                    (ordinal, decode_stored(line))
                    for ordinal, line in enumerate(lines[start : start + SLICE], first_ord + start)
                ]

    async def step(
        self, at_us: int, *, forward: bool, kinds: frozenset[str] = KINDS, session: str | None = None
    ) -> EventRow | None:
        """The next event that is not shown yet at an instant, or the last one that was shown before it.

        Events that are first shown at one instant (:meth:`at_of`) count as one: a step goes to that instant.

        Args:
            at_us: the instant.
            forward: to the next one, not the previous.
            kinds: some of :data:`KINDS`; others are passed over.
            session: only events of that session.

        Raises:
            StoreError: the run cannot be read.
        """
        # All records up to ord_at are shown at at_us; a previous event must not be shown at at_us for the first time.
        bound = await self.ord_at(at_us if forward else at_us - 1)
        ends = [ord_ for kind in kinds & KINDS if (ord_ := await self._end(kind, bound, forward, session)) is not None]
        if not ends:
            return None
        nearest = min(ends) if forward else max(ends)
        (event,) = await self.store.reads.events(self.run.id, before_ord=nearest + 1, limit=1)
        return event

    async def _end(self, kind: str, bound: int, forward: bool, session: str | None) -> int | None:
        """Ordinal of the first event of a kind after ``bound``, or of the last one up to it."""
        # A partial index is used only where its own condition stands in the query.
        chosen = f"{MAYBE_OOM} AND {IS_OOM}" if kind == "oom" else f"type = '{TYPE_OF_KIND[kind]}' AND {MARKED}"
        index = "events_session" if session is not None else "events_oom" if kind == "oom" else "events_marks"
        sql = (
            f"SELECT ord FROM events INDEXED BY {index} WHERE run = ? AND {chosen}"  # noqa: S608 - constants of our own
            f" AND ord {'>' if forward else '<='} ?{'' if session is None else ' AND session = ?'}"
            f" ORDER BY ord {'ASC' if forward else 'DESC'} LIMIT 1"
        )
        parameters = (await self.store.reads.number_of(self.run.id), bound, *(() if session is None else (session,)))
        found = await self.store.reads.driver_all(sql, parameters)
        return found[0][0] if found else None
