from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.backend.store.test_store import batch_of, filled
from tests.support.engine_lines import decision, hostile_engine_lines, outcome, random_engine_lines
from tests.support.scenes import T0, decoded, stamped
from tidegate.errors import NotFoundError
from tidegate.fold.limits import MAX_ID_CHARS
from tidegate.store import DecisionFilter, DecisionRow, Reads
from tidegate_collectors.records import EngineSample, KvDecision, KvOutcome, Note, Record


async def pages(
    reads: Reads, run: str, wanted: DecisionFilter, limit: int, to_ord: int | None = None
) -> list[DecisionRow]:
    """All pages, one after the other."""
    found: list[DecisionRow] = []
    before: int | None = None
    while True:
        rows, before = await reads.kv_decisions(run, wanted, before_ord=before, to_ord=to_ord, limit=limit)
        assert len(rows) <= limit
        found += rows
        if before is None:
            return found


def ords(rows: Sequence[DecisionRow]) -> list[int]:
    return [row.ord for row in rows]


async def test_a_page_of_decisions_with_what_came_of_them(tmp_path: Path) -> None:
    records: list[Record] = [
        decision(0, turn="t1", tool="bash", action="PIN", blocks=7, ttl_s=5.0, margin_s=0.25),
        decision(1, overridden_by="cap", enforced=False),
        outcome(2, 0, regret_s=1.5, cached_device_tokens=10, hindsight_best="KEEP"),
        outcome(3, 99, regret_s=9.0),
        outcome(4, 0, regret_s=0.5, returned=False),
    ]
    store, run = await filled(tmp_path / "t.db", stamped(records, src="engine-1"))
    rows, more = await store.reads.kv_decisions(run.id)
    assert (ords(rows), more) == ([2, 1], None)
    assert msgspec.to_builtins(rows[1]) == {
        "ord": 1, "src": "engine-1", "seq": 0, "t_us": T0, "session": "s", "turn": "t1", "engine": "e",
        "boundary": "call", "action": "PIN", "enforced": True, "blocks": 7, "tool": "bash", "margin_s": 0.25,
        "ttl_s": 5.0, "rule": "four-state", "overridden_by": None,
        "outcome": {
            "ord": 5, "t_us": T0 + 4, "action": None, "returned": False, "gap_us": 5, "evicted": False,
            "served_from": "device", "cached_device_tokens": None, "cached_host_tokens": None,
            "recomputed_tokens": None, "retrieval_us": None, "hindsight_best": None, "regret_s": 0.5,
        },
    }  # fmt: skip
    assert (rows[0].enforced, rows[0].overridden_by, rows[0].outcome) == (False, "cap", None)
    # at an earlier instant only what was known then
    (before,), _ = await store.reads.kv_decisions(run.id, DecisionFilter(tool="bash"), to_ord=3)
    assert before.outcome is not None
    assert (before.outcome.ord, before.outcome.regret_s, before.outcome.cached_device_tokens) == (3, 1.5, 10)
    (before,), _ = await store.reads.kv_decisions(run.id, to_ord=1)
    assert before.outcome is None
    # nor does it cost what it cost once
    assert await store.reads.kv_decisions(run.id, DecisionFilter(regret_min_s=1.0)) == ([], None)
    assert ords((await store.reads.kv_decisions(run.id, DecisionFilter(regret_min_s=1.0), to_ord=3))[0]) == [1]
    await store.close()


async def test_filters_and_pages_give_what_a_look_at_all_of_them_gives(tmp_path: Path) -> None:
    """GIVEN random decisions and outcomes WHEN paged with any filters, at any instant THEN the pages together are the
    decisions that fit, the newest first, each with its last outcome by then."""
    rng = random.Random(7)
    records: list[Record] = []
    for seq in range(300):
        if seq and rng.random() < 0.5:
            chosen = rng.randrange(seq)
            records.append(outcome(seq, chosen, regret_s=rng.choice((None, 0.0, 0.5, 2.0))))
        else:
            records.append(
                decision(
                    seq,
                    rng.choice(("s", "s2", None)),
                    engine=rng.choice("ef"),
                    boundary=rng.choice(("call", "ttl")),
                    action=rng.choice(("KEEP", "PIN", "DROP")),
                    tool=rng.choice(("bash", "git", None)),
                    enforced=rng.random() < 0.5,
                    overridden_by=rng.choice((None, None, "cap")),
                )
            )
    lines = stamped(records)
    store, run = await filled(tmp_path / "t.db", lines, [11, 12, 150])
    stream = list(enumerate(decoded(lines), 1))
    choices: dict[str, tuple[Any, ...]] = {
        "engine": (None, "e", "nobody"), "session": (None, "s"), "action": (None, "PIN"), "boundary": (None, "ttl"),
        "tool": (None, "bash"), "enforced": (None, True, False), "overridden": (None, True, False),
        "regret_min_s": (None, 0.0, 0.6),
    }  # fmt: skip
    combinations = list(itertools.product(*choices.values()))
    singles = [c for c in combinations if sum(value is not None for value in c) <= 1]
    tried = 0
    for values in singles + rng.sample(combinations, 60):
        wanted = DecisionFilter(*values)
        for to_ord in (None, 170):
            last: dict[int, tuple[int, KvOutcome]] = {}
            for ord_, record in stream[:to_ord]:
                if isinstance(record, KvOutcome) and isinstance(stream[record.decision_seq][1], KvDecision):
                    last[record.decision_seq + 1] = (ord_, record)
            fits = []
            for ord_, record in stream[:to_ord]:
                regret = last[ord_][1].regret_s if ord_ in last else None
                if isinstance(record, KvDecision) and _fits(record, regret, wanted):
                    fits.append(ord_)
            rows = await pages(store.reads, run.id, wanted, rng.choice((7, 100)), to_ord)
            assert ords(rows) == fits[::-1], wanted
            for row in rows:
                assert (None if row.outcome is None else row.outcome.ord) == last.get(row.ord, (None,))[0]
            tried += bool(fits)
    assert tried > 40
    await store.close()


def _fits(record: KvDecision, regret: float | None, wanted: DecisionFilter) -> bool:
    for name in ("engine", "session", "action", "boundary", "tool", "enforced"):
        value = getattr(wanted, name)
        if value is not None and getattr(record, name) != value:
            return False
    if wanted.overridden is not None and (record.overridden_by is not None) != wanted.overridden:
        return False
    return wanted.regret_min_s is None or (regret is not None and regret >= wanted.regret_min_s)


async def test_one_decision_with_all_that_was_recorded(tmp_path: Path) -> None:
    one = decision(0, inputs={"a": [1, {"b": 2}]}, costs={"keep_s": 1.0})
    store, run = await filled(tmp_path / "t.db", stamped([one, Note(t=T0 + 1, text="n"), outcome(2, 0)]))
    found = await store.reads.kv_decision(run.id, 1)
    assert found is not None
    row, record = found
    assert (record.inputs, record.costs) == ({"a": [1, {"b": 2}]}, {"keep_s": 1.0})
    assert row.outcome is not None
    before = await store.reads.kv_decision(run.id, 1, to_ord=2)
    assert before is not None
    assert before[0].outcome is None
    for ord_ in (2, 3, 4, 0, -1, 2**63, 10**30):
        assert await store.reads.kv_decision(run.id, ord_) is None
    assert await store.reads.kv_decision(run.id, 1, to_ord=0) is None
    with pytest.raises(NotFoundError):
        await store.reads.kv_decision("nothing", 1)
    await store.close()


async def test_decisions_of_a_session_in_a_span(tmp_path: Path) -> None:
    records = [decision(t, session) for t in range(10) for session in ("s", "s2")]
    store, run = await filled(tmp_path / "t.db", stamped(records))
    rows, truncated = await store.reads.session_decisions(run.id, "s", T0 + 2, T0 + 7)
    assert ([row.t_us - T0 for row in rows], truncated) == ([2, 3, 4, 5, 6, 7], False)
    rows, truncated = await store.reads.session_decisions(run.id, "s", T0 + 2, T0 + 7, limit=3)
    assert ([row.t_us - T0 for row in rows], truncated) == ([5, 6, 7], True)
    rows, _ = await store.reads.session_decisions(run.id, "s", T0 + 2, T0 + 7, to_ord=9)
    assert [row.t_us - T0 for row in rows] == [2, 3, 4]
    await store.close()


async def test_names_to_choose_from(tmp_path: Path) -> None:
    tools = ["git", "bash", None, "", "it's; DROP TABLE runs", "x" * 300, "git"]
    records: list[Record] = [decision(n, tool=tool) for n, tool in enumerate(tools)]
    records += [EngineSample(t=T0, engine=name) for name in ("only samples", "e", "")]
    store, run = await filled(tmp_path / "t.db", stamped(records, src="engine-7"))
    names = await store.reads.kv_tools(run.id)
    assert [name for name in names if len(name) < 100] == ["", "bash", "git", "it's; DROP TABLE runs"]
    assert 200 < max(map(len, names)) <= MAX_ID_CHARS
    for name in (names[-1], "x" * 300):
        assert ords((await store.reads.kv_decisions(run.id, DecisionFilter(tool=name)))[0]) == [6]
    assert await store.reads.kv_tools(run.id, to_ord=2) == ["bash", "git"]
    assert await store.reads.kv_engines(run.id) == ["e", "engine-7", "only samples"]
    many = [decision(n, tool=f"t{n:04}") for n in range(1000)]
    await store.commit(run, batch_of(stamped(many, src="engine-8")))
    assert len(await store.reads.kv_tools(run.id)) == 200
    await store.close()


async def test_hostile_decisions_are_only_numbers_and_names(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", [*hostile_engine_lines(), *random_engine_lines(3, 200)])
    rows = await pages(store.reads, run.id, DecisionFilter(), 3)
    assert rows
    msgspec.json.encode(rows)
    for row in rows:
        assert await store.reads.kv_decision(run.id, row.ord) is not None
        assert row in await pages(store.reads, run.id, DecisionFilter(tool=row.tool, session=row.session), 50)
    assert rows[-1].blocks == 2**63 - 1
    assert rows[-1].outcome is not None
    assert await pages(store.reads, run.id, DecisionFilter(session="' OR 1=1 --"), 10) == []
    await store.close()


async def test_no_page_goes_through_what_it_need_not(tmp_path: Path) -> None:
    """Each filter with an index of its own goes by it, and the order of the page needs no sorting."""
    store, run = await filled(tmp_path / "t.db", stamped([decision(0), outcome(1, 0, regret_s=1.0)]))
    asked: list[str] = []
    async with store.reads._engine.connect() as connection:  # the pool gives this connection out again
        raw = await connection.get_raw_connection()
        await raw.driver_connection.set_trace_callback(asked.append)  # type: ignore[union-attr]
    ways = {
        DecisionFilter(): "SEARCH d USING PRIMARY KEY",
        DecisionFilter(session="s", action="KEEP"): "kv_decisions_session",
        DecisionFilter(tool="t", action="KEEP"): "kv_decisions_tool",
        DecisionFilter(overridden=True, tool="t"): "kv_decisions_overridden",
        DecisionFilter(action="KEEP", engine="e"): "kv_decisions_action",
        DecisionFilter(engine="e"): "kv_decisions_engine",
        DecisionFilter(regret_min_s=1.0, tool="t"): "kv_outcomes_regret",
    }
    for wanted in ways:
        await store.reads.kv_decisions(run.id, wanted)
    await store.close()
    statements = [statement for statement in asked if "kv_decisions d" in statement]
    assert len(statements) == len(ways)
    connection_ = sqlite3.connect(tmp_path / "t.db")
    for statement, way in zip(statements, ways.values(), strict=True):
        plan = [str(row[3]) for row in connection_.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert way in plan[0]
        assert not [step for step in plan if "SCAN" in step or "TEMP B-TREE" in step], plan
    connection_.close()
