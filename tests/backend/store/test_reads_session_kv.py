from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest

from tests.backend.store.test_reads import NASTY
from tests.backend.store.test_store import filled
from tests.support.engine_lines import decision, hostile_engine_lines, random_engine_lines, transition
from tests.support.scenes import T0, stamped
from tidegate.analysis.kv_blocks import KV_STATES, BlockSteps
from tidegate.store import reads_session_kv
from tidegate_collectors.records import (
    EngineEnd,
    EngineSample,
    EngineStart,
    Note,
    TurnEnd,
    TurnFirstToken,
    TurnStart,
    TurnTool,
)


def on_device(steps: BlockSteps) -> dict[int, int]:
    """Blocks on the device by the time from which they are there, counted from T0."""
    totals = map(sum, zip(*(steps.states[name] for name in KV_STATES[:4]), strict=True))
    return {t - T0: n for t, n in zip(steps.t_us, totals, strict=True)}


async def test_turns_that_a_span_touches_are_whole(tmp_path: Path) -> None:
    records = [
        TurnStart(t=T0, session="s", turn="old"),
        TurnEnd(t=T0 + 5, session="s", turn="old"),
        TurnStart(t=T0 + 90, session="s", turn="t"),
        TurnStart(t=T0 + 91, session="other", turn="t"),
        TurnFirstToken(t=T0 + 110, session="s", turn="t", ttft_us=20),
        TurnTool(t=T0 + 250, session="s", turn="t", agent_call_id="a", began_us=T0 + 240),
        TurnStart(t=T0 + 260, session="s", turn="next"),
        TurnEnd(t=T0 + 270, session="s", turn="t"),
        Note(t=T0 + 120, session="s", text="no turn"),
    ]
    store, run = await filled(tmp_path / "t.db", stamped(records))
    found = await store.reads.session_turns(run.id, "s", T0 + 100, T0 + 200)
    assert [ord_ for ord_, _ in found.records] == [3, 5, 6, 8]
    assert not found.truncated
    early = await store.reads.session_turns(run.id, "s", T0 + 100, T0 + 200, to_ord=5)
    assert [ord_ for ord_, _ in early.records] == [3, 5]
    assert (await store.reads.session_turns(run.id, "nobody", T0, T0 + 200)).records == []
    await store.close()


async def test_of_too_many_records_the_newest_are_there(tmp_path: Path) -> None:
    records = [transition(n, device_active=n) for n in range(20)]
    turns = [TurnStart(t=T0 + n, session="s", turn=f"t{n}") for n in range(20)]
    store, run = await filled(tmp_path / "t.db", stamped([*records, *turns]))
    found = await store.reads.session_transitions(run.id, "s", T0 + 3, T0 + 15, limit=5)
    assert ([record.t - T0 for _, record in found.records], found.truncated) == ([11, 12, 13, 14, 15], True)
    assert found.records[0][1].residency == {"device_active": 11}
    found = await store.reads.session_transitions(run.id, "s", T0 + 3, T0 + 15, limit=5, to_ord=8)
    assert ([ord_ for ord_, _ in found.records], found.truncated) == ([4, 5, 6, 7, 8], False)
    some = await store.reads.session_turns(run.id, "s", T0 + 3, T0 + 15, limit=5)
    assert some.truncated
    await store.close()


async def test_blocks_of_a_session_as_steps(tmp_path: Path) -> None:
    records = [
        EngineStart(t=T0, engine="e", pid=1),
        transition(1, device_active=3),
        transition(4, device_active=1, host=2),
        transition(5, session="other", device_active=99),
        transition(6, device_active=7),
    ]
    store, run = await filled(tmp_path / "t.db", stamped(records))
    steps = await store.reads.session_blocks(run.id, "s", T0 + 3, T0 + 10, 100)
    assert on_device(steps) == {3: 3, 4: 1, 6: 7}
    assert steps.states["host"] == [0, 2, 0]
    assert on_device(await store.reads.session_blocks(run.id, "s", T0 + 3, T0 + 10, 100, to_ord=4)) == {3: 3, 4: 1}
    assert (await store.reads.session_blocks(run.id, "nobody", T0, T0 + 10, 100)).t_us == []
    await store.close()


async def test_an_engine_that_was_started_anew_has_nothing_of_before(tmp_path: Path) -> None:
    """GIVEN a session with blocks WHEN its engine is introduced again THEN they stay; WHEN another process speaks for
    it, or it ends, THEN they are gone, and those on another engine are not."""
    first = stamped(
        [
            EngineStart(t=T0, engine="e", pid=1),
            transition(1, device_active=3),
            transition(2, engine="f", device_active=10),
            EngineStart(t=T0 + 3, engine="e", pid=1),
        ],
        src="engine-1",
    )
    again = stamped(
        [EngineStart(t=T0 + 5, engine="e", pid=1), transition(6, device_active=4), EngineEnd(t=T0 + 8, engine="e")],
        src="engine-2",
    )
    store, run = await filled(tmp_path / "t.db", first + again)
    assert on_device(await store.reads.session_blocks(run.id, "s", T0, T0 + 20, 100)) == {
        1: 3,
        2: 13,
        5: 10,
        6: 14,
        8: 10,
    }
    assert on_device(await store.reads.session_blocks(run.id, "s", T0 + 9, T0 + 20, 100)) == {9: 10}
    await store.close()


async def test_more_transitions_than_are_read_one_by_one_still_end_each_column_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = stamped([transition(n, device_active=n % 7 + 1) for n in range(2000)])
    store, run = await filled(tmp_path / "t.db", lines)
    whole = on_device(await store.reads.session_blocks(run.id, "s", T0, T0 + 2000, 10_000))
    monkeypatch.setattr(reads_session_kv, "_MOST_STEPS", 500)
    few = on_device(await store.reads.session_blocks(run.id, "s", T0, T0 + 2000, 10_000))
    assert len(whole) == 2000
    assert 490 <= len(few) <= 500
    assert few.items() <= whole.items()
    times = [0, *few]
    assert all(b - a <= 5 for a, b in pairwise(times))
    assert max(few) == 1999
    await store.close()


@pytest.mark.parametrize("name", NASTY)
async def test_hostile_names_are_only_names(tmp_path: Path, name: str) -> None:
    records = [
        transition(1, session=name, engine=name, device_active=3),
        transition(1, session="other " + name, engine=name, device_active=5),
        TurnStart(t=T0 + 1, session=name, turn=name),
        decision(2, name, engine=name, tool=name),
    ]
    store, run = await filled(tmp_path / "t.db", stamped(records))
    assert on_device(await store.reads.session_blocks(run.id, name, T0, T0 + 9, 10)) == {1: 3}
    assert len((await store.reads.session_turns(run.id, name, T0, T0 + 9)).records) == 1
    assert len((await store.reads.session_decisions(run.id, name, T0, T0 + 9))[0]) == 1
    await store.close()


async def test_random_and_hostile_records_are_read_without_failing(tmp_path: Path) -> None:
    lines = [*hostile_engine_lines(), *random_engine_lines(1, 400)]
    store, run = await filled(tmp_path / "t.db", lines)
    seen = 0
    for session in ("s", "s2", "s3"):
        steps = await store.reads.session_blocks(run.id, session, T0 - 10**10, T0 + 10**10, 7)
        seen += len(steps.t_us)
        seen += len((await store.reads.session_turns(run.id, session, T0 - 10**10, T0 + 10**10)).records)
        seen += len((await store.reads.session_transitions(run.id, session, T0, T0 + 1)).records)
    assert seen > 50
    await store.close()


async def test_engines_of_a_session(tmp_path: Path) -> None:
    records = [
        decision(0, "a", engine="e"),
        transition(1, session="a", engine="f"),
        TurnStart(t=T0, session="only turns", turn="t"),
        Note(t=T0, session="nothing of it", text="n"),
        EngineSample(t=T0, engine="g"),
    ]
    store, run = await filled(tmp_path / "t.db", stamped(records))
    assert await store.reads.session_engines(run.id, "a") == frozenset({"e", "f"})
    assert await store.reads.session_engines(run.id, "only turns") is None
    assert await store.reads.session_engines(run.id, "nothing of it") == frozenset()
    await store.close()


async def test_reads_of_a_session_go_by_an_index(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", stamped([transition(1, device_active=1)]))
    asked: list[str] = []
    async with store.reads._engine.connect() as connection:  # the pool gives this connection out again
        raw = await connection.get_raw_connection()
        await raw.driver_connection.set_trace_callback(asked.append)  # type: ignore[union-attr]
    await store.reads.session_turns(run.id, "s", T0, T0 + 9)
    await store.reads.session_transitions(run.id, "s", T0, T0 + 9)
    await store.reads.session_blocks(run.id, "s", T0, T0 + 9, 10)
    await store.close()
    connection_ = sqlite3.connect(tmp_path / "t.db")
    statements = [statement for statement in asked if "events" in statement]
    plans = [
        [str(row[3]) for row in connection_.execute(f"EXPLAIN QUERY PLAN {statement}")] for statement in statements
    ]
    connection_.close()
    inner = ("SCAN k", "SCAN (subquery-1)")  # the rows that an index gave
    assert len(plans) == 3 + 1 + 4
    steps = [step for plan in plans for step in plan]
    assert sum("engine_events USING PRIMARY KEY (run=? AND session=? AND type=? AND t" in step for step in steps) == 8
    assert not [step for step in steps if step.startswith("SCAN") and step not in inner]
