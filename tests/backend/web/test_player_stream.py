"""A stream that plays: how many there may be, and that each ends when it should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.backend import Backend, a_session, backend, write_recording
from tests.support.importing import read_here
from tests.support.streaming import connected
from tidegate.errors import StoreError
from tidegate.runs import player as player_module
from tidegate.web import player_stream


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Backend]:
    async with backend(tmp_path) as found:
        assert found.state.opened is not None
        # Long enough that no test sees its end by chance.
        await found.record(*a_session("s1", t_us=found.state.opened.run.started_us + 1_000, calls=60))
        yield found


def start(web: Backend) -> int:
    assert web.state.opened is not None
    return web.state.opened.run.started_us


def playing(web: Backend) -> int:
    return len(web.app.state.players)


async def test_it_begins_where_it_is_asked_to(web: Backend) -> None:
    assert web.state.opened is not None
    at_us = start(web) + 1_200_000
    async with connected(web, f"at={at_us}&speed=8") as (client, _):
        event, id_, data = await client.event()
        assert (event, id_) == ("hello", None)
        assert set(data) == {"run", "at_us", "speed", "start_us", "end_us"}
        assert (data["run"], data["at_us"], data["speed"]) == (web.state.opened.run.id, at_us, 8)
        last_us = at_us
        for _ in range(5):
            event, id_, data = await client.event()
            assert (event, id_) == ("frame", data["now_us"])
            assert data["now_us"] > last_us
            last_us = data["now_us"]
            assert data["sources"]
            assert all(not source["connected"] for source in data["sources"])
        assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert client.headers["cache-control"] == "no-store"
        assert playing(web) == 1
        assert (await web.json("/api/status"))["stream"]["players"] == 1
        assert len(web.state.hub.subscribers) == 0


async def test_client_that_leaves_is_forgotten(web: Backend) -> None:
    async with connected(web, f"at={start(web)}") as (client, task):
        await client.event()
        assert playing(web) == 1
        client.gone.set()
        await asyncio.wait_for(task, 2)
        assert playing(web) == 0


async def test_there_may_be_so_many(web: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player_stream, "MAX_PLAYERS", 2)
    query = f"at={start(web)}"
    async with connected(web, query) as (one, _), connected(web, query) as (two, _):
        await one.event()
        await two.event()
        answer = await web.client.get(f"/api/stream?{query}")
        assert (answer.status_code, answer.json()["status"]) == (503, 503)
        assert "close some tabs" in answer.json()["error"]
        # The live stream is another thing.
        async with connected(web) as (live, _):
            assert (await live.event())[0] == "hello"
    assert playing(web) == 0
    async with connected(web, query) as (client, _):
        assert (await client.event())[0] == "hello"


async def test_closing_ends_it_at_once(web: Backend) -> None:
    async with connected(web, f"at={start(web)}") as (client, task):
        await client.event()
        web.state.hub.close()
        await asyncio.wait_for(task, 1)
        assert playing(web) == 0
        assert client.ended  # and is not cut off


async def test_at_the_end_it_ends(web: Backend) -> None:
    end_us = (await web.json("/api/state"))["playhead"]["end_us"]
    async with connected(web, f"at={end_us + 60_000_000}") as (client, task):
        assert (await client.event())[0] == "hello"
        while (event := await client.event())[0] != "end":
            assert event[0] == "frame"
        assert set(event[2]) == {"at_us"}
        await asyncio.wait_for(task, 2)
        assert client.ended


async def test_a_run_that_goes_away_is_told(web: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_args: object) -> AsyncIterator[None]:
        raise StoreError("the file is gone")
        yield

    monkeypatch.setattr(player_module.Player, "__aiter__", broken)
    async with connected(web, f"at={start(web)}") as (client, task):
        assert (await client.event())[0] == "hello"
        assert await client.event() == ("failed", None, {"error": "the file is gone"})
        await asyncio.wait_for(task, 2)
        assert playing(web) == 0


async def test_a_run_that_is_deleted_while_it_is_played_is_told_without_a_path(
    web: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = web.state.library
    assert library is not None
    source = write_recording(library.directory.parent / "r.jsonl", a_session("s1", calls=60))
    done = await read_here(source, library.directory)

    async def deleted_meanwhile(player: player_module.Player) -> AsyncIterator[None]:
        await library.delete(done.run_id)
        await player._history.store.reads.runs()  # any read: the file was closed
        yield

    monkeypatch.setattr(player_module.Player, "__aiter__", deleted_meanwhile)
    async with connected(web, f"run={done.run_id}&at=0") as (client, task):
        assert (await client.event())[0] == "hello"
        assert await client.event() == ("failed", None, {"error": "the run was deleted"})
        await asyncio.wait_for(task, 5)


async def test_a_comeback_goes_on_from_the_last_frame(web: Backend) -> None:
    at_us = start(web)
    async with connected(web, f"at={at_us}", last_event_id=str(at_us + 9_000_000)) as (client, _):
        event, _, data = await client.event()
        assert (event, data["at_us"]) == ("hello", at_us + 9_000_000)
    # One from before the position, or of nonsense, is none of this player.
    for odd in (str(at_us - 5), "x", "-1"):
        async with connected(web, f"at={at_us}", last_event_id=odd) as (client, _):
            assert (await client.event())[2]["at_us"] == at_us
