from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import msgspec
import pytest

from tests.backend.store.test_store import batch_of, filled
from tests.support.engine_lines import hostile_engine_lines, random_engine_lines
from tests.support.scenes import T0, stamped
from tidegate.analysis.engine_series import EngineSeries
from tidegate.errors import NotFoundError
from tidegate_collectors.records import EngineSample, Note, SessionStart

S = 1_000_000


def sample(second: float, **fields: object) -> EngineSample:
    return EngineSample(t=T0 + round(second * S), **{"engine": "e", **fields})  # type: ignore[arg-type]


async def test_the_chart_of_an_engine_and_the_samples_next_to_its_span(tmp_path: Path) -> None:
    records = [
        sample(n, running=n, waiting=1, waiting_by_reason={"capacity": n} if n % 2 else {}, blocks_free=9,
               prefix_queries_tokens=100 * n, prefix_hits_tokens=60 * n, missing=["x"])
        for n in range(10)
    ]  # fmt: skip
    store, run = await filled(tmp_path / "t.db", stamped([*records, sample(5, engine="f", running=99)]))
    series = await store.reads.engine_series(run.id, "e", T0 + 3 * S, T0 + 5 * S, 100)
    assert [(t - T0) // S for t in series.t_us] == [2, 3, 4, 5, 6]
    assert series.running == [2, 3, 4, 5, 6]
    assert series.waiting_by_reason == {"capacity": [0, 3, 0, 5, 0]}
    assert series.hit_tokens_per_s == {
        "device": [None, 60, 60, 60, 60],
        "host": [None] * 5,
        "missed": [None, 40, 40, 40, 40],
    }
    assert series.blocks["free"] == [9] * 5
    assert series.blocks["pinned"] == [None] * 5
    until = await store.reads.engine_series(run.id, "e", T0 + 3 * S, T0 + 5 * S, 100, to_ord=5)
    assert [(t - T0) // S for t in until.t_us] == [2, 3, 4]
    assert await store.reads.engine_series(run.id, "nobody", T0, T0 + S, 100) == EngineSeries()
    with pytest.raises(NotFoundError):
        await store.reads.engine_series("nothing", "e", T0, T0 + S, 100)
    await store.close()


async def test_an_engine_that_fell_silent_while_others_spoke_has_a_gap_to_the_end(tmp_path: Path) -> None:
    records = [*map(sample, range(3)), Note(t=T0 + 20 * S, text="still here")]
    store, run = await filled(tmp_path / "t.db", stamped(records))
    series = await store.reads.engine_series(run.id, "e", T0, T0 + 60 * S, 100)
    assert series.gaps == [(T0 + 2 * S, T0 + 20 * S)]
    assert (await store.reads.engine_series(run.id, "e", T0, T0 + 10 * S, 100)).gaps == [(T0 + 2 * S, T0 + 10 * S)]
    assert (await store.reads.engine_series(run.id, "e", T0, T0 + 60 * S, 100, until_us=T0 + 3 * S)).gaps == []
    await store.close()


async def test_samples_of_engines_are_no_events_and_belong_to_no_list_of_them(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", stamped([SessionStart(t=T0, session="s"), sample(1, session="of.it")]))
    assert [event.type for event in await store.reads.events(run.id)] == ["session.start"]
    assert {row.id for row in await store.reads.sessions(run=run.id)} == {"s", "of.it"}
    assert await store.reads.events(run.id, types=["engine.sample"]) == []
    await store.close()


async def test_hostile_samples_are_cut_to_what_a_chart_can_hold(tmp_path: Path) -> None:
    lines = [*hostile_engine_lines(), *random_engine_lines(1, 200)]
    store, run = await filled(tmp_path / "t.db", lines)
    names = await store.reads.kv_engines(run.id)
    assert {"NaN", "engine-x", "e"} <= set(names)
    for name in names:
        for px in (2, 5, 1000):
            series = await store.reads.engine_series(run.id, name, T0 - 10**9, T0 + 10**9, px)
            assert series.t_us or await store.reads.kv_decisions(run.id) != ([], None)
            msgspec.json.encode(series)
    huge = await store.reads.engine_series(run.id, "e", T0 - 1, T0 + 1, 100)
    assert 2**63 - 1 in huge.running
    assert len((await store.reads.engine_series(run.id, "engine-x", T0 - 1, T0 + 1, 100)).waiting_by_reason) == 12
    assert (await store.reads.engine_series(run.id, "NaN", T0 - 1, T0 + 1, 100)).running == [2]
    await store.close()


async def test_a_long_span_is_read_by_the_key_and_drawn_on_few_points(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = stamped([sample(n, running=rng.randrange(9), waiting_by_reason={"capacity": n}) for n in range(6000)])
    store, run = await filled(tmp_path / "t.db", lines[:3000])
    await store.commit(run, batch_of(lines[3000:]))
    asked: list[str] = []
    async with store.reads._engine.connect() as connection:  # the pool gives this connection out again
        raw = await connection.get_raw_connection()
        await raw.driver_connection.set_trace_callback(asked.append)  # type: ignore[union-attr]
    series = await store.reads.engine_series(run.id, "e", T0, T0 + 6000 * S, 200)
    await store.close()
    assert len(series.t_us) <= 400
    assert series.waiting_by_reason["capacity"] == [(t - T0) // S for t in series.t_us]
    connection_ = sqlite3.connect(tmp_path / "t.db")
    plans = [
        str(row[3])
        for statement in asked
        if "engine_samples m" in statement
        for row in connection_.execute(f"EXPLAIN QUERY PLAN {statement}")
    ]
    connection_.close()
    assert sum("SEARCH m USING PRIMARY KEY (run=? AND engine=? AND t" in step for step in plans) == 4
    assert not [step for step in plans if "SCAN" in step and "VIRTUAL" not in step]
