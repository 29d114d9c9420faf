"""A run at any instant is what folding its records from the start gives, wherever the snapshots are."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench._workload import workload
from tests.backend.fold.test_properties import everything
from tests.support import records as make
from tests.support import stories
from tests.support.stored_runs import Line, folded, lines_of, write_run
from tidegate.fold import fold, views
from tidegate.runs.history import KINDS, History
from tidegate.store import Batch, NewRun, Store, open_store
from tidegate_collectors.records import Action, CallEnd, KvDecision, MemEvent

STORY = lines_of(stories.story(make.T0))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(tmp_path / "t.db")
    yield opened
    await opened.close()


def shown_at(lines: list[Line], at_us: int) -> int:
    """The longest prefix of which no record is later than the instant: the definition, word by word."""
    return next((i for i, (record, _) in enumerate(lines) if record.t > at_us), len(lines))


async def test_states_of_a_story(store: Store) -> None:
    run = await write_run(store, STORY, batch=37, every=100)
    history = History(store, run)
    times = sorted({record.t for record, _ in STORY})
    for at_us in [times[0] - 1, *times[::20], times[-1], times[-1] + 10**9]:
        state = await history.state_at(at_us)
        ord_ = shown_at(STORY, at_us)
        assert (state.ord, await history.ord_at(at_us)) == (ord_, ord_)
        assert everything(state) == everything(folded(STORY, ord_))
    assert await history.extent() == (STORY[0][0].t, times[-1])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(make.any_records(), min_size=1, max_size=80), st.integers(1, 30), st.integers(1, 30), st.data()
)  # fmt: skip
def test_any_records_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, stream: list[Any], batch: int, every: int, data: st.DataObject
) -> None:
    lines = lines_of(stream)
    instants = data.draw(st.lists(st.sampled_from([record.t for record in stream]), max_size=6))

    async def check() -> None:
        opened = await open_store(tmp_path_factory.mktemp("history") / "t.db")
        try:
            history = History(opened, await write_run(opened, lines, batch=batch, every=every))
            for at_us in itertools.chain.from_iterable((t - 1, t, t + 50_000) for t in instants):
                state = await history.state_at(at_us)
                assert state.ord == shown_at(lines, at_us)
                assert everything(state) == everything(folded(lines, state.ord))
            for ord_ in range(1, len(lines) + 1):
                at_us = await history.at_of(ord_)
                assert await history.ord_at(at_us) >= ord_ > await history.ord_at(at_us - 1)
        finally:
            await opened.close()

    asyncio.run(check())


async def test_each_state_is_the_callers_own(store: Store) -> None:
    run = await write_run(store, STORY, every=100)
    history = History(store, run)
    at_us = make.T0 + 10_000_000
    first, second = await asyncio.gather(history.state_at(at_us), history.state_at(at_us))
    before = everything(second)
    async for records in history.records(first.ord + 1, run.last_ord):
        fold(first, records)
    assert everything(second) == before != everything(first)


async def test_a_tracked_state_tells_what_comes_after_it(store: Store) -> None:
    run = await write_run(store, STORY, every=100)
    history = History(store, run)
    state = await history.state_at(make.T0 + 5_000_000, track=True)
    assert not state.changes()
    start = folded(STORY, state.ord)
    start.follow()
    async for records in history.records(state.ord + 1, run.last_ord):
        fold(state, records)
        fold(start, records)
        frames = [make.plain(views.frame_view(each, each.changes(), now_us=0)) for each in (state, start)]
        assert frames[0] == frames[1]
        assert frames[0]["sessions"]


async def test_a_run_that_is_being_written_grows(store: Store) -> None:
    lines = list(workload(3000, sessions=10))
    run = await store.create_run(NewRun(id="live", started_us=lines[0][0].t))
    history = History(store, run)
    assert await history.extent() == (run.started_us, run.started_us)
    assert await history.ord_at(1 << 60) == 0
    for start in range(0, 3000, 130):  # small batches: the last chunk is written again and again
        part = lines[start : start + 130]
        await store.commit(run, Batch([record for record, _ in part], [line for _, line in part]))
        at_us = max(record.t for record, _ in lines[: start + len(part)])
        assert await history.extent() == (lines[0][0].t, at_us)
        middle = (lines[0][0].t + at_us) // 2
        done = lines[: start + len(part)]
        assert await history.ord_at(middle) == shown_at(done, middle)
        assert (await history.state_at(at_us)).ord == len(done)
    assert everything(await history.state_at(at_us)) == everything(folded(lines, 3000))


async def test_reading_while_it_is_written(store: Store) -> None:
    lines = list(workload(1500, sessions=10))
    run = await store.create_run(NewRun(id="live", started_us=lines[0][0].t))
    history = History(store, run)

    async def write() -> None:
        for start in range(0, 1500, 50):
            part = lines[start : start + 50]
            await store.commit(run, Batch([record for record, _ in part], [line for _, line in part]))

    async def look() -> None:
        while not writing.done():
            _, end_us = await history.extent()
            ord_ = await history.ord_at(end_us)
            found = [ordinal async for records in history.records(1, ord_) for ordinal, _ in records]
            assert found == list(range(1, ord_ + 1))
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    await asyncio.gather(writing, *(look() for _ in range(4)))


# --- steps -----------------------------------------------------------------------------------------------------------


def eventful() -> list[Line]:
    """Events of all kinds, some at one instant, one that comes late, one that only looks like an OOM."""
    decision: dict[str, Any] = {"boundary": "call", "action": "keep", "enforced": False}
    return lines_of([
        make.session_start(0), make.call_start(1, "c1"), make.burst(2, 300, 400, "c1"),
        MemEvent(t=make.at(3), session="s", call="c1", high=4),
        make.mem(4, 10, call="c1"),
        MemEvent(t=make.at(4), session="s", call="c1", oom=1, oom_kill=1), make.burst(4, 100, 500, "c1"),
        CallEnd(t=make.at(5), session="s", call="c1", oom=True),
        make.burst(3.5, 200, 300, "late"),
        Action(t=make.at(6), session="s", plane="kernel", verb="freeze", target="c1", enforced=True),
        KvDecision(t=make.at(7), session="s2", **decision), make.call_start(7, "c1", "s2"),
        make.mem(9, 10),
    ])  # fmt: skip


async def walk(history: History, *, forward: bool, **options: Any) -> list[tuple[str, int]]:
    """(type, second) of each stop from one end of the run to the other."""
    start_us, end_us = await history.extent()
    at_us, stops = (start_us - 1, []) if forward else (end_us + 1, [])
    while (event := await history.step(at_us, forward=forward, **options)) is not None:
        where = await history.at_of(event.ord)
        assert where > at_us if forward else where < at_us
        assert await history.ord_at(where) >= event.ord
        at_us = where
        stops.append((event.type, (where - make.T0) // 1_000_000))
    return stops


async def test_steps_stop_once_at_each_instant_that_shows_an_event(store: Store) -> None:
    history = History(store, await write_run(store, eventful(), batch=3))
    assert await walk(history, forward=True) == [
        ("call.start", 1), ("mem.burst", 2), ("mem.event", 4), ("mem.burst", 5), ("action", 6), ("kv.decision", 7)
    ]  # fmt: skip
    assert await walk(history, forward=False) == [
        ("call.start", 7), ("action", 6), ("mem.burst", 5), ("mem.burst", 4), ("mem.burst", 2), ("call.start", 1)
    ]  # fmt: skip


async def test_steps_to_one_kind_or_session(store: Store) -> None:
    history = History(store, await write_run(store, eventful(), batch=100))
    for forward in (True, False):
        order = 1 if forward else -1
        options: dict[str, Any] = {"forward": forward}
        assert await walk(history, kinds=frozenset({"oom"}), **options) == [("mem.event", 4)]
        assert await walk(history, kinds=frozenset({"burst"}), **options) == [
            ("mem.burst", 2), ("mem.burst", 4), ("mem.burst", 5)
        ][::order]  # fmt: skip
        assert await walk(history, session="s2", kinds=KINDS, **options) in (
            [("kv.decision", 7)], [("call.start", 7)]
        )  # fmt: skip
        assert await walk(history, session="s", kinds=frozenset({"oom", "call"}), **options) == [
            ("call.start", 1), ("mem.event", 4)
        ][::order]  # fmt: skip
        assert await walk(history, kinds=frozenset(), **options) == []
        assert await walk(history, session="nobody", **options) == []
