"""The API of the runs, in a backend that is open, and in a real one."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import zstandard

from tests.support.backend import T0_US, Backend, a_session, backend, write_recording
from tests.support.databases import names_in
from tests.support.foreign_traces import agentcgroup_folder
from tests.support.importing import read_here, until
from tests.support.scenes import scene_lines
from tests.support.server import Server, running_server
from tidegate_collectors.records import RunMeta

DATA = b"".join(line + b"\n" for line in scene_lines())
BYTES = {"content-type": "application/octet-stream"}
ID = "20261130-2306-ab12"


async def uploaded(web: Backend, data: bytes, name: str = "r.jsonl", **params: Any) -> Any:
    """The job of an upload, once it is over."""
    answer = await web.client.post("/api/runs", params={"name": name, **params}, content=data, headers=BYTES)
    assert answer.status_code == 202, answer.text
    job = answer.json()["job"]

    async def is_over() -> bool:
        nonlocal job
        job = (await web.json(f"/api/jobs/{job['id']}"))["job"]
        return job["ended_us"] is not None

    await until(is_over)
    return job


async def test_upload_look_rename_export_delete(tmp_path: Path) -> None:
    async with backend(tmp_path) as web:
        body = await web.json("/api/runs")
        (live,) = body["runs"]
        assert (live["writing"], live["current"], live["deletable"], live["kind"]) == (True, True, False, "live")
        assert [one["name"] for one in body["formats"]][:2] == ["tidegate", "agentcgroup"]
        assert (body["jobs"], body["temporary"], body["max_upload_bytes"]) == ([], False, 4_000_000_000)
        job = await uploaded(web, zstandard.ZstdCompressor().compress(DATA), "night.jsonl.zst")
        assert (job["state"], job["run_id"], job["records"]) == ("done", ID, len(scene_lines()))
        assert job["report"]["errors_total"] == 0
        rows = {row["id"]: row for row in (await web.json("/api/runs"))["runs"]}
        assert set(rows) == {live["id"], ID}
        assert (rows[ID]["title"], rows[ID]["sessions"], rows[ID]["damaged"]) == ("a scene", 2, False)
        # the same pages show it, by its id
        state = await web.json("/api/state", run=ID)
        assert [session["id"] for session in state["sessions"]] == ["s0", "s1"]
        renamed = await web.client.patch(f"/api/runs/{ID}", json={"title": "the night"})
        assert (renamed.status_code, renamed.json()["run"]["title"]) == (200, "the night")
        for compress, unpack in (
            ("none", bytes),
            ("gz", gzip.decompress),
            ("zst", zstandard.ZstdDecompressor().decompressobj().decompress),
        ):
            answer = await web.client.get(f"/api/runs/{ID}/export", params={"compress": compress})
            assert unpack(answer.content) == DATA
            ending = "" if compress == "none" else f".{compress}"
            assert (
                answer.headers["content-disposition"] == f'attachment; filename="tidegate-{ID}-the_night.jsonl{ending}"'
            )
        one = (await web.client.get(f"/api/runs/{ID}/export", params={"session": "s1"})).content
        assert {json.loads(line).get("session") for line in one.splitlines()} == {"s1", None}
        assert (await web.client.delete(f"/api/runs/{ID}")).status_code == 204
        assert (await web.client.get("/api/state", params={"run": ID})).status_code == 404
        refused = await web.client.delete(f"/api/runs/{live['id']}")
        assert (refused.status_code, "being written" in refused.json()["error"]) == (409, True)
        assert (await web.client.patch(f"/api/runs/{live['id']}", json={"title": "this one"})).status_code == 200
        assert (await web.json("/api/state"))["run"]["title"] == "this one"
        (job,) = (await web.json("/api/jobs"))["jobs"]
        assert (await web.client.delete(f"/api/jobs/{job['id']}")).status_code == 204
        assert (await web.json("/api/jobs"))["jobs"] == []
    assert names_in(tmp_path / "state" / "recordings") == set()


async def test_the_report_of_an_import_outlives_the_backend(tmp_path: Path) -> None:
    folder = agentcgroup_folder(tmp_path / "task_1" / "attempt_1").parent
    async with backend(tmp_path) as web:
        assert web.state.library is not None
        done = await read_here(folder, web.state.library.directory)
    async with backend(tmp_path) as web:
        report = (await web.json("/api/status", run=done.run_id))["report"]
        assert report == done.report
        assert any("CPU" in reason for reason in report["reasons"])
        row = next(row for row in (await web.json("/api/runs"))["runs"] if row["id"] == done.run_id)
        assert (row["file"], row["imported_us"]) == ("task_1", report["imported_us"])


async def test_what_is_imported_beside_the_backend_is_there_at_once(tmp_path: Path) -> None:
    async with backend(tmp_path) as web:
        (tmp_path / "r.jsonl").write_bytes(DATA)
        await read_here(tmp_path / "r.jsonl", tmp_path / "state" / "recordings")
        assert ID in {row["id"] for row in (await web.json("/api/runs"))["runs"]}
        assert len((await web.json("/api/state", run=ID))["sessions"]) == 2


async def test_bad_requests_are_refused_in_words(tmp_path: Path) -> None:
    async with backend(tmp_path, upload_bytes=5000) as web:
        for method, path, status, options in (
            ("POST", "/api/runs?name=x", 415, {"content": DATA, "headers": {"content-type": "text/plain"}}),
            ("POST", "/api/runs?name=x", 413, {"content": DATA, "headers": BYTES}),
            ("POST", "/api/runs?name=x&format=nonsense", 400, {"content": b"x", "headers": BYTES}),
            ("PATCH", f"/api/runs/{ID}", 404, {"json": {"title": "x"}}),
            ("PATCH", f"/api/runs/{ID}", 400, {"json": {"name": "x"}}),
            ("DELETE", f"/api/runs/{ID}", 404, {}),
            ("DELETE", "/api/runs/..%2f..%2fetc", 404, {}),
            ("GET", f"/api/runs/{ID}/export", 404, {}),
            ("GET", f"/api/runs/{ID}/export?compress=rar", 400, {}),
            ("GET", "/api/jobs/nothing", 404, {}),
            ("DELETE", "/api/jobs/nothing", 404, {}),
        ):
            answer = await web.client.request(method, path, **options)
            assert (method, path, answer.status_code) == (method, path, status)
            assert answer.json()["error"]
        cross = await web.client.post(
            "/api/runs?name=x", content=b"x", headers={**BYTES, "sec-fetch-site": "same-site"}
        )
        assert cross.status_code == 403
        for method, path in (
            ("GET", "/api/runs"),
            ("POST", "/api/runs"),
            ("DELETE", "/api/runs/x"),
            ("GET", "/api/jobs"),
        ):
            assert (await web.stranger.request(method, path)).status_code == 401
        too_large = await web.client.patch(
            f"/api/runs/{(await web.json('/api/runs'))['runs'][0]['id']}", json={"title": "x" * 300}
        )
        assert too_large.status_code == 400


async def test_a_body_of_unknown_length_is_cut_at_the_limit(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"x" * 1000

    async with backend(tmp_path, upload_bytes=5000) as web:
        answer = await web.client.post("/api/runs?name=x", content=endless(), headers=BYTES)
        job = answer.json()["job"]
        assert (job["state"], job["bytes_done"]) == ("failed", 6000)
        assert "larger than" in job["error"]
    assert names_in(tmp_path / "state" / "recordings") == set()


async def test_a_replay_takes_uploads_for_as_long_as_it_runs(tmp_path: Path) -> None:
    recording = write_recording(tmp_path / "r.jsonl", [RunMeta(t=T0_US, run="old"), *a_session("s1")])
    async with backend(tmp_path, replay=recording) as web:
        assert web.state.library is not None
        private = web.state.library.directory
        body = await web.json("/api/runs")
        assert [(row["id"], row["current"], row["deletable"]) for row in body["runs"]] == [("old", True, False)]
        assert body["temporary"] is True
        assert (await uploaded(web, DATA))["state"] == "done"
        assert len((await web.json("/api/runs"))["runs"]) == 2
        assert (await web.client.delete("/api/runs/old")).status_code == 409
    assert str(private).startswith("/tmp/")
    assert private.name not in names_in(private.parent)
    assert names_in(tmp_path) == {"r.jsonl", "state"}


def raw_upload(server: Server, length: int) -> socket.socket:
    """A connection on which an upload of so many bytes was announced."""
    host, port = server.base_url.removeprefix("http://").rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), 10)
    connection.sendall(
        f"POST /api/runs?name=cut.jsonl HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Length: {length}\r\nCookie: tidegate_session={server.cookies['tidegate_session']}\r\n\r\n".encode()
    )
    return connection


def jobs_of(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/jobs").json()["jobs"]
    return found


def wait_for(condition: Any, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_upload_cut_off_and_a_kill_in_the_middle_of_one(tmp_path: Path) -> None:
    """GIVEN a real backend WHEN an upload's connection breaks, and then it is killed itself in the middle of another
    THEN the first is a failed job that says so, and the next start removes what the second left."""
    recordings = tmp_path / "state" / "recordings"
    with running_server(tmp_path) as server, server.client() as client:
        connection = raw_upload(server, 1 << 30)
        connection.sendall(DATA)
        wait_for(lambda: [job["bytes_done"] for job in jobs_of(client)] == [len(DATA)])
        assert jobs_of(client)[0]["state"] == "receiving"
        connection.close()
        wait_for(lambda: jobs_of(client)[0]["state"] == "failed")
        assert jobs_of(client)[0]["error"] == f"the upload was cut off after {len(DATA)} bytes"
        assert names_in(recordings) == set()
        with raw_upload(server, 1 << 30) as other:
            other.sendall(DATA)
            wait_for(lambda: len(names_in(recordings)) == 1)
            server.process.kill()
            server.process.wait()
    assert len(names_in(recordings)) == 1
    with running_server(tmp_path) as server, server.client() as client:
        assert client.get("/api/state").status_code == 200
        assert names_in(recordings) == set()
        # and a whole one over a real connection, larger than any buffer
        large = b"".join(line + b"\n" for line in scene_lines(sessions=4, ticks=1500))
        answer = client.post("/api/runs?name=big.jsonl", content=large, headers=BYTES, timeout=60)
        job = answer.json()["job"]
        wait_for(lambda: client.get(f"/api/jobs/{job['id']}").json()["job"]["ended_us"] is not None, 60)
        job = client.get(f"/api/jobs/{job['id']}").json()["job"]
        assert (job["state"], job["records"]) == ("done", large.count(b"\n"))
        with client.stream("GET", f"/api/runs/{job['run_id']}/export") as export:
            assert b"".join(export.iter_bytes()) == large
