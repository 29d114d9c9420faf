"""The stream as a client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.backend import T0_US, Backend, a_session, backend
from tests.support.streaming import connected, frames_until
from tidegate.web import stream as stream_module
from tidegate.web.stream import ordinal
from tidegate_collectors.records import CallStart, Note, SessionStart


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Backend]:
    async with backend(tmp_path) as found:
        yield found


async def test_frames(web: Backend) -> None:
    async with connected(web) as (client, _):
        assert web.state.opened is not None
        assert await client.event() == ("hello", None, {"ord": 1, "run": web.state.opened.run.id})
        assert client.status == 200
        assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert client.headers["cache-control"] == "no-store"
        assert "content-security-policy" in client.headers
        assert "content-length" not in client.headers
        await web.record(*a_session("s1", calls=1))
        frames = await frames_until(client, web.state.state.ord)
    assert {event for event, _, _ in frames} == {"frame"}
    ids = [id_ for _, id_, _ in frames if id_ is not None]
    assert ids == sorted(set(ids))
    for _, id_, data in frames:
        assert set(data) == {
            "ord", "now_us", "sessions", "calls", "hosts", "engines", "spark", "series", "events", "lost",
            "sources",
        }  # fmt: skip
        assert id_ in (None, data["ord"])
    assert frames[-1][2]["sessions"][0]["state"] == "ended"
    events = [event["type"] for _, _, data in frames for event in data["events"]]
    assert events == ["session.start", "call.start", "call.end", "session.end"]


async def test_an_event_does_not_wait_for_the_tick(tmp_path: Path) -> None:
    async with backend(tmp_path, tick_ms=5000) as web, connected(web) as (client, _):
        await client.event()
        await web.record(Note(t=T0_US, text="sets the clock of the tick"))
        await client.event()
        began = asyncio.get_running_loop().time()
        await web.record(SessionStart(t=T0_US, session="s"), CallStart(t=T0_US, session="s", call="c"))
        event, _, data = await client.event()
        assert event == "frame"
        assert [item["type"] for item in data["events"]] == ["session.start", "call.start"]
        assert asyncio.get_running_loop().time() - began < 2.5


@pytest.mark.parametrize("way", ["header", "after"])
async def test_resume(web: Backend, way: str) -> None:
    async with connected(web) as (client, _):
        await client.event()
        for number in range(4):
            await web.record(Note(t=T0_US, text=str(number)))
            await client.event()
        seen = web.state.state.ord - 2
    await web.record(Note(t=T0_US, text="while away"))
    options: dict[str, str] = {"last_event_id": str(seen)} if way == "header" else {"query": f"{way}={seen}"}
    async with connected(web, **options) as (client, _):
        assert (await client.event())[0] == "hello"
        texts = []
        for _, id_, data in await frames_until(client, web.state.state.ord):
            assert id_ is None or id_ > seen
            texts += [event["body"]["text"] for event in data["events"]]
    assert texts == ["2", "3", "while away"]


async def test_header_wins_over_query(web: Backend) -> None:
    async with connected(web, "after=99999", last_event_id=str(web.state.state.ord)) as (client, _):
        assert (await client.event())[0] == "hello"
        await web.record(Note(t=T0_US, text="next"))
        assert (await client.event())[0] == "frame"


@pytest.mark.parametrize("after", ["999999999", "x", "-5", "1e9", "\u0663", "9" * 400])
async def test_unknown_place_is_a_gap(web: Backend, after: str) -> None:
    async with connected(web, f"after={after}") as (client, _):
        assert (await client.event())[0] == "hello"
        event, id_, data = await client.event()
        assert (event, id_) == ("gap", None)
        assert set(data) == {"from_ord", "to_ord"}
        assert data["to_ord"] == web.state.state.ord


async def test_state_then_stream_has_no_hole(web: Backend) -> None:
    ord_ = (await web.json("/api/state"))["ord"]
    await web.record(Note(t=T0_US, text="in between"))
    async with connected(web, f"after={ord_}") as (client, _):
        assert (await client.event())[0] == "hello"
        event, _, data = await client.event()
        assert event == "frame"
        assert [item["body"]["text"] for item in data["events"]] == ["in between"]


async def test_client_that_leaves_is_forgotten(web: Backend) -> None:
    async with connected(web) as (client, task):
        await client.event()
        assert len(web.state.hub.subscribers) == 1
        client.gone.set()
        await asyncio.wait_for(task, 2)
        assert web.state.hub.subscribers == set()


async def test_slow_client_gets_a_gap(web: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.web.hub.QUEUE_FRAMES", 4)
    async with connected(web) as (client, _):
        await client.event()
        client.hold.clear()
        for number in range(12):
            await web.record(Note(t=T0_US, text=str(number)))
            web.state.hub.flush()
            assert all(len(subscriber) <= 4 for subscriber in web.state.hub.subscribers)
        client.hold.set()
        kinds = []
        while "gap" not in kinds:
            kinds.append((await client.event())[0])
        await web.record(Note(t=T0_US, text="after the gap"))
        assert (await client.event())[0] == "frame"


async def test_ping(web: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "PING_S", 0.05)
    async with connected(web) as (client, _):
        await client.event()
        assert await asyncio.wait_for(client.chunks.get(), 2) == b": ping\n\n"


async def test_closing_ends_the_stream_at_once(web: Backend) -> None:
    async with connected(web) as (client, task):
        await client.event()
        web.state.hub.close()
        await asyncio.wait_for(task, 1)
        assert client.ended


async def test_too_many_streams(web: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.web.hub.MAX_SUBSCRIBERS", 1)
    async with connected(web) as (client, _):
        await client.event()
        answer = await web.client.get("/api/stream")
        assert (answer.status_code, answer.json()["status"]) == (503, 503)


async def test_fifty_clients(web: Backend) -> None:
    async def one() -> int:
        async with connected(web) as (client, _):
            await client.event()
            ready.release()
            frames = await frames_until(client, target)
            return sum(len(data["events"]) for _, _, data in frames)

    ready = asyncio.Semaphore(0)
    target = web.state.state.ord + 20
    tasks = [asyncio.create_task(one()) for _ in range(50)]
    for _ in tasks:
        await ready.acquire()
    for number in range(20):
        await web.record(Note(t=T0_US, text=str(number)))
    assert await asyncio.gather(*tasks) == [20] * 50
    assert web.state.hub.subscribers == set()


def test_ordinal() -> None:
    assert [ordinal(text) for text in (None, "", "0", "17", "-1", "x", "\u0661")] == [None, None, 0, 17, -1, -1, -1]
