"""Runs in a real store, with snapshots as an import or a live backend leaves them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.fold import State, fold
from tidegate.store import Batch, NewRun, Run, Store, snapshots
from tidegate_collectors import records
from tidegate_collectors.link import Stamper
from tidegate_collectors.records import AnyRecord, Record

Line = tuple[Any, bytes]


def lines_of(stream: Iterable[Record]) -> list[Line]:
    """Records with the lines that they come as; those that no collector stamped are stamped."""
    stamp = Stamper("kernel-test", "h").stamp
    return [(record, records.encode(record) if record.v else stamp(record)) for record in stream]


async def write_run(
    store: Store, lines: Iterable[Line], *, batch: int = 500, every: int | None = None, run_id: str = "r"
) -> Run:
    """A new run with these records, committed in batches; with ``every`` also snapshots, each so many records."""
    run = await store.create_run(NewRun(id=run_id, started_us=0))
    writer = None if every is None else snapshots.SnapshotWriter(run.no, every)
    state = State(track=False)
    rest = list(lines)
    for start in range(0, len(rest), batch):
        part = rest[start : start + batch]
        done = await store.commit(run, Batch([record for record, _ in part], [line for _, line in part]))
        fold(state, done.records)
        if writer is not None and writer.due(state):
            await snapshots.save(store, writer.take(state))
    return run


def folded(lines: Iterable[Line], to_ord: int, *, track: bool = False) -> State:
    """The state after so many records, folded from the start."""
    numbered: list[tuple[int, AnyRecord]] = [(ord_, record) for ord_, (record, _) in enumerate(lines, 1)]
    return fold(State(track=track), numbered[:to_ord])
