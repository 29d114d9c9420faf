"""A live backend shows another run than its own: nothing of the one gets into the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.backend import T0_US, a_session, backend, write_recording
from tests.support.folding import records_of, state_at
from tests.support.importing import read_here
from tests.support.server import running_server
from tests.support.stories import Collector
from tests.support.streaming import connected
from tidegate_collectors.records import RunMeta, SessionStart

DEMO: Final = Path(__file__).resolve().parents[3] / "recordings" / "demo.jsonl"
RECORDS: Final = records_of(DEMO)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_server(tmp_path_factory.mktemp("past")) as server, server.client(30) as found:
        collector = Collector(server.link_socket)
        try:
            collector.link.send(SessionStart(t=time.time_ns() // 1000, session="here", title="of this moment"))
            yield found
        finally:
            collector.link.close()


def got(client: httpx.Client, path: str, **params: Any) -> Any:
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def past(client: httpx.Client) -> str:
    """Id of the recording, imported."""
    answer = client.post("/api/runs", params={"name": "demo.jsonl"}, content=DEMO.read_bytes(),
                         headers={"content-type": "application/octet-stream"})  # fmt: skip
    assert answer.status_code == 202, answer.text
    job = answer.json()["job"]
    deadline = time.monotonic() + 30
    while job["state"] not in ("done", "failed") and time.monotonic() < deadline:
        time.sleep(0.1)
        job = got(client, f"/api/jobs/{job['id']}")
        job = job.get("job", job)
    assert job["state"] == "done", job
    run: str = job["run_id"]
    return run


@pytest.mark.parametrize("share", [0.3, 0.8, 1.0])
def test_the_past_run_at_an_instant(client: httpx.Client, past: str, share: float) -> None:
    first_us, last_us = RECORDS[0][1].t, max(record.t for _, record in RECORDS)
    at_us = first_us + int((last_us - first_us) * share)
    body = got(client, "/api/state", run=past, at=at_us)
    run, playhead, sources = (body.pop(key) for key in ("run", "playhead", "sources"))
    assert body == state_at(RECORDS, at_us)
    assert (run["id"], run["kind"], run["writing"], run["replay"]) == (past, "recorded", False, True)
    assert (playhead["live"], playhead["start_us"], playhead["end_us"]) == (False, first_us, last_us)
    assert {source["connected"] for source in sources} == {False}


def test_the_live_run_goes_on_beside_it(client: httpx.Client, past: str) -> None:
    live = got(client, "/api/state")
    assert [session["id"] for session in live["sessions"]] == ["here"]
    assert live["playhead"]["live"] is True
    assert [source["connected"] for source in live["sources"]] == [True]
    assert got(client, "/api/state", run=live["run"]["id"])["playhead"]["live"] is True
    # Health is of the backend, and says which run is shown.
    status = got(client, "/api/status", run=past)
    assert (status["run"]["id"], status["run"]["writing"]) == (past, False)
    assert [source["connected"] for source in status["sources"]] == [True]
    assert status["ingest"]["records"] >= 1
    assert {host["host"] for host in status["hosts"]} == {
        host["host"] for host in got(client, "/api/state", run=past)["hosts"]
    }


def test_session_of_one_run_is_none_of_the_other(client: httpx.Client, past: str) -> None:
    session = next(record.session for _, record in RECORDS if isinstance(record, SessionStart))
    for path in (f"/api/sessions/{session}", f"/api/sessions/{session}/series", f"/sessions/{session}"):
        assert client.get(path).status_code == 404
        assert client.get(path, params={"run": past}).status_code == 200
    assert client.get("/sessions/here").status_code == 200
    assert client.get("/sessions/here", params={"run": past}).status_code == 404


def test_pages_say_what_they_show(client: httpx.Client, past: str) -> None:
    html = client.get("/", params={"run": past}).text
    assert 'data-replay="true"' in html
    assert f'href="/sessions?run={past}"' in html
    assert 'data-replay="false"' in client.get("/").text


def test_export_of_the_past_run(client: httpx.Client, past: str) -> None:
    answer = client.get(f"/api/runs/{past}/export")
    assert answer.content == DEMO.read_bytes()
    assert past in answer.headers["content-disposition"]


def test_a_run_that_was_deleted_is_gone(client: httpx.Client, past: str) -> None:
    assert client.get("/api/marks", params={"run": past}).status_code == 200
    assert client.delete(f"/api/runs/{past}").status_code == 204
    for path in ("/api/state", "/api/marks", "/api/step", "/api/stream"):
        answer = client.get(path, params={"run": past})
        assert answer.status_code == 404
        assert "Open Runs" in answer.json()["error"]


async def test_a_run_stays_open_while_it_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.runs.library.MAX_OPEN", 1)
    file = write_recording(tmp_path / "a.jsonl", [RunMeta(t=T0_US, run="a", source="recorded"), *a_session(calls=60)])
    first, *others = [(await read_here(file, tmp_path / "state" / "recordings")).run_id for _ in range(3)]
    async with backend(tmp_path) as web:
        assert web.state.library is not None
        store = (await web.state.library.open(first)).store
        async with connected(web, f"run={first}&at={T0_US}&speed=16") as (client, _):
            assert (await client.event())[0] == "hello"
            for other in others * 2:
                assert (await web.json("/api/state", run=other))["run"]["id"] == other
            assert (await web.state.library.open(first)).store is store
            frames = [await client.event() for _ in range(5)]
            assert {event for event, _, _ in frames} == {"frame"}
            assert frames[-1][2]["ord"] > frames[0][2]["ord"]
        await web.json("/api/state", run=others[0])
        assert (await web.state.library.open(first)).store is not store
