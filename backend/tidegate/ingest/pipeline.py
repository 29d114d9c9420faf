"""The live ingest: lines from all connections, one batch after the other, into the run that is being written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from tidegate.errors import StoreError
from tidegate.ingest.account import SourceState
from tidegate.ingest.intake import Intake
from tidegate.ingest.rates import Rates
from tidegate.store import Batch, CommittedBatch, NewRun, Run, Store, new_run_id
from tidegate_collectors.link import Stamper, new_src
from tidegate_collectors.records import HostInfo, Loss, Note, Record, RunEnd, RunMeta

log = logging.getLogger(__name__)

COMMIT_INTERVAL_S: Final = 0.02
MAX_BATCH: Final = 8192
MAX_QUEUED_LINES: Final = 4 * MAX_BATCH
MAX_BROKEN_LINES: Final = 100
"""A connection that sent more lines than this that are no records is refused."""


def now_us() -> int:
    """Microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def boot_id() -> str:
    """The kernel's id of this boot; empty where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel
            return file.read().strip()
    except OSError:
        return ""


def machine() -> HostInfo:
    """This machine, for run.meta."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return HostInfo(kernel=platform.release(), cpus=os.cpu_count() or 0, memory_bytes=pages, boot_id=boot_id())


class Sender(Protocol):
    """The connection that lines came from."""

    state: SourceState
    name: str

    def ack(self, seq: int) -> None: ...
    def refuse(self, reason: str) -> None: ...


class Ingest:
    """Takes lines, commits them at most every 20 ms or 8192 records, and acknowledges what is committed.

    While the database cannot be written (a full disk), it holds the batch and tries again; senders are held back by
    the full queue and keep their records, so nothing that was acknowledged is lost.

    Args:
        store: open for writing.
        on_commit: called in the event loop after each commit, in order. An exception in it is logged.
        retry_s: time between attempts while the database cannot be written, seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_commit: Callable[[CommittedBatch], None] | None = None,
        retry_s: float = 1.0,
        title: str = "",
    ) -> None:
        self._store = store
        self._on_commit = on_commit
        self._retry_s = retry_s
        self._title = title
        self._host = socket.gethostname()
        self._stamper = Stamper(new_src("backend"), self._host)
        self.intake: Final = Intake(self._stamper, where="link")
        self.rates: Final = Rates()
        self._queue: deque[tuple[Sender, list[bytes], int]] = deque()
        self._own: deque[Record] = deque()
        self._queued_lines = 0
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._run: Run | None = None
        self._trouble = ""
        self._rejected = 0

    @property
    def run(self) -> Run:
        """The run that is being written. Only after :meth:`start`."""
        if self._run is None:
            raise RuntimeError("the ingest was not started")
        return self._run

    async def start(self) -> Run:
        """Resume the run of a backend that was killed, or begin a new one; then take lines.

        Raises:
            StoreError: the database cannot be written.
        """
        now = now_us()
        new = NewRun(id=new_run_id(now), started_us=now, title=self._title, host=self._host, boot_id=boot_id())
        self._run, resumed = await self._store.resume_or_create_live(new)
        for src, (seq, last_t) in (await self._store.reads.last_seqs()).items():
            self.intake.sources[src] = SourceState(src, last_seq=seq, committed_seq=seq, last_t=last_t)
        if resumed:
            away_since = self._run.last_t or self._run.started_us
            seconds = (now - away_since) / 1e6
            text = f"the backend was away for {seconds:.1f} s, from {_clock(away_since)} to {_clock(now)} UTC"
            self.record(Loss(t=now, where="store", count=0, of="backend away", since_us=away_since))
            self.record(Note(t=now, text=text, by="tidegate"))
        else:
            self.record(
                RunMeta(t=now, run=self._run.id, title=self._title or self._run.id, source="live", machine=machine())
            )
        self._task = asyncio.create_task(self._main(), name="tidegate-ingest")
        return self._run

    async def stop(self) -> None:
        """Commit what was taken, close the run, end. What cannot be written stays with its sender."""
        if self._task is None:
            return
        self._stopping.set()
        self._work.set()
        self._room.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        if self._trouble or self._queue:
            return  # not clean: the run is resumed, and the gap shown, at the next start
        now = now_us()
        last_seq = {state.src: state.committed_seq for state in self.intake.sources.values() if state.records}
        batch = self.intake.new_batch()
        self.intake.own(batch, RunEnd(t=now, clean=True, last_seq=last_seq, dropped=self.intake.counts.lost))
        try:
            self._publish(await self._store.commit(self.run, batch))
            await self._store.end_run(self.run, now, clean=True)
        except StoreError as error:
            log.error("the run could not be closed: %s", error)

    def check(self) -> None:
        """Raise what ended the worker, if anything did: by a defect of ours, nothing would be stored any more."""
        if self._task is not None and self._task.done():
            self._task.result()

    def record(self, record: Record) -> None:
        """Write a record of the backend itself."""
        self._own.append(record)
        self._work.set()

    async def put(self, sender: Sender, lines: list[bytes], first_line: int) -> None:
        """Take lines of one connection; waits while the queue is full, which holds the sender back."""
        while self._queued_lines >= MAX_QUEUED_LINES and not self._stopping.is_set():
            self._room.clear()
            await self._room.wait()
        self._queue.append((sender, lines, first_line))
        self._queued_lines += len(lines)
        self._work.set()

    def attach(self, src: str) -> SourceState:
        """The state of a sender that connects. What it sends again up to ``last_seq`` is passed over."""
        state = self.intake.sources.get(src)
        if state is None:
            state = self.intake.sources[src] = SourceState(src, last_seq=-1)
        return state

    def gone(self, state: SourceState) -> None:
        """Write that a sender is gone: what it observed is not seen any more. A number of records cannot be given."""
        now = now_us()
        log.warning("%s is gone", state.src)
        self.record(Loss(t=now, where="link", count=0, of=state.src, since_us=state.last_t or None))
        since = f"; nothing after {_clock(state.last_t)} UTC was seen" if state.last_t else ""
        self.record(Note(t=now, text=f"{state.src} is gone{since}", by="tidegate"))

    def rejected(self) -> None:
        """Count a connection that was refused."""
        self._rejected += 1

    def status(self) -> dict[str, Any]:
        """Figures for the Health page; times in milliseconds, counts since the start of the backend."""
        counts = self.intake.counts
        return {
            "state": "paused" if self._trouble else "running",
            "reason": self._trouble or None,
            "records": self.rates.records,
            "records_per_s": self.rates.records_per_s(),
            "batches": self.rates.batches,
            "commit_p50_ms": self.rates.commit_ms(0.5),
            "commit_p99_ms": self.rates.commit_ms(0.99),
            "queued": self._queued_lines,
            "rejected": self._rejected,
            "broken": counts.broken,
            "duplicates": counts.duplicates,
            "lost": counts.lost,
            "clock_back": counts.clock_back,
            "unknown_types": dict(counts.unknown_types),
            "unknown_fields": dict(counts.unknown_fields),
        }

    # --- the worker --------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        next_commit = 0.0
        while True:
            await self._work.wait()
            if not self._stopping.is_set():
                # The first record after a pause is committed at once; under load, at most every 20 ms.
                wait_s = next_commit - loop.time()
                if wait_s > 0 and self._queued_lines < MAX_BATCH:
                    await asyncio.sleep(wait_s)
            next_commit = loop.time() + COMMIT_INTERVAL_S
            batch, senders = self._gather()
            if len(batch) and not await self._commit(batch):
                return
            for sender in senders:
                state = sender.state
                if state.last_seq is not None and state.last_seq > state.committed_seq:
                    state.committed_seq = state.last_seq
                sender.ack(state.committed_seq)
                if state.broken > MAX_BROKEN_LINES:
                    sender.refuse(f"{state.broken} lines are no records")
                    state.broken = 0
            if self._stopping.is_set() and not self._queue and not self._own:
                return

    def _gather(self) -> tuple[Batch, list[Sender]]:
        batch = self.intake.new_batch()
        senders: dict[int, Sender] = {}
        while self._own:
            self.intake.own(batch, self._own.popleft())
        while self._queue and len(batch) < MAX_BATCH:
            sender, lines, first_line = self._queue.popleft()
            self._queued_lines -= len(lines)
            senders[id(sender)] = sender
            self.intake.feed(batch, lines, source=sender.name, first_line=first_line, expect=sender.state)
        if self._queued_lines < MAX_QUEUED_LINES:
            self._room.set()
        if not self._queue and not self._own and not self._stopping.is_set():
            self._work.clear()
        return batch, list(senders.values())

    async def _commit(self, batch: Batch) -> bool:
        """Commit, however long it takes; false when the backend ends before it could be done."""
        while True:
            started = time.perf_counter()
            try:
                committed = await self._store.commit(self.run, batch)
            except StoreError as error:
                if not self._trouble:
                    log.error("ingest is paused: %s", error)
                self._trouble = str(error)
                if self._stopping.is_set():
                    return False
                await self._sleep_or_stop()
                continue
            if self._trouble:
                log.warning("ingest goes on")
                self._trouble = ""
            self.rates.add(len(batch), time.perf_counter() - started)
            self._publish(committed)
            return True

    async def _sleep_or_stop(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), self._retry_s)

    def _publish(self, committed: CommittedBatch) -> None:
        if self._on_commit is None:
            return
        try:
            self._on_commit(committed)
        except Exception:
            # What is shown may be wrong now, but what is stored is not, and must go on being stored.
            log.exception("on_commit failed")


def _clock(t_us: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(t_us // 1_000_000))
