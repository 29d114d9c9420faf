"""Every committed record is folded once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from tests.support.backend import T0_US, a_session
from tidegate.fold import State, apply, fold, views
from tidegate.store import AnyLine, CommittedBatch
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
