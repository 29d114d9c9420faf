"""Which run and which instant a request is about; the live run wound back while it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.support.backend import T0_US, Backend, a_session, backend
from tests.support.folding import Numbered, as_json, folded, prefix_at
from tidegate.errors import StoreError
from tidegate.fold import State, views
from tidegate.web.errors import Refusal
from tidegate.web.shown import MAX_AT_US, Shown, instant
from tidegate.web.states import States
from tidegate_collectors.records import CallStart, Loss, MemEvent, Note, SessionStart


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Backend]:
    async with backend(tmp_path) as found:
        yield found


async def records_of(web: Backend) -> list[Numbered]:
    assert web.state.opened is not None
    reads, run = web.state.opened.store.reads, web.state.opened.run
    return [numbered async for batch in reads.records(run.id) for numbered in batch]


async def at(web: Backend, at_us: int | None, run: str | None = None) -> Shown:
    async with contextlib.AsyncExitStack() as stack:
        shown: Shown = await web.app.state.positions.at(run, at_us, stack)
        return shown
    raise AssertionError


def session_views(state: State) -> Any:
    return as_json([views.session_view(session) for session in state.sessions.values()])


# --- the live run ------------------------------------------------------------------------------------------------


async def test_without_a_position_the_live_run_is_followed(web: Backend) -> None:
    assert web.state.opened is not None
    run = web.state.opened.run.id
    await web.record(*a_session("s1"))
    for params in ({}, {"run": run}, {"at": ""}, {"run": "", "at": ""}):
        body = await web.json("/api/state", **params)
        assert (body["playhead"]["live"], body["ord"]) == (True, web.state.state.ord)
        assert (body["run"]["id"], body["run"]["writing"], body["run"]["replay"]) == (run, True, False)
        assert body["playhead"]["at_us"] == body["playhead"]["end_us"] == body["now_us"]
    html = (await web.client.get("/sessions")).text
    assert 'href="/runs"' in html


async def test_the_live_run_wound_back_while_it_goes_on(web: Backend) -> None:
    assert web.state.opened is not None
    run = web.state.opened.run.id
    now_us = web.state.opened.run.started_us
    await web.record(*a_session("s1", t_us=now_us + 1_000))
    at_us = now_us + 1_300_000
    wanted = session_views(folded(prefix_at(await records_of(web), at_us)))
    assert wanted[0]["state"] == "running"

    async def ingest() -> None:
        for number in range(20):
            await web.record(*a_session(f"later{number}", t_us=now_us + 3_000_000 + number, calls=1))

    ingesting = asyncio.create_task(ingest())
    looks = 0
    while not ingesting.done():
        newest_us = web.state.state.last_t_us
        body = await web.json("/api/state", run=run, at=at_us)
        assert body["sessions"] == wanted
        assert (body["playhead"]["live"], body["playhead"]["at_us"], body["now_us"]) == (False, at_us, at_us)
        assert body["playhead"]["end_us"] >= newest_us
        assert all(not source["connected"] for source in body["sources"])
        one = await web.json("/api/sessions/s1", at=at_us)
        assert one["session"] == wanted[0]
        assert one["span"]["end_us"] == now_us + 2_001_000
        looks += 1
    await ingesting
    assert looks > 3
    assert len((await web.json("/api/state"))["sessions"]) == 21


async def test_what_is_committed_while_a_state_is_made_is_not_in_the_past(
    web: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert web.state.opened is not None
    assert web.state.library is not None
    run = web.state.opened.run
    await web.record(Note(t=run.started_us + 1_000, text="before"))
    history, before = (await web.state.library.open(run.id)).history, run.last_ord
    ord_at = history.ord_at

    async def and_one_more(at_us: int) -> int:
        found = await ord_at(at_us)
        monkeypatch.undo()
        await web.record(Note(t=run.started_us + 9_000, text="meanwhile"))
        return found

    monkeypatch.setattr(history, "ord_at", and_one_more)
    await at(web, run.started_us + 20_000)
    assert (await at(web, run.started_us + 5_000)).ord == before
    assert (await at(web, run.started_us + 9_000)).ord == before + 1


async def test_a_late_record_does_not_change_the_past(web: Backend) -> None:
    assert web.state.opened is not None
    start_us = web.state.opened.run.started_us
    await web.record(
        SessionStart(t=start_us + 1_000, session="s1"),
        CallStart(t=start_us + 5_000, session="s1", call="c1"),
        Note(t=start_us + 2_000, text="arrives after what came later"),
    )
    body = await web.json("/api/state", at=start_us + 3_000)
    assert [event["type"] for event in body["events"]] == ["session.start", "run.meta"]
    assert body["ord"] == 2
    assert (await web.json("/api/state", at=start_us + 5_000))["ord"] == 4


async def test_events_and_losses_up_to_the_position(web: Backend) -> None:
    assert web.state.opened is not None
    start_us = web.state.opened.run.started_us
    await web.record(*a_session("s1", t_us=start_us + 1_000))
    await web.record(Loss(t=start_us + 5_000_000, where="store", count=4, of="events", since_us=start_us + 2_000))
    early = await web.json("/api/sessions/s1", at=start_us + 4_000_000)
    late = await web.json("/api/sessions/s1", at=start_us + 5_000_000)
    assert [event["type"] for event in late["events"]] == [*(event["type"] for event in early["events"]), "loss"]
    assert (await web.json("/api/status", at=start_us + 4_000_000))["lost"]["total"] == 0
    assert (await web.json("/api/status", at=start_us + 5_000_000))["lost"]["total"] == 4


async def test_a_session_id_with_two_lives(web: Backend) -> None:
    assert web.state.opened is not None
    start_us = web.state.opened.run.started_us
    await web.record(*a_session("s1", t_us=start_us + 1_000, title="first"))
    await web.record(*a_session("s1", t_us=start_us + 9_000_000, calls=1, title="second"))
    early = await web.json("/api/sessions/s1", at=start_us + 5_000_000)
    assert early["session"]["title"] == "first"
    assert early["span"] == {"start_us": start_us + 1_000, "end_us": start_us + 10_000_000}
    assert (await web.json("/api/sessions/s1"))["session"]["title"] == "second"


async def test_a_session_before_it_began(web: Backend) -> None:
    assert web.state.opened is not None
    start_us = web.state.opened.run.started_us
    await web.record(*a_session("s1", t_us=start_us + 1_000_000))
    body = await web.json("/api/sessions/s1", at=start_us + 10)
    assert body["session"] is None
    assert body["span"] == {"start_us": start_us + 1_000_000, "end_us": start_us + 3_000_000}
    assert (await web.client.get(f"/sessions/s1?at={start_us + 10}")).status_code == 200
    assert (await web.client.get(f"/api/sessions/s2?at={start_us + 10}")).status_code == 404


async def test_oom_marks_are_those_of_a_killed_process(web: Backend) -> None:
    assert web.state.opened is not None
    start_us = web.state.opened.run.started_us
    await web.record(
        MemEvent(t=start_us + 1_000, session="s1", high=3),
        MemEvent(t=start_us + 2_000, session="s1", max=1, oom=1),
        MemEvent(t=start_us + 3_000, session="s1", oom_kill=1),
        Loss(t=start_us + 4_000, where="store", count=4, of='"oom'),
        Note(t=start_us + 5_000, text='"oom'),
    )
    body = await web.json("/api/marks", px=10)
    counts = {item["kind"]: item["counts"] for item in body["columns"]}
    assert sum(count for _, count in counts["oom"]) == 2
    assert sum(count for _, count in counts["loss"]) == 1
    assert body["from_us"] <= start_us
    step = await web.json("/api/step", at=start_us, kinds="oom")
    assert (step["at_us"], step["event"]["body"]) == (start_us + 2_000, {"max": 1, "oom": 1})
    step = await web.json("/api/step", at=start_us + 2_000, kinds="oom")
    assert (step["at_us"], step["event"]["body"]) == (start_us + 3_000, {"oom_kill": 1})
    assert (await web.json("/api/step", at=start_us + 3_000, kinds="oom")) == {"event": None, "at_us": None}


async def test_every_request_needs_a_login(web: Backend) -> None:
    for path in ("/api/state?at=5", "/api/step", "/api/marks", "/api/stream?at=5", "/runs", "/api/runs"):
        answer = await web.stranger.get(path)
        assert answer.status_code == 401, path
        assert web.state.opened is not None
        assert web.state.opened.run.id not in answer.text


async def test_navigation_is_for_who_is_logged_in(web: Backend) -> None:
    for path in ("/nothing", "/sessions/none", "/?run=none", "/?at=x"):
        known = await web.client.get(path)
        assert known.status_code in (400, 404)
        assert '<a href="/sessions' in known.text, path
    for answer in (
        await web.stranger.get("/nothing"),
        await web.client.get("/nothing", headers={"host": "evil.example"}),
        await web.stranger.get("/static/nothing"),
    ):
        assert answer.status_code in (401, 404, 421, 400, 403)
        assert '<a href="/sessions' not in answer.text


# --- sharing of states -------------------------------------------------------------------------------------------


async def test_requests_of_one_position_fold_once(web: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert web.state.opened is not None
    start_us = web.state.opened.run.started_us
    await web.record(*a_session("s1", t_us=start_us + 1_000))
    shown = await at(web, start_us + 1_000_000)
    folds = 0
    original = type(shown.history).state_at

    async def counted(self: Any, *args: Any, **kwargs: Any) -> State:
        nonlocal folds
        folds += 1
        made: State = await original(self, *args, **kwargs)
        return made

    monkeypatch.setattr(type(shown.history), "state_at", counted)
    before = as_json(views.state_view(shown.state, now_us=0))
    paths = ("/api/state", "/api/sessions/s1", "/api/sessions/s1/calls/c1", "/sessions", "/sessions/s1", "/api/status")
    answers = await asyncio.gather(
        *(web.client.get(path, params={"at": start_us + 1_500_000}) for path in paths for _ in range(3))
    )
    assert {answer.status_code for answer in answers} == {200}
    assert folds == 1
    # Nobody has changed what is shared.
    for path in paths:
        await web.client.get(path, params={"at": start_us + 1_000_000})
    again = await at(web, start_us + 1_000_000)
    assert again.state is shown.state
    assert as_json(views.state_view(again.state, now_us=0)) == before
    assert again.state.tracker is None


async def test_states_are_bounded() -> None:
    states, history = States(most=3, weight=100), object()

    async def make() -> State:
        return State(track=False)

    for ord_ in range(10):
        await states.get((history, ord_), make)
    assert len(states) == 3

    async def heavy() -> State:
        state = State(track=False)
        for number in range(80):
            state.open_session(SessionStart(t=T0_US, session=f"s{number}"))
        return state

    await states.get((history, 100), heavy)
    await states.get((history, 101), heavy)
    assert len(states) == 1  # each alone weighs most of what all may


async def test_one_who_leaves_does_not_stop_the_others() -> None:
    states, key, go = States(), (object(), 1), asyncio.Event()

    async def make() -> State:
        await go.wait()
        return State(track=False)

    first = asyncio.create_task(states.get(key, make))
    await asyncio.sleep(0)
    second = asyncio.create_task(states.get(key, make))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert isinstance(await second, State)


async def test_a_failure_is_not_kept(recwarn: pytest.WarningsRecorder) -> None:
    states, key = States(), (object(), 1)

    async def broken() -> State:
        raise StoreError("damaged")

    async def make() -> State:
        return State(track=False)

    for ord_ in range(40):
        with pytest.raises(StoreError):
            await states.get((key, ord_), broken)
    assert len(states) <= 16
    with pytest.raises(StoreError):
        await states.get(key, broken)
    assert isinstance(await states.get(key, make), State)
    gc.collect()
    assert not recwarn.list


# --- reading of the query ----------------------------------------------------------------------------------------


def test_instant() -> None:
    assert [instant("at", text) for text in (None, "", "0", "12")] == [None, None, 0, 12]
    assert (instant("at", "-3"), instant("at", "9" * 5000)) == (0, MAX_AT_US)
    for text in ("x", "1.0", "1e3", "-", "--1", "\u0661", "+1", " 1", "1_0"):
        with pytest.raises(Refusal) as caught:
            instant("at", text)
        assert "microseconds" in str(caught.value.detail)


async def test_query_of_what_is_shown(web: Backend) -> None:
    assert web.state.opened is not None
    run = web.state.opened.run
    assert (await at(web, None)).query == ""
    assert (await at(web, None, run.id)).query == ""
    shown = await at(web, 5)
    assert parse_qs(shown.query) == {"run": [run.id], "at": [str(shown.start_us)]}
