"""Every committed record is folded once and in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from bench._workload import workload
from tests.backend.fold.test_properties import everything
from tests.support.backend import T0_US, a_session
from tests.support.databases import table_rows
from tests.support.stored_runs import Line, folded
from tidegate.errors import StoreError
from tidegate.fold import State, apply, fold, snapshot, views
from tidegate.store import AnyLine, Batch, CommittedBatch, NewRun, Run, Store, StoreFullError, open_store, snapshots
from tidegate.web import feed as feed_module
from tidegate.web.feed import MAX_WAITING, Feed
from tidegate_collectors.records import Note, SessionStart

Numbered = list[tuple[int, AnyLine]]


def numbered(count: int) -> Numbered:
    records = [record for number in range(1 + count // 42) for record in a_session(f"s{number}")]
    return list(enumerate(cast("list[AnyLine]", records[:count]), 1))


async def stored(records: Numbered, size: int = 100) -> AsyncIterator[Numbered]:
    for start in range(0, len(records), size):
        yield records[start : start + size]
        await asyncio.sleep(0)


def batches(records: Numbered, size: int) -> list[CommittedBatch]:
    return [CommittedBatch(records[i][0], records[i : i + size]) for i in range(0, len(records), size)]


def shown(state: State) -> object:
    return views.state_view(state, now_us=0)


@pytest.fixture
def ords(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ordinals in the order in which they were folded."""
    seen: list[int] = []
    real = apply

    def counted(state: State, ordinal: int, record: AnyLine) -> None:
        seen.append(ordinal)
        real(state, ordinal, record)

    monkeypatch.setattr(feed_module, "apply", counted)
    return seen


@pytest.mark.parametrize("size", [1, 7, 600, 5000])
async def test_live_batches_in_order(ords: list[int], size: int) -> None:
    records = numbered(3000)
    notices: list[bool] = []
    feed = Feed(State(), notices.append)
    await feed.load(stored(records[:1000]))
    for batch in batches(records[1000:], size):
        feed.on_commit(batch)
        assert feed.waiting <= (MAX_WAITING + 1) * max(size, feed_module.SLICE)
        await asyncio.sleep(0)
    await feed.close()
    assert ords == list(range(1, 3001))
    assert notices
    assert shown(feed.state) == shown(fold(State(), records))


async def test_batches_committed_while_loading_wait(ords: list[int]) -> None:
    records = numbered(2000)
    feed = Feed(State(), lambda urgent: None)
    loading = asyncio.create_task(feed.load(stored(records[:1500], 50)))
    await asyncio.sleep(0)
    for batch in batches(records[1500:], 10):
        feed.on_commit(batch)
    assert len(ords) < 1500
    await loading
    await feed.close()
    assert ords == list(range(1, 2001))


async def test_a_record_that_comes_twice_is_folded_once(ords: list[int]) -> None:
    records = numbered(500)
    feed = Feed(State(), lambda urgent: None)
    await feed.load(stored(records[:400]))
    feed.on_commit(CommittedBatch(301, records[300:]))
    await feed.close()
    assert ords == list(range(1, 501))


async def test_a_flood_is_folded_before_more_is_taken(ords: list[int]) -> None:
    records = numbered(4000)
    feed = Feed(State(), lambda urgent: None)
    await feed.load(stored([]))
    for batch in batches(records, 100):  # without giving the event loop a turn
        feed.on_commit(batch)
        assert feed.waiting <= MAX_WAITING * 100
    await feed.close()
    assert ords == list(range(1, 4001))


async def test_loop_gets_its_turn(ords: list[int]) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    feed = Feed(State(), lambda urgent: None)
    await feed.load(stored([]))
    counter = asyncio.create_task(count())
    feed.on_commit(CommittedBatch(1, numbered(8192)))
    await feed.close()
    counter.cancel()
    assert turns >= 8192 // feed_module.SLICE


async def test_loading_is_no_news_and_urgency_is_told() -> None:
    notices: list[bool] = []
    feed = Feed(State(), notices.append)
    await feed.load(stored(numbered(50)))
    assert not feed.state.changes()
    assert notices == []
    feed.on_commit(CommittedBatch(51, [(51, Note(t=T0_US, text="calm"))]))
    feed.on_commit(CommittedBatch(52, [(52, SessionStart(t=T0_US, session="urgent"))]))
    await feed.close()
    assert notices == [False, True]


async def test_what_is_committed_during_a_long_load_is_kept_only_in_part(
    ords: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MAX_HELD", 300)
    records = numbered(2000)
    feed = Feed(State(), lambda urgent: None)
    committed = 1000

    async def past() -> AsyncIterator[Numbered]:
        nonlocal committed
        while (done := feed.state.ord) < committed:
            yield records[done : min(done + 100, committed)]
            if committed < 2000:
                feed.on_commit(CommittedBatch(committed + 1, records[committed : committed + 100]))
                committed += 100
            assert feed.waiting <= 300

    await feed.load(past())
    await feed.close()
    assert ords == list(range(1, 2001))


# --- snapshots -------------------------------------------------------------------------------------------------------

LINES = list(workload(5000, sessions=12))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(tmp_path / "t.db")
    yield opened
    await opened.close()


async def commit(store: Store, run: Run, feed: Feed, lines: list[Line]) -> None:
    for start in range(0, len(lines), 200):
        part = lines[start : start + 200]
        feed.on_commit(await store.commit(run, Batch([record for record, _ in part], [line for _, line in part])))
        await asyncio.sleep(0)


def saved(store: Store) -> list[int]:
    return sorted(row[1] for row in table_rows(store.path, "snapshots"))


async def test_a_start_folds_only_what_came_after_the_last_snapshot(store: Store, ords: list[int]) -> None:
    run = await store.create_run(NewRun(id="r", started_us=T0_US))
    first = Feed(State(), lambda urgent: None)
    await first.keep(store, run, every=1000)
    await first.load(stored([]))
    await commit(store, run, first, LINES[:4200])
    async with asyncio.timeout(10):
        while first.waiting or not saved(store):  # noqa: ASYNC110 - it is saved beside everything else
            await asyncio.sleep(0.02)
    # And here it is killed: nobody closes it.
    ords.clear()
    second = Feed(State(), lambda urgent: None)
    await second.keep(store, run, every=1000)
    begun = second.state.ord
    assert begun >= 1000 and begun in saved(store)
    await second.load(store.reads.records(run.id, from_ord=begun + 1))
    assert ords == list(range(begun + 1, 4201))
    await commit(store, run, second, LINES[4200:])
    await second.close()
    assert everything(second.state) == everything(folded(LINES, len(LINES)))
    assert saved(store)[-1] == len(LINES)  # the last one is of the end


async def test_closing_without_anything_new_saves_nothing(store: Store) -> None:
    run = await store.create_run(NewRun(id="r", started_us=T0_US))
    feed = Feed(State(), lambda urgent: None)
    await feed.keep(store, run)
    await feed.load(stored([]))
    await feed.close()
    assert saved(store) == []


async def test_snapshots_of_another_version_are_replaced(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await store.create_run(NewRun(id="r", started_us=T0_US))
    feed = Feed(State(), lambda urgent: None)
    await feed.keep(store, run, every=500)
    await feed.load(stored([]))
    await commit(store, run, feed, LINES[:1000])
    await feed.close()
    monkeypatch.setattr(snapshot, "VERSION", snapshot.VERSION + 1)
    again = Feed(State(), lambda urgent: None)
    await again.keep(store, run)
    assert again.state.ord == 0
    assert saved(store) == []
    await again.load(store.reads.records(run.id))
    await again.close()
    assert saved(store) == [1000]
    assert everything(again.state) == everything(folded(LINES, 1000))


@pytest.mark.parametrize("error", [StoreFullError("the disk is full"), RuntimeError("a defect")])
async def test_a_snapshot_that_cannot_be_saved_is_tried_again_and_harms_nobody(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(feed_module, "RETRY_S", 0.05)
    failures = 2
    real = snapshots.save

    async def save(target: Store, rows: snapshots.SnapshotRows) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise error
        await real(target, rows)

    monkeypatch.setattr(snapshots, "save", save)
    run = await store.create_run(NewRun(id="r", started_us=T0_US))
    feed = Feed(State(), lambda urgent: None)
    await feed.keep(store, run, every=300)
    await feed.load(stored([]))
    with caplog.at_level(logging.WARNING):
        for start in range(0, 5000, 1000):
            await commit(store, run, feed, LINES[start : start + 1000])
            await asyncio.sleep(0.1)
    await feed.close()
    told = [record for record in caplog.records if record.name == feed_module.__name__]
    assert len(told) == (1 if isinstance(error, StoreError) else 2)
    assert failures == 0
    found = State(track=False)
    assert await snapshots.load(store, run, found)
    assert everything(found) == everything(feed.state) == everything(folded(LINES, 5000))
