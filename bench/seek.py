"""Milliseconds to any instant of a run, up to the answer of ``/api/state``.

A run of 64 sessions is written by the real store, with snapshots as an import or a live backend leaves them. Then the
playhead goes to random instants; each time the state is read and folded on, and made into the JSON of the whole page.
Reference, in the same run: the same answers by folding from the start, for a few of the same instants; both are
compared byte by byte. 300 000 records by default, so that it ends within a minute; ``--full`` writes 1 000 000.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from bench._report import Report, arguments, percentile, progress
from bench._workload import workload
from tidegate.fold import State, fold, views
from tidegate.runs.history import History
from tidegate.store import Batch, NewRun, Run, Store, open_store, snapshots

SESSIONS: Final = 64
GOAL_MS: Final = 50.0
_BATCH: Final = 4096
_REFERENCES: Final = 4


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("seek", __doc__).full
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as root:
        report = asyncio.run(measure(Path(root) / "run.db", 1_000_000 if full else 300_000, 500 if full else 200))
    print(report.line())
    return 0


async def measure(path: Path, records: int, seeks: int) -> Report:
    """Write a run and seek in it."""
    store = await open_store(path)
    started = time.perf_counter()
    run, calls = await write(store, records)
    written_s = time.perf_counter() - started
    await store.close()  # the WAL is merged: what is measured is a run that lies on the disk
    progress(f"{records} records written in {written_s:.1f} s")
    store = await open_store(path, read_only=True)
    try:
        return await seek(store, run, calls, records, seeks, written_s)
    finally:
        await store.close()


async def write(store: Store, records: int) -> tuple[Run, int]:
    """The run, and how many calls it has."""
    run = await store.create_run(NewRun(id="bench", started_us=0))
    writer, state = snapshots.SnapshotWriter(run.no), State(track=False)
    lines = workload(records, sessions=SESSIONS)
    while part := list(itertools.islice(lines, _BATCH)):
        done = await store.commit(run, Batch([record for record, _ in part], [line for _, line in part]))
        fold(state, done.records)
        if writer.due(state):
            await snapshots.save(store, writer.take(state))
    return run, sum(session.calls_total for session in state.sessions.values())


async def seek(store: Store, run: Run, calls: int, records: int, seeks: int, written_s: float) -> Report:
    """Go to random instants, and to some of them from the start."""
    history = History(store, run)
    start_us, end_us = await history.extent()
    rng = random.Random(7)
    instants = [rng.randrange(start_us, end_us + 1) for _ in range(seeks)]
    took_ms, answers, behind = [], {}, []
    gc.collect()
    gc.freeze()  # as the backend does when it has started
    cpu = time.process_time()
    for at_us in instants:
        started = time.perf_counter()
        state = await history.state_at(at_us)
        answer = msgspec.json.encode(views.state_view(state, now_us=at_us))
        took_ms.append((time.perf_counter() - started) * 1e3)
        answers[at_us] = answer
        behind.append(state.ord % snapshots.EVERY)
    cpu_ms = (time.process_time() - cpu) * 1e3
    progress(f"{seeks} seeks: p50 {percentile(took_ms, 50):.1f} ms, p99 {percentile(took_ms, 99):.1f} ms")
    reference_ms, differ = [], 0
    for at_us in instants[:_REFERENCES]:
        started = time.perf_counter()
        answer = await from_the_start(history, at_us)
        reference_ms.append((time.perf_counter() - started) * 1e3)
        differ += answer != answers[at_us]
    parts = sizes(store.path)
    details: dict[str, Any] = {
        "records": records,
        "sessions": SESSIONS,
        "calls": calls,
        "span_s": (end_us - start_us) / 1e6,
        "seek_p50_ms": percentile(took_ms, 50),
        "seek_p90_ms": percentile(took_ms, 90),
        "seek_p99_ms": percentile(took_ms, 99),
        "seek_max_ms": max(took_ms),
        "first_seek_ms": took_ms[0],
        "from_the_start_ms": reference_ms,
        "answers_that_differ": differ,
        "answer_bytes": statistics.mean(map(len, answers.values())),
        "records_folded_on": statistics.mean(behind),
        "written_s": written_s,
        "cpu_ms": cpu_ms / seeks,
        "load_1min": os.getloadavg()[0],
        "goal_ms": GOAL_MS,
        **parts,
    }
    return Report(
        bench="seek",
        value=percentile(took_ms, 99),
        unit="ms",
        reference_name="the same answer by folding from the start, median",
        reference_value=statistics.median(reference_ms),
        runs=seeks,
        details=details,
    )


async def from_the_start(history: History, at_us: int) -> bytes:
    """The answer without snapshots."""
    state = State(track=False)
    async for records in history.records(1, await history.ord_at(at_us)):
        fold(state, records)
    return msgspec.json.encode(views.state_view(state, now_us=at_us))


def sizes(path: Path) -> dict[str, Any]:
    """What the snapshots take of the database."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        ((roots, count),) = connection.execute("SELECT SUM(length(data)), COUNT(*) FROM snapshots").fetchall()
        ((data, parts),) = connection.execute("SELECT SUM(length(data)), COUNT(*) FROM parts").fetchall()
    finally:
        connection.close()
    whole = path.stat().st_size
    return {
        "database_bytes": whole,
        "snapshot_bytes": roots + data,
        "snapshot_share": (roots + data) / whole,
        "snapshots": count,
        "parts": parts,
    }


if __name__ == "__main__":
    sys.exit(main())
