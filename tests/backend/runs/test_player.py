"""A player shows a run at the speed that was asked for, says where it truly is, and ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench._workload import workload
from tests.backend.fold.test_properties import everything
from tests.support import records as make
from tests.support import stories
from tests.support.stored_runs import folded, lines_of, write_run
from tidegate.fold import apply
from tidegate.runs import player as player_module
from tidegate.runs.history import History
from tidegate.runs.player import Player
from tidegate.store import Batch, NewRun, Store, open_store

STORY = lines_of(stories.story(make.T0))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(tmp_path / "t.db")
    yield opened
    await opened.close()


async def story(store: Store) -> History:
    return History(store, await write_run(store, STORY, every=200))


async def test_it_plays_to_the_end_and_the_frames_add_up(store: Store) -> None:
    history = await story(store)
    start_us, end_us = await history.extent()
    player = Player(history, start_us + 2_000_000, 64, tick_s=0.02)
    frames = [frame async for frame in player]
    assert player.state is not None
    assert everything(player.state) == everything(folded(STORY, len(STORY)))
    positions = [frame["now_us"] for frame in frames]
    assert positions == sorted(positions)
    assert start_us + 2_000_000 < positions[0] < positions[-1] == end_us
    # Every point and event after the beginning is told, once.
    first_ord = await history.ord_at(start_us + 2_000_000)
    expected = folded(STORY, first_ord)
    expected.follow()
    for ord_, (record, _) in enumerate(STORY[first_ord:], first_ord + 1):
        apply(expected, ord_, record)
    changes = expected.changes()
    assert [event.ord for frame in frames for event in frame["events"]] == [event.ord for event in changes.events]
    told = {name for frame in frames for name in frame["series"]}
    assert told == set(changes.series)
    for name, points in changes.series.items():
        mem = {t: (runtime, calls) for frame in frames for t, runtime, calls in frame["series"].get(name, _NONE)["mem"]}
        assert mem == {t: (runtime, calls) for t, runtime, calls in points.mem}


_NONE: dict[str, list[Any]] = {"mem": [], "wait": []}


async def test_each_frame_is_of_its_instant(store: Store) -> None:
    history = await story(store)
    start_us, _ = await history.extent()
    player = Player(history, start_us, 32, tick_s=0.05)
    count = 0
    async for frame in player:
        assert player.state is not None
        assert player.state.ord == frame["ord"] == await history.ord_at(frame["now_us"])
        count += 1
        if count == 8:
            break


@pytest.mark.parametrize("speed", [0.25, 4, 64])
async def test_speed(store: Store, speed: float) -> None:
    history = await story(store)
    start_us, _ = await history.extent()
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", clock.sleep)
        seen = []
        async for frame in Player(history, start_us, speed, clock=clock):
            seen.append((frame["now_us"] - start_us, clock.now))
            if len(seen) == 3:
                break
    for position_us, seconds in seen:
        assert position_us == pytest.approx(seconds * 1e6 * speed, abs=2)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleep = asyncio.sleep

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await self._sleep(0)


async def test_it_says_where_it_is_when_it_cannot_keep_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player_module, "_BUSY_S", 0.0)  # a host that has no time for more than one piece a tick
    lines = list(workload(8000, sessions=40))
    history = History(store, await write_run(store, lines, every=4096))
    start_us, _ = await history.extent()
    player = Player(history, start_us, 64, tick_s=0.01)
    positions = []
    async for frame in player:
        assert frame["ord"] == await history.ord_at(frame["now_us"]) or frame["now_us"] == player.state.last_t_us  # type: ignore[union-attr]
        positions.append(frame["now_us"])
        if len(positions) == 10:
            break
    assert positions == sorted(positions)
    # 256 records a tick are some 0.2 s of this run: far less than the 0.64 s that were asked for.
    assert positions[-1] - start_us < 10 * 0.01 * 64 * 1_000_000 / 2


async def test_others_get_their_turn(store: Store) -> None:
    lines = list(workload(20_000, sessions=64))
    history = History(store, await write_run(store, lines))
    start_us, _ = await history.extent()
    longest, before = 0.0, time.perf_counter()

    async def watch() -> None:
        nonlocal longest, before
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, before = max(longest, now - before), now

    watching = asyncio.create_task(watch())
    frames = [frame async for frame in Player(history, start_us, 64, tick_s=0.05)]
    watching.cancel()
    assert frames[-1]["ord"] == len(lines)
    assert longest < 0.5  # a tenth of what folding it in one piece takes on a slow host


async def test_a_live_run_is_played_to_what_is_committed(store: Store) -> None:
    lines = list(workload(2000, sessions=10))
    run = await store.create_run(NewRun(id="live", started_us=lines[0][0].t))

    async def commit(start: int, end: int) -> None:
        part = lines[start:end]
        await store.commit(run, Batch([record for record, _ in part], [line for _, line in part]))

    await commit(0, 1000)
    history = History(store, run)
    start_us, _ = await history.extent()
    frames = aiter(Player(history, start_us, 32, tick_s=0.02))
    await anext(frames)
    await commit(1000, 1900)
    rest = [frame async for frame in frames]
    assert rest[-1]["ord"] == 1900
    assert rest[-1]["now_us"] == (await history.extent())[1]


async def test_it_can_be_cancelled(store: Store) -> None:
    history = await story(store)
    start_us, _ = await history.extent()
    third = asyncio.Event()

    async def play() -> None:
        count = 0
        async for _ in Player(history, start_us, 1, tick_s=0.01):
            count += 1
            if count == 3:
                third.set()

    playing = asyncio.create_task(play())
    async with asyncio.timeout(10):
        await third.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert await history.ord_at(start_us) > 0  # nothing is left locked


async def test_from_the_end_it_ends_at_once(store: Store) -> None:
    history = await story(store)
    _, end_us = await history.extent()
    for at_us in (end_us, end_us + 5_000_000):
        frames = [frame async for frame in Player(history, at_us, 1, tick_s=0.01)]
        assert [frame["now_us"] for frame in frames] == [at_us]
        assert not frames[0]["sessions"]
