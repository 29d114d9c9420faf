"""Runs and positions, against a real backend that shows a real recording: what is shown is the fold of the prefix."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.folding import Follower, as_json, folded, prefix_at, records_of, state_at
from tests.support.server import Server, running_server
from tidegate.fold import EVENT_TYPE_NAMES, views
from tidegate.fold.neighbours import neighbours
from tidegate.web.api import SESSION_EVENTS
from tidegate_collectors.records import CallStart, MemBurst, SessionStart

DEMO: Final = Path(__file__).resolve().parents[3] / "recordings" / "demo.jsonl"
RECORDS: Final = records_of(DEMO)
FIRST_US: Final = RECORDS[0][1].t
LAST_US: Final = max(record.t for _, record in RECORDS)
SHARES: Final = (0.0, 0.01, 0.2, 0.47, 0.75, 0.999, 1.0)


def instant(share: float) -> int:
    return FIRST_US + int((LAST_US - FIRST_US) * share)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("tt"), replay=DEMO) as found:
        with found.client(60) as client:
            while client.get("/api/state").status_code == 503:
                pass
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client(30) as found:
        yield found


@pytest.fixture(scope="module")
def run(client: httpx.Client) -> str:
    found: str = client.get("/api/state").json()["run"]["id"]
    return found


def got(client: httpx.Client, path: str, **params: Any) -> Any:
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("share", SHARES)
def test_state_is_the_fold_of_the_prefix(client: httpx.Client, run: str, share: float) -> None:
    at_us = instant(share)
    body = got(client, "/api/state", run=run, at=at_us)
    told = {key: body.pop(key) for key in ("run", "sources", "playhead")}
    assert body == state_at(RECORDS, at_us)
    assert told["playhead"] == {
        "at_us": at_us, "start_us": FIRST_US, "end_us": LAST_US, "live": False, "ord": body["ord"],
    }  # fmt: skip
    assert (told["run"]["kind"], told["run"]["writing"], told["run"]["replay"]) == ("recorded", False, True)
    assert [source["connected"] for source in told["sources"]] == [False] * len(told["sources"])


@pytest.mark.parametrize("share", SHARES[1:])
def test_session_and_calls_are_of_the_instant(client: httpx.Client, run: str, share: float) -> None:
    at_us = instant(share)
    prefix = prefix_at(RECORDS, at_us)
    state, end = folded(prefix), folded(RECORDS)
    for session in end.sessions.values():
        body = got(client, f"/api/sessions/{session.id}", run=run, at=at_us)
        assert body["span"] == {"start_us": session.started_us, "end_us": session.ended_us}
        now = state.sessions.get(session.id)
        if now is None:
            assert body["session"] is None
            assert (body["calls"], body["events"], body["processes"]) == ([], [], [])
            continue
        assert body["session"] == as_json(views.session_view(now))
        assert body["calls"] == as_json(views.call_views(now))
        assert body["processes"] == as_json(views.processes_view(now.processes))
        of_session = [(ord_, r) for ord_, r in prefix if getattr(r, "session", None) == session.id]
        told = [ord_ for ord_, record in of_session if type_of(record) in SESSION_EVENTS]
        assert [event["ord"] for event in body["events"]] == told[-1000:]
        call = next(iter(now.calls.values()))
        shown = got(client, f"/api/sessions/{session.id}/calls/{call.id}", run=run, at=at_us)
        assert shown["call"] == as_json(views.call_view(call))
        assert shown["neighbours"] == as_json(neighbours(now, call))


def type_of(record: Any) -> str:
    return str(type(record).__struct_config__.tag)


def test_a_call_that_has_not_begun_is_told_apart_from_none(client: httpx.Client) -> None:
    session, call = next((r.session, r.call) for _, r in RECORDS if isinstance(r, CallStart))
    early = client.get(f"/api/sessions/{session}/calls/{call}", params={"at": FIRST_US})
    none = client.get(f"/api/sessions/{session}/calls/none", params={"at": FIRST_US})
    assert (early.status_code, none.status_code) == (404, 404)
    assert "begins after the instant" in early.json()["error"]
    assert "no such call" in none.json()["error"]


def test_beyond_the_ends_is_the_nearest_end(client: httpx.Client, run: str) -> None:
    for at, wanted in (("-5", FIRST_US), ("0", FIRST_US), (LAST_US + 1, LAST_US), ("9" * 400, LAST_US)):
        assert got(client, "/api/state", run=run, at=at)["playhead"]["at_us"] == wanted
    end = got(client, "/api/state")
    assert end["playhead"] == got(client, "/api/state", run=run)["playhead"]
    assert (end["playhead"]["at_us"], end["now_us"], end["ord"]) == (LAST_US, LAST_US, len(RECORDS))


@pytest.mark.parametrize("at", ["x", "1e9", "1.5", "0x10", "\u0663", "--5", "1 OR 1=1", "<script>", "\u202e1"])
@pytest.mark.parametrize("path", ["/api/state", "/api/step", "/api/stream", "/sessions", "/api/host/series"])
def test_what_is_no_instant_is_refused(client: httpx.Client, path: str, at: str) -> None:
    answer = client.get(path, params={"at": at})
    assert answer.status_code == 400
    assert "microseconds" in answer.text
    assert "<script>" not in answer.text or path.startswith("/api/")
    assert "\u202e" not in answer.text


HOSTILE_RUNS: Final = [
    "none", "../../etc/passwd", "..%2f..", "a\x00b", "' OR 1=1 --", "</script><script>alert(1)</script>", "\u202e",
    "x" * 5000, "live", ".", "tidegate.db", "%",
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE_RUNS, ids=range(len(HOSTILE_RUNS)))
def test_an_unknown_run_is_a_404_that_says_what_to_do(client: httpx.Client, hostile: str) -> None:
    session = next(record.session for _, record in RECORDS if isinstance(record, SessionStart))
    for path in ("/api/state", "/api/marks", "/api/step", "/api/stream", f"/api/sessions/{session}"):
        answer = client.get(path, params={"run": hostile})
        assert answer.status_code == 404, (path, answer.text)
        body = answer.json()
        assert (set(body), body["status"]) == ({"ok", "error", "status"}, 404)
        assert "Open Runs" in body["error"]
        assert len(body["error"]) < 300
    for path in ("/", "/sessions", f"/sessions/{session}", "/runs", "/status", "/definitions"):
        answer = client.get(path, params={"run": hostile})
        assert answer.status_code == 404
        assert "Open Runs" in answer.text
        assert '<a href="/runs"' in answer.text  # the navigation is there, without the run that is not
        assert "<script>alert" not in answer.text
        assert "\u202e" not in answer.text


def test_step_goes_through_every_burst_and_back(client: httpx.Client) -> None:
    def positions(kind: type) -> list[int]:
        top, found = 0, []
        for _, record in RECORDS:
            top = max(top, record.t)
            if isinstance(record, kind):
                found.append(top)
        return found

    bursts = positions(MemBurst)
    at_us, walked = FIRST_US, []
    while (body := got(client, "/api/step", at=at_us, kinds="burst"))["event"] is not None:
        assert body["event"]["type"] == "mem.burst"
        assert body["at_us"] > at_us
        at_us = body["at_us"]
        walked.append(at_us)
    assert walked == sorted(set(bursts))
    back = []
    at_us = LAST_US
    while (body := got(client, "/api/step", at=at_us, kinds="burst", direction="previous"))["event"] is not None:
        at_us = body["at_us"]
        back.append(at_us)
    assert back[::-1] == sorted({burst for burst in bursts if burst < LAST_US})


def test_step_shows_its_event(client: httpx.Client) -> None:
    sessions = sorted({record.session for _, record in RECORDS if isinstance(record, SessionStart) if record.session})
    for session in sessions:
        body = got(client, "/api/step", at=instant(0.4), kinds="call,burst", session=session)
        event = body["event"]
        assert event["session"] == session
        assert event["type"] in ("call.start", "mem.burst")
        assert got(client, "/api/state", at=body["at_us"])["ord"] >= event["ord"]
        assert got(client, "/api/state", at=body["at_us"] - 1)["ord"] < event["ord"]


@pytest.mark.parametrize(
    "query", ["kinds=loss", "kinds=burst,x", "kinds='", "direction=up", "direction=", "kinds=" + "burst," * 100]
)
def test_a_bad_step_is_refused(client: httpx.Client, query: str) -> None:
    answer = client.get(f"/api/step?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["error"]


def test_marks_count_every_event_once(client: httpx.Client, run: str) -> None:
    body = got(client, "/api/marks", run=run, px=500)
    assert (body["from_us"], body["to_us"], body["px"]) == (FIRST_US, LAST_US, 500)
    columns = {item["kind"]: item["counts"] for item in body["columns"]}
    assert set(columns) == {"burst", "call", "oom", "action", "decision", "loss"}
    for kind, cls in (("burst", MemBurst), ("call", CallStart)):
        wanted: dict[int, int] = {}
        for _, record in RECORDS:
            if isinstance(record, cls):
                column = min(499, (record.t - FIRST_US) * 500 // (LAST_US - FIRST_US))
                wanted[column] = wanted.get(column, 0) + 1
        assert columns[kind] == [list(item) for item in sorted(wanted.items())]
    assert columns["oom"] == columns["loss"] == []
    assert got(client, "/api/marks", px=500, at=FIRST_US) == body


def test_charts_are_not_cut_at_the_instant(client: httpx.Client, run: str) -> None:
    session = next(record.session for _, record in RECORDS if isinstance(record, SessionStart))
    early = got(client, f"/api/sessions/{session}/series", run=run, at=FIRST_US, px=200)
    late = got(client, f"/api/sessions/{session}/series", run=run, at=LAST_US, px=200)
    assert early == late
    whole = {"from_us": FIRST_US, "to_us": LAST_US, "px": 200}
    assert got(client, "/api/host/series", at=FIRST_US, **whole) == got(client, "/api/host/series", **whole)


def test_pages_carry_the_position(client: httpx.Client, run: str) -> None:
    at_us = instant(0.5)
    query = f"run={run}&amp;at={at_us}"
    for path in ("/", "/sessions", "/runs", "/definitions", "/status"):
        html = client.get(path, params={"run": run, "at": at_us}).text
        assert f'href="/sessions?{query}"' in html
        assert f'href="/runs?{query}"' in html
    assert 'href="/sessions"' in client.get("/").text
    # An instant before the run is its start, on every page.
    for at in ("0", "-5"):
        assert f'href="/sessions?run={run}&amp;at={FIRST_US}"' in client.get("/status", params={"at": at}).text


def test_session_page_before_the_session(client: httpx.Client) -> None:
    session = next(record.session for _, record in RECORDS if isinstance(record, SessionStart))
    assert client.get(f"/sessions/{session}", params={"at": FIRST_US}).status_code == 200
    assert client.get("/sessions/none", params={"at": FIRST_US}).status_code == 404


# --- playing -----------------------------------------------------------------------------------------------------


async def events(answer: httpx.Response) -> AsyncIterator[tuple[str, int | None, Any]]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields["event"], int(fields["id"]) if "id" in fields else None, json.loads(fields["data"])
            fields = {}


async def play(server: Server, at_us: int, speed: float, *, headers: dict[str, str] | None = None) -> Follower:
    """Follow the run from an instant to its end, as a page does."""
    async with httpx.AsyncClient(base_url=server.base_url, cookies=server.cookies, timeout=30) as client:
        run = (await client.get("/api/state")).json()["run"]["id"]
        query = {"run": run, "at": str(at_us)}
        follower = Follower((await client.get("/api/state", params=query)).json())
        async with client.stream("GET", "/api/stream", params={**query, "speed": speed}, headers=headers) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            told = events(answer)
            event, _, data = await anext(told)
            assert (event, data["run"], data["speed"]) == ("hello", run, speed)
            assert (data["start_us"], data["end_us"]) == (FIRST_US, LAST_US)
            async for event, id_, data in told:
                if event == "end":
                    assert data["at_us"] == LAST_US
                    return follower
                assert (event, id_) == ("frame", data["now_us"])
                follower.take(data)
    raise AssertionError("the stream ended without an end")


async def test_frames_add_up_to_the_end(server: Server) -> None:
    at_us = LAST_US - 40_000_000
    began = asyncio.get_running_loop().time()
    follower = await play(server, at_us, 16)
    took_s = asyncio.get_running_loop().time() - began
    assert 2.0 < took_s < 15.0  # 40 s at 16 times
    end = folded(RECORDS)
    before = len(prefix_at(RECORDS, at_us))
    assert follower.ord == len(RECORDS)
    assert follower.sessions == {name: as_json(views.session_view(session)) for name, session in end.sessions.items()}
    assert follower.hosts == {name: as_json(views.host_view(host)) for name, host in end.hosts.items()}
    assert follower.lost == as_json(views.lost_view(end))
    changed = {(r.session, r.call) for ord_, r in RECORDS if ord_ > before and isinstance(r, CallStart)}
    assert changed
    for key in changed:
        session, call = key
        assert follower.calls[session or "", call or ""] == as_json(
            views.call_view(end.sessions[session or ""].calls[call or ""])
        )
    told = [event["ord"] for event in follower.events]
    assert told == [ord_ for ord_, r in RECORDS if ord_ > before and type_of(r) in EVENT_TYPE_NAMES]


async def test_clients_at_different_positions(server: Server) -> None:
    starts = [LAST_US - seconds * 1_000_000 for seconds in (10, 30, 60)]
    followers = await asyncio.gather(*(play(server, at_us, 64) for at_us in starts))
    assert {follower.ord for follower in followers} == {len(RECORDS)}
    counts = [len(follower.events) for follower in followers]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


async def test_a_player_goes_on_where_it_was(server: Server) -> None:
    seen = LAST_US - 40_000_000
    follower = await play(server, LAST_US - 60_000_000, 64, headers={"last-event-id": str(seen)})
    before = len(prefix_at(RECORDS, seen))
    assert min(event["ord"] for event in follower.events) > before


@pytest.mark.parametrize("speed", ["0", "0.2", "65", "-1", "nan", "inf", "x", ""])
def test_speed_has_bounds(client: httpx.Client, speed: str) -> None:
    answer = client.get("/api/stream", params={"at": FIRST_US, "speed": speed})
    assert answer.status_code == 400
    assert "speed" in answer.json()["error"]


NASTY: Final = st.one_of(
    st.text(max_size=40), st.integers().map(str), st.sampled_from(["live", "-", "1e5", "%00", "../..", "NaN", "9" * 30])
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    path=st.sampled_from(["/api/state", "/api/step", "/api/marks", "/api/stream", "/api/host/series", "/sessions"]),
    query=st.dictionaries(
        st.sampled_from(["run", "at", "kinds", "direction", "session", "px", "speed", "from_us", "to_us"]), NASTY
    ),
)
def test_no_query_breaks_it(client: httpx.Client, path: str, query: dict[str, str]) -> None:
    with client.stream("GET", path, params=query) as answer:
        assert answer.status_code in (200, 400, 404), (path, query)
