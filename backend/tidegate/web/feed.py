"""From committed batches to the state that pages show: every record once, in the order of its ordinal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final

from tidegate.errors import StoreError
from tidegate.fold import State, apply
from tidegate.store import AnyLine, CommittedBatch, Run, Store, snapshots
from tidegate_collectors.records import CallEnd, CallStart, MemBurst, MemEvent, SessionEnd, SessionStart

log: Final = logging.getLogger(__name__)

URGENT: Final = frozenset({CallStart, CallEnd, MemBurst, MemEvent, SessionStart, SessionEnd})
"""Records that are sent to the browser without waiting for the tick."""

SLICE: Final = 512
"""Records folded before the event loop gets a turn: about 2 ms."""

MAX_WAITING: Final = 8
"""Batches that may wait for the fold; with more, ingest itself waits, so that a flood cannot fill the memory."""


MAX_HELD: Final = 1 << 16
"""Records that are kept while the past is folded; those before them are read from the store with the past."""

RETRY_S: Final = 30.0
"""Time between attempts while snapshots cannot be written, seconds."""


class _Keeper:
    """Saves snapshots of the state beside the fold, which never waits for it and never fails by it."""

    def __init__(self, store: Store, run: Run, state: State, every: int) -> None:
        self._store = store
        self._state = state
        self._writer = snapshots.SnapshotWriter(run.no, every)
        self._saving: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._troubled = False

    def look(self) -> None:
        """Take a snapshot when it is time; called between two records."""
        if self._saving is not None and not self._saving.done():
            return
        if self._writer.due(self._state) and time.monotonic() >= self._not_before:
            self._begin()

    async def close(self) -> None:
        """Take the last one."""
        if self._saving is not None:
            await self._saving
        if self._state.ord > self._state.saved.ord:
            await self._begin()

    def _begin(self) -> asyncio.Task[None]:
        self._saving = asyncio.create_task(self._save(), name="tidegate-snapshot")
        return self._saving

    async def _save(self) -> None:
        try:
            # The state is read before anything is awaited; all the rest works on what was read.
            dump = self._writer.dump(self._state)
            await snapshots.save(self._store, await asyncio.to_thread(self._writer.pack, dump))
        except Exception as error:
            self._writer.failed(self._state)
            self._not_before = time.monotonic() + RETRY_S
            if not isinstance(error, StoreError):
                log.exception("a snapshot of the state could not be made")
            elif not self._troubled:
                log.warning("snapshots of the state are not saved for now: %s", error)
            self._troubled = True
        else:
            self._troubled = False


class Feed:
    """Folds batches into a state, in slices between which others get their turn.

    Args:
        state: what is folded into.
        on_change: called after each slice; the argument says whether it held a record of :data:`URGENT`.

    Attributes:
        loaded: set when the records from before the start are folded; until then the state is of the past.
    """

    def __init__(self, state: State, on_change: Callable[[bool], None]) -> None:
        self.state = state
        self.loaded = asyncio.Event()
        self._on_change = on_change
        self._waiting: deque[CommittedBatch] = deque()
        self._held = 0
        self._task: asyncio.Task[None] | None = None
        self._keeper: _Keeper | None = None

    async def keep(self, store: Store, run: Run, every: int = snapshots.EVERY) -> None:
        """Begin with the newest snapshot of the run, and save one each so many records from there on.

        To be called before :meth:`load`, with a store that is open for writing, which stays open until :meth:`close`.

        Raises:
            StoreError: the store cannot be read.
        """
        if not await snapshots.load(store, run, self.state):
            # Another version's would stand before those to come, where a seek looks for the newest.
            with contextlib.suppress(StoreError):
                await snapshots.drop(store, run.no)
        self._keeper = _Keeper(store, run, self.state, every)

    @property
    def waiting(self) -> int:
        """Records that are committed and not yet folded."""
        return sum(len(batch.records) for batch in self._waiting)

    async def load(self, batches: AsyncIterator[list[tuple[int, AnyLine]]]) -> None:
        """Fold what the store holds already; batches that are committed meanwhile wait for the end of it.

        Of those, only the last :data:`MAX_HELD` records or so are kept, so ``batches`` has to go on until everything
        that is committed by its end has been given.
        """
        async for records in batches:
            for start in range(0, len(records), SLICE):
                self._fold(records[start : start + SLICE])
                await asyncio.sleep(0)
        # Whoever connects fetches the whole state first; what led to it is no news.
        self.state.changes()
        self.loaded.set()
        self._wake()

    def on_commit(self, batch: CommittedBatch) -> None:
        """Take a committed batch; called in the event loop, in order."""
        self._waiting.append(batch)
        if not self.loaded.is_set():
            self._held += len(batch.records)
            while self._held > MAX_HELD:
                self._held -= len(self._waiting.popleft().records)
            return
        while len(self._waiting) > MAX_WAITING:
            self._take(self._waiting.popleft().records)
        self._wake()

    async def close(self) -> None:
        """Fold the rest, and save what it came to."""
        if self._task is not None:
            await self._task
        if self.loaded.is_set():
            while self._waiting:
                self._take(self._waiting.popleft().records)
        if self._keeper is not None:
            await self._keeper.close()

    def _wake(self) -> None:
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._drain(), name="tidegate-fold")

    async def _drain(self) -> None:
        while self._waiting:
            batch = self._waiting[0]
            for start in range(0, len(batch.records), SLICE):
                # on_commit may have folded this batch while we slept; the ordinals tell.
                self._take(batch.records[start : start + SLICE])
                await asyncio.sleep(0)
            if self._waiting and self._waiting[0] is batch:
                self._waiting.popleft()

    def _take(self, records: Sequence[tuple[int, AnyLine]]) -> None:
        if self._fold(records):
            self._on_change(any(type(record) in URGENT for _, record in records))

    def _fold(self, records: Iterable[tuple[int, AnyLine]]) -> bool:
        state, before = self.state, self.state.ord
        for ordinal, record in records:
            # Lines from before the start can come twice: from the store and as a batch that was under way.
            if ordinal > state.ord:
                apply(state, ordinal, record)
        if self._keeper is not None:
            self._keeper.look()
        return state.ord != before
