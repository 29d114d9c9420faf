"""The backend as a whole: opened, served by a real process, fed over the real link, ended by signals."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.backend import T0_US, a_session, backend, write_recording
from tests.support.server import Server, running_server
from tidegate import app
from tidegate.errors import BadInputError, NotFoundError, StoreError, TidegateError, UsageError
from tidegate.ingest import Ingest
from tidegate.runs.messages import Progress
from tidegate.runs.process import run_worker
from tidegate.settings import Settings
from tidegate.web import create_app, feed
from tidegate_collectors.link import Hello, LinkClient, new_src
from tidegate_collectors.records import Note, RunMeta, SessionStart


def collector(server: Server) -> LinkClient:
    hello = Hello(role="test", version="1", src=new_src("test"), host="testhost", boot_id="b", pid=1)
    return LinkClient(server.link_socket, hello)


@contextlib.contextmanager
def stream(server: Server, after: int | None = None) -> Iterator[Iterator[tuple[str, Any]]]:
    """Events of the stream: (name, data)."""
    url = "/api/stream" + ("" if after is None else f"?after={after}")
    with server.client() as client, client.stream("GET", url, timeout=15.0) as answer:
        assert answer.status_code == 200
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        key, _, value = line.partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


def wait_for_ord(server: Server, ord_: int, timeout_s: float = 10.0) -> Any:
    deadline = time.monotonic() + timeout_s
    with server.client() as client:
        while True:
            body = client.get("/api/state").json()
            if body["ord"] >= ord_:
                return body
            assert time.monotonic() < deadline, body["ord"]
            time.sleep(0.05)


def test_record_of_a_collector_reaches_page_api_and_stream(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, server.client() as client:
        state = client.get("/api/state").json()
        with stream(server, state["ord"]) as events:
            assert next(events)[0] == "hello"
            link = collector(server)
            link.start()
            try:
                sent_at = time.monotonic()
                records = a_session("spine", calls=2)
                for record in records:
                    link.send(record)
                types: list[str] = []
                first_after_s = 0.0
                sources: list[Any] = []
                while "session.end" not in types:
                    name, data = next(events)
                    assert name == "frame"
                    types += [event["type"] for event in data["events"]]
                    sources = data["sources"] or sources
                    first_after_s = first_after_s or (time.monotonic() - sent_at if types else 0.0)
            finally:
                link.close()
        assert types == [
            "session.start", "call.start", "call.end", "call.start", "call.end", "session.end",
        ]  # fmt: skip
        assert first_after_s < 5.0  # generous: the machine is shared; bench.live_latency has the number
        assert [(source["role"], source["host"]) for source in sources] == [("test", "testhost")]
        state = wait_for_ord(server, state["ord"] + len(records))
        assert [(session["id"], session["state"]) for session in state["sessions"]] == [("spine", "ended")]
        body = client.get("/api/sessions/spine").json()
        assert [(call["id"], call["state"], call["exit_code"]) for call in body["calls"]] == [
            ("c1", "ended", 0), ("c2", "ended", 0),
        ]  # fmt: skip
        assert client.get("/api/sessions/spine/series?px=100").status_code == 200
        assert client.get("/sessions/spine").status_code == 200
        assert client.get("/api/status").json()["ingest"]["records"] >= len(records)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_at_once_with_streams_open(tmp_path: Path, number: signal.Signals) -> None:
    with running_server(tmp_path) as server, stream(server) as events, stream(server) as others:
        assert next(events)[0] == next(others)[0] == "hello"
        began = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - began < 5.0
        assert list(events) == []
        assert not server.link_socket.exists()
        assert not list(server.state_dir.glob("login-url*"))
        assert "Traceback" not in "".join(server.output)


def test_stalled_client_does_not_hold_the_end_up(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        address = server.base_url.removeprefix("http://").rsplit(":", 1)
        with socket.create_connection((address[0], int(address[1])), 5) as sock:
            cookie = server.cookies["tidegate_session"]
            sock.sendall(
                f"GET /api/stream HTTP/1.1\r\nHost: {address[0]}\r\nCookie: tidegate_session={cookie}\r\n\r\n".encode()
            )
            assert sock.recv(12) == b"HTTP/1.1 200"
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 5.0


def test_run_is_closed_by_a_signal_and_a_new_one_begins(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        with server.client() as client:
            first = client.get("/api/state").json()["run"]["id"]
        assert server.stop() == 0
    with running_server(tmp_path) as server, server.client() as client:
        run = client.get("/api/state").json()["run"]
        assert run["id"] != first
        assert run["ended_us"] is None


def test_killed_backend_resumes_its_run_and_open_pages_stay_logged_in(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        link = collector(server)
        link.start()
        records = a_session("kept", calls=3)
        for record in records:
            link.send(record)
        before = wait_for_ord(server, 1 + len(records))
        cookies = server.cookies
        server.stop(signal.SIGKILL)
        link.close(0.1)
    with running_server(tmp_path, login=False) as server:
        deadline = time.monotonic() + 10
        told = False
        while not told:  # the note that it was away is a record like others, committed a moment after the start
            answer = httpx.get(server.base_url + "/api/state", cookies=cookies)
            assert answer.status_code == 200
            after = answer.json()
            told = any("away" in event["body"].get("text", "") for event in after["events"])
            assert told or time.monotonic() < deadline, after["events"]
        assert after["run"]["id"] == before["run"]["id"]
        assert after["ord"] >= before["ord"]
        assert after["sessions"] == before["sessions"]


def test_replay_has_no_link(tmp_path: Path) -> None:
    recording = write_recording(tmp_path / "r.jsonl", [RunMeta(t=T0_US, run="old"), *a_session("s1")])
    with running_server(tmp_path, replay=recording) as server, server.client() as client:
        state = client.get("/api/state").json()
        assert state["run"]["replay"] is True
        assert [session["id"] for session in state["sessions"]] == ["s1"]
        assert not server.link_socket.exists()
        status = client.get("/api/status").json()
        assert (status["link"], status["ingest"]) == (None, None)
        assert 'data-replay="true"' in client.get("/").text
        assert client.get("/api/sessions/s1/series").status_code == 200
        assert client.get("/api/host/series").status_code == 200
        with stream(server, state["ord"]) as events:
            assert next(events)[0] == "hello"
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            for path in ("/api/state", "/api/control", "/api/policies", "/api/sessions/s1"):
                assert client.request(method, path, json={}).status_code in {404, 405}
        assert server.stop() == 0


async def test_replay_is_built_without_the_ways_to_collectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("a replay made a way to collectors")

    for name in ("Ingest", "LinkServer", "bind_link", "Live"):
        monkeypatch.setattr(app, name, never)
    recording = write_recording(tmp_path / "r.jsonl", [RunMeta(t=T0_US, run="old"), *a_session("s1")])
    async with backend(tmp_path, replay=recording) as web:
        assert web.state.opened is not None
        assert web.state.opened.live is None
        assert web.state.state.sessions["s1"].calls_total == 2
        assert web.state.state.tracker is None
        assert not (tmp_path / "run").exists()
        now = (await web.json("/api/state"))["now_us"]
        assert now == web.state.state.last_t_us  # a replay's clock is the recording's


async def test_replay_reports_what_is_wrong_with_the_recording(tmp_path: Path) -> None:
    recording = write_recording(tmp_path / "r.jsonl", [RunMeta(t=T0_US, run="old"), *a_session("s1")])
    with recording.open("ab") as file:
        file.write(b'{"v":1,"type":"note","seq":900,"src":"kernel-test","t":"soon","text":"x"}\n{"v":1,"ty')
    async with backend(tmp_path, replay=recording) as web:
        report = (await web.json("/api/status"))["report"]
        assert report["errors_total"] >= 1
        assert "r.jsonl:" in report["errors"][0]
        assert report["cut_last_line"] is True


@pytest.mark.parametrize(
    ("content", "error"), [(None, NotFoundError), (b"", BadInputError), (b"SQLite format 3\0", BadInputError)]
)
async def test_bad_recording_is_an_error_for_people(
    tmp_path: Path, content: bytes | None, error: type[TidegateError]
) -> None:
    path = tmp_path / "r.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error):
        async with backend(tmp_path, replay=path):
            pass


async def test_state_is_rebuilt_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop(self: Ingest) -> None:
        assert self._task is not None
        self._task.cancel()

    with monkeypatch.context() as patch:
        patch.setattr(Ingest, "stop", stop)  # as if killed: the run is not closed
        async with backend(tmp_path) as web:
            await web.record(*a_session("s1", calls=3))
            before = await web.json("/api/state")
    async with backend(tmp_path) as web:
        await web.folded(before["ord"] + 2)
        after = await web.json("/api/state")
    assert after["run"] == before["run"]
    assert after["sessions"] == before["sessions"]
    assert after["spark"] == before["spark"]


async def test_pages_are_served_while_the_past_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = write_recording(tmp_path / "r.jsonl", [RunMeta(t=T0_US, run="old"), *a_session("s1")])
    state = app.prepare(Settings(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run", replay=recording))
    go = asyncio.Event()
    real = state.feed.load

    async def slow(batches: Any) -> None:
        await go.wait()
        await real(batches)

    monkeypatch.setattr(type(state.feed), "load", lambda self, batches: slow(batches))
    application = create_app(state)
    async with (
        app.opened(state),
        httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://127.0.0.1") as client,
    ):
        client.cookies.set("tidegate_session", state.sessions.create(), domain="127.0.0.1")
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/")).status_code == 200
        waiting = asyncio.create_task(client.get("/api/state"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        go.set()
        assert len((await waiting).json()["sessions"]) == 1


async def test_build_opens_and_closes_by_lifespan(tmp_path: Path) -> None:
    application = app.build(Settings(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run"))
    state = application.state.tidegate
    async with application.router.lifespan_context(application):
        assert state.opened is not None
    assert state.opened is None


async def test_two_backends_cannot_write_one_store(tmp_path: Path) -> None:
    async with backend(tmp_path):
        state = app.prepare(Settings(state_dir=tmp_path / "state", runtime_dir=tmp_path / "other"))
        with pytest.raises(StoreError):
            async with app.opened(state):
                pass


async def test_damaged_store_is_an_error_and_closes_what_was_opened(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "tidegate.db").write_bytes(b"no database" * 1000)
    state = app.prepare(Settings(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run"))
    with pytest.raises(StoreError):
        async with app.opened(state):
            pass
    assert not (tmp_path / "run" / "link.sock").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "8.8.8.8", "example.org"])
def test_other_machines_are_kept_out(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match="--host"):
        app.bind(Settings(state_dir=tmp_path, runtime_dir=tmp_path, host=host, port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_bind_takes_a_free_port(tmp_path: Path, host: str) -> None:
    with app.bind(Settings(state_dir=tmp_path, runtime_dir=tmp_path, host=host, port=0)) as sock:
        assert sock.getsockname()[1] > 0
        port = sock.getsockname()[1]
        with pytest.raises(UsageError, match=str(port)):
            app.bind(Settings(state_dir=tmp_path, runtime_dir=tmp_path, host=host, port=port))


def test_bad_allowed_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a b"):
        app.prepare(Settings(state_dir=tmp_path, runtime_dir=tmp_path, allowed_hosts=("a b",)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("srv")) as found:
        yield found


def raw(server: Server, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """A GET whose path nobody normalises."""
    address = server.base_url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.putrequest("GET", path, skip_host=headers is not None and "Host" in headers)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "path",
    ["/static/../api/state", "/static/../../pyproject.toml", "/static/..%2f..%2fpyproject.toml",
     "//static/../api/state", "/static//etc/passwd", "/static/%2e%2e/templates/base.html",
     "/static/\\..\\templates\\base.html"],
)  # fmt: skip
def test_no_path_leads_out(server: Server, path: str) -> None:
    assert raw(server, path)[0] in {401, 404}


def test_rebinding_over_a_real_connection(server: Server) -> None:
    assert raw(server, "/health", {"Host": "evil.example"})[0] == 421
    assert raw(server, "/health", {"Host": "localhost"})[0] == 200


def test_plotly_over_a_real_connection(server: Server) -> None:
    with server.client() as client:
        page = client.get("/").text
        url = page.partition('src="/static/plotly')[2].partition('"')[0]
        answer = client.get("/static/plotly" + url, headers={"accept-encoding": "gzip"})
    assert answer.status_code == 200
    assert answer.headers["content-encoding"] == "gzip"


def test_id_with_a_slash_over_a_real_connection(server: Server) -> None:
    link = collector(server)
    link.start()
    try:
        link.send(SessionStart(t=T0_US, session="a/b?c"))
        link.send(Note(t=T0_US, text="done"))
    finally:
        link.close()
    wait_for_ord(server, 3)
    with server.client() as client:
        assert client.get("/api/sessions/a%2Fb%3Fc").json()["session"]["id"] == "a/b?c"


async def test_a_large_recording_is_read_while_pages_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = write_recording(tmp_path / "r.jsonl", [RunMeta(t=T0_US, run="old"), *a_session("s1")])
    go = asyncio.Event()

    async def slow(task: Any, on_progress: Any) -> Any:
        on_progress(Progress(format="tidegate", records=12_345))
        await go.wait()
        return await run_worker(task, on_progress)

    monkeypatch.setattr(app, "run_worker", slow)
    monkeypatch.setattr(app, "READ_AHEAD_S", 0.05)
    state = app.prepare(Settings(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run", replay=recording))
    async with (
        app.opened(state),
        httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state)), base_url="http://127.0.0.1") as client,
    ):
        client.cookies.set("tidegate_session", state.sessions.create(), domain="127.0.0.1")
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/")).status_code == 200
        answer = await client.get("/api/state")
        assert answer.status_code == 503
        assert "12,345 records so far" in answer.json()["error"]
        go.set()
        await state.feed.loaded.wait()
        assert len((await client.get("/api/state")).json()["sessions"]) == 1
        assert state.opened is not None
        directory = state.opened.store.path.parent
    assert state.opened is None
    assert not directory.exists()


async def test_collectors_are_let_in_while_the_past_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a run that takes long to fold WHEN a collector sends THEN it does not wait, and nothing is missed."""
    go = asyncio.Event()
    state = app.prepare(Settings(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run"))
    real = state.feed.load

    async def slow(batches: Any) -> None:
        await go.wait()
        await real(batches)

    monkeypatch.setattr(type(state.feed), "load", lambda self, batches: slow(batches))
    monkeypatch.setattr(feed, "MAX_HELD", 10)
    async with app.opened(state):
        client = LinkClient(tmp_path / "run" / "link.sock", Hello(role="test", src="test-1", host="box"))
        client.start()
        for number in range(200):
            client.send(Note(t=T0_US + number, text=str(number)))
        await asyncio.to_thread(client.close, 5.0)
        assert client.stats.acked_seq == 199
        assert not state.feed.loaded.is_set()
        assert state.feed.waiting <= 10
        go.set()
        await state.feed.loaded.wait()
        assert state.opened is not None
        assert state.state.ord + state.feed.waiting >= state.opened.run.last_ord
        assert state.state.sources["test-1"].last_seq == 199


def test_a_backend_whose_ingest_has_ended_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(self: Ingest) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Ingest, "_gather", defect)
    settings = Settings(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run", port=0)
    watchdog = threading.Timer(15.0, os.kill, (os.getpid(), signal.SIGTERM))
    watchdog.start()
    with pytest.raises(ZeroDivisionError):
        app.run(settings, on_ready=lambda url: None)
    assert watchdog.is_alive(), "it went on until it was told to end"
    watchdog.cancel()
