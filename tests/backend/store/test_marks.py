"""Counts of events for the playhead's track: every event once, in its column, whatever a sender wrote."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidegate.store import Batch, Run, Store, open_store
from tidegate.store.marks import MARK_KINDS
from tidegate.store.model import NewRun
from tidegate.store.rows import MAX_INT
from tidegate_collectors import records
from tidegate_collectors.records import (
    Action,
    CallEnd,
    CallStart,
    KvDecision,
    Loss,
    MemBurst,
    MemEvent,
    Note,
    ProcExec,
    Record,
)

KIND: dict[type[Record], str] = {
    CallStart: "call", MemBurst: "burst", MemEvent: "oom", Action: "action", KvDecision: "decision", Loss: "loss",
}  # fmt: skip


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await open_store(tmp_path / "t.db")
    yield found
    await found.close()


async def written(store: Store, given: list[Record], run_id: str = "r") -> Run:
    run = await store.create_run(NewRun(id=run_id, started_us=0))
    batch = Batch()
    for seq, record in enumerate(given):
        record.v, record.seq, record.src, record.host = records.VERSION, seq, "kernel-test", "h"
        batch.add(record, records.encode(record))  # type: ignore[arg-type]
    await store.commit(run, batch)
    return run


def some(kind: type[Record], t_us: int) -> Record:
    if kind is MemBurst:
        return MemBurst(t=t_us, session="s", grown_bytes=1, window_us=1, total_bytes=1)
    if kind is MemEvent:
        return MemEvent(t=t_us, session="s", oom_kill=1)
    if kind is Action:
        return Action(t=t_us, plane="kernel", verb="freeze", target="s", enforced=False)
    if kind is KvDecision:
        return KvDecision(t=t_us, session="s", boundary="call", action="PIN", enforced=False)
    if kind is Loss:
        return Loss(t=t_us, where="store", count=1, of="events")
    return CallStart(t=t_us, session="s", call=str(t_us))


async def test_every_event_is_counted_in_its_column(store: Store) -> None:
    rng = random.Random(7)
    given = [some(rng.choice(list(KIND)), rng.randrange(1_000, 900_001)) for _ in range(3_000)]
    others: list[Record] = [
        Note(t=5, text='"oom'), CallEnd(t=6, session="s", call="c", oom=True), MemEvent(t=7, session="s", high=9),
        ProcExec(t=8, session="s", pid=1, ppid=1, comm='"oom'),
    ]  # fmt: skip
    await written(store, given + others)
    await written(store, [some(MemBurst, 5)], "another run")
    found = await store.reads.marks("r", 1_000, 900_000, 333)
    wanted = Counter((KIND[type(record)], min(332, (record.t - 1_000) * 333 // 899_000)) for record in given)
    assert list(found) == list(MARK_KINDS)
    assert {(kind, column): count for kind, counts in found.items() for column, count in counts} == wanted
    for counts in found.values():
        assert counts == sorted(counts)


async def test_what_lies_outside_is_at_the_edges(store: Store) -> None:
    await written(store, [some(MemBurst, t_us) for t_us in (0, 99, 100, 199, 200, 5_000, MAX_INT)])
    assert (await store.reads.marks("r", 100, 200, 4))["burst"] == [(0, 3), (3, 4)]
    assert (await store.reads.marks("r", 0, MAX_INT, 4_000))["burst"] == [(0, 6), (3_999, 1)]


@pytest.mark.parametrize(
    "fields",
    ['"oom":0,"oom_kill":0', '"high":3,"x":"\\"oom"', '"oom_kill":0,"y":{"oom":5}', '"max":1,"oomph":3'],
)
async def test_a_limit_that_was_touched_is_no_oom(store: Store, fields: str) -> None:
    line = f'{{"v":1,"seq":0,"src":"k","t":5,"type":"mem.event","host":"h","session":"s",{fields}}}'.encode()
    run = await store.create_run(NewRun(id="r", started_us=0))
    batch = Batch()
    batch.add(records.decode(line), line)
    await store.commit(run, batch)
    assert (await store.reads.marks("r", 0, 10, 5))["oom"] == []
