"""One frame for all, resuming, gaps and bounded memory."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tidegate.web import hub as hub_module
from tidegate.web.hub import QUEUE_BYTES, QUEUE_FRAMES, RING_BYTES, RING_S, Hub, News


class Source:
    """Counts up; each record is one change."""

    run = "r1"

    def __init__(self) -> None:
        self.ord = 0
        self.told = 0
        self.built = 0
        self.forgotten = 0
        self.aside = False
        self.overflow = False
        self.padding = ""

    def news(self) -> News | None:
        if self.ord == self.told and not self.aside:
            return None
        self.aside = False
        self.told = self.ord
        self.built += 1
        if self.overflow:
            self.overflow = False
            return News(self.ord, None)
        return News(self.ord, json.dumps({"ord": self.ord, "padding": self.padding}).encode())

    def forget(self) -> None:
        self.told = self.ord
        self.forgotten += 1


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def parse(data: bytes) -> list[tuple[str, int | None, Any]]:
    """(event, id, data) of each event."""
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields["event"], int(fields["id"]) if "id" in fields else None, json.loads(fields["data"])))
    return found


async def read(subscriber: hub_module.Subscriber) -> list[tuple[str, int | None, Any]]:
    data = await subscriber.read(0.01)
    assert data is not None
    return parse(data)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(source: Source, clock: Clock) -> Hub:
    return Hub(source, 0.1, clock)


def step(hub: Hub, source: Source, clock: Clock, seconds: float = 0.1) -> None:
    source.ord += 1
    clock.now += seconds
    hub.flush()


async def test_frame_is_built_once_for_all(hub: Hub, source: Source, clock: Clock) -> None:
    subscribers = [hub.subscribe() for _ in range(50)]
    step(hub, source, clock)
    answers = [await subscriber.read(0.01) for subscriber in subscribers]
    assert source.built == 1
    assert len(set(answers)) == 1
    assert [(event, id_) for event, id_, _ in parse(answers[0] or b"")] == [("hello", None), ("frame", 1)]


async def test_hello_names_run_and_ord(hub: Hub, source: Source) -> None:
    source.ord = 7
    assert await read(hub.subscribe()) == [("hello", None, {"ord": 7, "run": "r1"})]


async def test_resume_gives_the_missed_frames(hub: Hub, source: Source, clock: Clock) -> None:
    first = hub.subscribe()
    for _ in range(5):
        step(hub, source, clock)
    hub.unsubscribe(first)
    step(hub, source, clock)  # nobody listens, but somebody may come back
    events = await read(hub.subscribe(after=3))
    assert [(event, id_) for event, id_, _ in events] == [("hello", None), ("frame", 4), ("frame", 5), ("frame", 6)]


async def test_resume_at_the_newest_gives_nothing(hub: Hub, source: Source, clock: Clock) -> None:
    hub.subscribe()
    step(hub, source, clock)
    assert [event for event, _, _ in await read(hub.subscribe(after=1))] == ["hello"]


async def test_change_that_was_not_yet_sent_is_not_missed_by_a_newcomer(hub: Hub, source: Source, clock: Clock) -> None:
    hub.subscribe()
    step(hub, source, clock)
    source.ord += 1  # folded, but its frame is not out
    events = await read(hub.subscribe(after=1))
    assert [(event, id_) for event, id_, _ in events] == [("hello", None), ("frame", 2)]
    assert events[0][2]["ord"] == 2


@pytest.mark.parametrize("after", [-1, 0, 2, 99])
async def test_resume_from_the_unknown_is_a_gap(hub: Hub, source: Source, clock: Clock, after: int) -> None:
    source.ord = 3
    hub.subscribe()
    step(hub, source, clock)
    events = await read(hub.subscribe(after=after))
    assert [event for event, _, _ in events] == ["hello", "gap"]
    assert events[1][2]["to_ord"] == 4
    assert 0 <= events[1][2]["from_ord"] <= 4


async def test_ring_forgets_by_age(hub: Hub, source: Source, clock: Clock) -> None:
    hub.subscribe()
    step(hub, source, clock)
    step(hub, source, clock, RING_S + 1)
    assert [event for event, _, _ in await read(hub.subscribe(after=0))] == ["hello", "gap"]
    assert [event for event, _, _ in await read(hub.subscribe(after=1))] == ["hello", "frame"]


async def test_ring_is_bounded_in_bytes(hub: Hub, source: Source, clock: Clock) -> None:
    hub.subscribe()
    source.padding = "x" * 500_000
    for _ in range(20):
        step(hub, source, clock, 0.001)
    assert sum(len(frame.data) for frame in hub._ring) <= RING_BYTES
    assert [event for event, _, _ in await read(hub.subscribe(after=2))] == ["hello", "gap"]


async def test_slow_reader_gets_a_gap_and_keeps_no_memory(hub: Hub, source: Source, clock: Clock) -> None:
    slow, quick = hub.subscribe(), hub.subscribe()
    await read(slow)
    for _ in range(10):
        step(hub, source, clock)
    await read(slow)  # has seen 10
    seen = 0
    for _ in range(10 * QUEUE_FRAMES):
        step(hub, source, clock)
        seen += sum(event == "frame" for event, _, _ in await read(quick))
        assert len(slow) <= QUEUE_FRAMES
    assert len(slow) == 0
    assert seen == 10 + 10 * QUEUE_FRAMES
    assert hub.dropped_frames == 9 * QUEUE_FRAMES
    assert await read(slow) == [("gap", None, {"from_ord": 10, "to_ord": source.ord})]
    step(hub, source, clock)
    assert [(event, id_) for event, id_, _ in await read(slow)] == [("frame", source.ord)]


async def test_slow_reader_of_large_frames_is_bounded_in_bytes(hub: Hub, source: Source, clock: Clock) -> None:
    slow = hub.subscribe()
    source.padding = "x" * 300_000
    for _ in range(8):
        step(hub, source, clock)
        assert slow._bytes <= hub_module.QUEUE_BYTES
    assert [event for event, _, _ in await read(slow)] == ["gap"]


async def test_more_changes_than_the_source_kept_is_a_gap_for_all(hub: Hub, source: Source, clock: Clock) -> None:
    subscriber = hub.subscribe()
    step(hub, source, clock)
    await read(subscriber)
    source.overflow = True
    step(hub, source, clock)
    assert await read(subscriber) == [("gap", None, {"from_ord": 1, "to_ord": 2})]
    assert [event for event, _, _ in await read(hub.subscribe(after=1))] == ["hello", "gap"]


async def test_frame_without_a_record_has_no_id(hub: Hub, source: Source, clock: Clock) -> None:
    subscriber = hub.subscribe()
    step(hub, source, clock)
    source.aside = True
    hub.flush()
    events = await read(subscriber)
    assert [(event, id_, data["ord"]) for event, id_, data in events[1:]] == [("frame", 1, 1), ("frame", None, 1)]


async def test_nothing_is_built_while_nobody_listens(hub: Hub, source: Source, clock: Clock) -> None:
    source.ord += 1
    hub.notify()
    assert hub._timer is None
    subscriber = hub.subscribe()
    hub.unsubscribe(subscriber)
    clock.now += RING_S + 1
    source.ord += 1
    hub.notify(urgent=True)
    assert hub._timer is None
    assert source.built == 0
    # and what was not told is no news for the next one, who fetches the state
    assert [event for event, _, _ in await read(hub.subscribe(after=2))] == ["hello"]


async def test_who_fetches_the_state_misses_nothing_until_it_follows(hub: Hub, source: Source, clock: Clock) -> None:
    source.ord = 5
    assert hub.wake()
    step(hub, source, clock)
    events = await read(hub.subscribe(after=5))
    assert [(event, id_) for event, id_, _ in events] == [("hello", None), ("frame", 6)]


async def test_ticks_and_urgent_frames() -> None:
    source = Source()
    loop = asyncio.get_running_loop()
    hub = Hub(source, 0.2)
    subscriber = hub.subscribe()
    await read(subscriber)
    began = loop.time()
    for _ in range(40):
        source.ord += 1
        hub.notify()
        await asyncio.sleep(0.01)
    elapsed = loop.time() - began
    assert 1 <= source.built <= elapsed / 0.2 + 2
    # an urgent one does not wait for the tick
    hub.flush()
    await subscriber.read(0)
    source.ord += 1
    hub.notify()
    began = loop.time()
    hub.notify(urgent=True)
    await subscriber.read(1.0)
    assert 0.01 <= loop.time() - began < 0.15
    hub.close()


async def test_close_ends_all_streams_and_late_ones(hub: Hub) -> None:
    waiting = hub.subscribe()
    await waiting.read(0.01)
    task = asyncio.create_task(waiting.read(60))
    await asyncio.sleep(0)
    hub.close()
    assert await asyncio.wait_for(task, 1) is None
    late = hub.subscribe()
    assert await late.read(60) is None


async def test_ping_time(hub: Hub) -> None:
    subscriber = hub.subscribe()
    await subscriber.read(0.01)
    assert await subscriber.read(0.01) == b""


def test_event_has_no_line_break_in_its_data() -> None:
    data = hub_module.sse("frame", b'{"a":"\\n"}', 3)
    assert re.fullmatch(rb"event: frame\nid: 3\ndata: [^\n]*\n\n", data)


async def test_one_who_missed_more_than_may_be_queued_hears_hello_and_a_gap(
    hub: Hub, source: Source, clock: Clock
) -> None:
    first = hub.subscribe()
    source.padding = "x" * (QUEUE_BYTES // 4)
    for _ in range(6):
        step(hub, source, clock, 0.01)
        await read(first)
    events = await read(hub.subscribe(after=1))
    assert [event for event, _, _ in events] == ["hello", "gap"]
    assert events[1][2] == {"from_ord": 1, "to_ord": 6}
