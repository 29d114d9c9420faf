"""The JSON API: shapes, bounds, errors."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from tests.support.backend import T0_US, Backend, a_session, backend
from tidegate_collectors.records import HostSample, Loss, MemBurst, ProcExec, ProcExit, PsiSample, SchedSample

pytestmark = pytest.mark.asyncio(loop_scope="module")


def words(text: str) -> set[str]:
    return set(text.split())


HOSTILE = "../x/../</script>\u202e?#"

SESSION_KEYS = words(
    "id title agent priority state host started_us ended_us end_reason exit_code signal budget_bytes runtime_bytes "
    "calls_bytes peak_bytes calls_total calls_running bursts ooms left_behind tool_time_us bursts_in_calls cpu_us "
    "wait_us stall_us current last_t_us planes turns current_turn kv"
)
CALL_KEYS = words(
    "session id ordinal tool category command hint hint_bytes boundary pid cgroup_id started_us ended_us state lane "
    "exit_code signal oom duration_us bytes peak_bytes spike_bytes kept_bytes charged_peak_bytes rise_bytes_per_s "
    "cpu_us wait_us stall_us processes left_behind bursts agent_tool agent_call_id match_confidence match_how "
    "match_position result_chars agent_failed"
)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def web(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    async with backend(tmp_path_factory.mktemp("api")) as found:
        await found.record(
            HostSample(t=T0_US, mem_available_bytes=6 << 30, mem_total_bytes=8 << 30, window_us=100_000),
            *a_session("s1"),
            MemBurst(t=T0_US + 50_000, session="s1", call="c1", grown_bytes=1, window_us=1, total_bytes=2),
            ProcExec(t=T0_US, session="s1", call="c1", pid=10, ppid=9, comm="git"),
            ProcExit(t=T0_US + 10, session="s1", call="c1", pid=10, exit_code=0, hiwater_bytes=5),
            SchedSample(t=T0_US + 100_000, session="s1", call="c1", oncpu_us=1000, wait_us=50_000, window_us=100_000),
            PsiSample(t=T0_US + 100_000, session="s1", memory_some_us=25_000, cpu_some_us=0, window_us=100_000),
            Loss(t=T0_US + 1_500_000, where="bpf_ring", count=3, of="events", since_us=T0_US + 1_400_000),
            Loss(t=T0_US + 90_000_000, where="store", count=1, of="events"),
            *a_session(HOSTILE, calls=1, t_us=T0_US + 5_000_000),
        )
        yield found


def values(column: dict[str, str]) -> list[float]:
    assert column["dtype"] == "f8"
    data = base64.b64decode(column["bdata"])
    return list(struct.unpack(f"<{len(data) // 8}d", data))


async def test_state(web: Backend) -> None:
    body = await web.json("/api/state")
    assert set(body) == {
        "run", "ord", "now_us", "sessions", "hosts", "engines", "lost", "sources", "events", "spark",
        "unknown_types", "playhead",
    }  # fmt: skip
    assert set(body["run"]) == {
        "id", "title", "source", "kind", "started_us", "ended_us", "replay", "writing",
    }  # fmt: skip
    assert body["run"]["replay"] is False
    assert body["ord"] == web.state.state.ord > 0
    by_id = {session["id"]: session for session in body["sessions"]}
    assert set(by_id) == {"s1", HOSTILE}
    assert set(by_id["s1"]) == SESSION_KEYS
    assert by_id["s1"]["calls_total"] == 2
    assert body["lost"]["total"] == 4
    assert body["spark"]["s1"][0][0] >= T0_US
    ords = [event["ord"] for event in body["events"]]
    assert ords == sorted(ords, reverse=True)


async def test_session(web: Backend) -> None:
    body = await web.json("/api/sessions/s1")
    assert set(body) == {"session", "calls", "events", "processes", "span", "playhead"}
    assert [call["id"] for call in body["calls"]] == ["c1", "c2"]
    assert set(body["calls"][0]) == CALL_KEYS
    types = [event["type"] for event in body["events"]]
    assert "mem.burst" in types
    losses = [event["body"]["where"] for event in body["events"] if event["type"] == "loss"]
    assert losses == ["bpf_ring"]  # not the one that came after its end
    assert all(set(event) == {"ord", "t_us", "type", "session", "call", "body"} for event in body["events"])


async def test_call(web: Backend) -> None:
    body = await web.json("/api/sessions/s1/calls/c1")
    assert set(body) == {"call", "processes", "neighbours"}
    assert [(process["pid"], process["hiwater_bytes"]) for process in body["processes"]] == [(10, 5)]
    assert set(body["neighbours"]) == {"previous", "next", "overlapping"}
    assert body["neighbours"]["previous"] is None
    assert body["neighbours"]["next"]["id"] == "c2"


async def test_hostile_id_is_one_segment_and_only_compared(web: Backend) -> None:
    segment = quote(HOSTILE, safe="")
    assert (await web.json(f"/api/sessions/{segment}"))["session"]["id"] == HOSTILE
    assert (await web.json(f"/api/sessions/{segment}/calls/c1"))["call"]["session"] == HOSTILE
    assert (await web.json(f"/api/sessions/{segment}/series"))["px"] == 1200


async def test_series(web: Backend) -> None:
    body = await web.json("/api/sessions/s1/series", from_us=T0_US, to_us=T0_US + 2_000_000, px=100)
    assert set(body) == {"from_us", "to_us", "px", "resolution_us", "memory", "wait", "pressure", "gaps"}
    assert (body["from_us"], body["to_us"], body["px"]) == (T0_US, T0_US + 2_000_000, 100)
    times = values(body["memory"]["t_ms"])
    assert len(times) == len(values(body["memory"]["runtime_bytes"])) == len(values(body["memory"]["calls"]["git"]))
    assert max(values(body["memory"]["calls"]["git"])) == 90_000_000
    assert max(values(body["wait"]["percent"])) == 50
    assert max(value for value in values(body["pressure"]["memory_percent"]) if value == value) == 25
    assert [T0_US + 1_400_000, T0_US + 1_500_000] in body["gaps"]


async def test_series_spans_the_session_by_default(web: Backend) -> None:
    body = await web.json("/api/sessions/s1/series")
    assert (body["from_us"], body["to_us"]) == (T0_US, T0_US + 2_000_001)


async def test_host_series(web: Backend) -> None:
    body = await web.json("/api/host/series", from_us=T0_US, to_us=T0_US + 2_000_000, px=50)
    assert set(body) == {"t_ms", "used_bytes", "available_bytes", "sessions", "cpu_percent"}
    assert len(values(body["t_ms"])) == 50
    assert max(value for value in values(body["used_bytes"]) if value == value) == 2 << 30
    assert set(body["sessions"]) == {"s1"}


@pytest.mark.parametrize(
    "query",
    [
        "px=49", "px=4001", "px=x", "px=", "from_us=-1", "from_us=1e400", "to_us=9999999999999999999999",
        "from_us=5&to_us=5", "from_us=6&to_us=5",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/sessions/s1/series", "/api/host/series"])
async def test_bad_bounds_are_explained(web: Backend, path: str, query: str) -> None:
    answer = await web.client.get(f"{path}?{query}")
    assert answer.status_code == 400
    body = answer.json()
    assert set(body) == {"ok", "error", "status"}
    assert (body["ok"], body["status"]) == (False, 400)
    assert query.rpartition("&")[2].partition("=")[0] in body["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/api/nothing", "/api", "/api/", "/api/sessions", "/api/sessions/none", "/api/sessions/none/series",
        "/api/sessions/s1/calls/none", "/api/sessions/none/calls/c1", "/api/sessions/..%2fs1", "/api/sessions/S1",
        "/api/sessions/%00", "/api/sessions/%ff",
    ],
)  # fmt: skip
async def test_unknown_is_404(web: Backend, path: str) -> None:
    answer = await web.client.get(path)
    assert answer.status_code == 404
    if path != "/api":
        assert answer.json() == {"ok": False, "error": answer.json()["error"], "status": 404}


async def test_method_is_405(web: Backend) -> None:
    for path in ("/api/state", "/", "/health"):
        answer = await web.client.post(path, json={})
        assert answer.status_code == 405
    assert (await web.client.delete("/api/state")).json()["status"] == 405


async def test_no_answer_may_be_cached(web: Backend) -> None:
    for path in ("/api/state", "/api/sessions/s1", "/api/status", "/api/runs", "/api/definitions"):
        assert (await web.client.get(path)).headers["cache-control"] == "no-store", path


async def test_export(web: Backend) -> None:
    assert web.state.opened is not None
    path = f"/api/runs/{web.state.opened.run.id}/export"
    answer = await web.client.get(path)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) == web.state.state.ord
    assert lines[0]["type"] == "run.meta"
    one = await web.client.get(path, params={"session": "s1"})
    assert {line.get("session") for line in map(json.loads, one.text.splitlines())} <= {"s1", None}
    assert (await web.client.get(path, params={"session": "none"})).status_code == 404


async def test_export_file_name_is_safe(web: Backend) -> None:
    assert web.state.opened is not None
    answer = await web.client.get(f"/api/runs/{web.state.opened.run.id}/export", params={"session": HOSTILE})
    disposition = answer.headers["content-disposition"]
    name = disposition.removeprefix('attachment; filename="').removesuffix('"')
    assert name.endswith(".jsonl")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


async def test_status(web: Backend) -> None:
    body = await web.json("/api/status")
    for key in ("run", "version", "started_us", "now_us", "replay", "store", "ingest", "sources", "stream", "lost"):
        assert body[key] is not None, key
    assert body["store"]["database_bytes"] > 0
    assert body["ingest"]["records"] == web.state.state.ord
    assert body["ingest"]["commit_p99_ms"] > 0
    assert body["link"]["listening"] is True
    assert body["process"]["rss_bytes"] > 10_000_000
    assert set(body["stream"]) >= {"clients", "queued", "dropped_frames"}


async def test_definitions_and_capabilities(web: Backend) -> None:
    definitions: list[dict[str, Any]] = (await web.json("/api/definitions"))["definitions"]
    assert all(set(item) == {"key", "label", "meaning", "formula", "unit", "source", "is_not"} for item in definitions)
    assert (await web.json("/api/capabilities"))["capabilities"] == []


async def test_numbers_beyond_64_bits_do_not_stop_the_state(web: Backend) -> None:
    web.state.state.sessions["s1"].budget_bytes = 10**30
    try:
        answer = await web.client.get("/api/state")
        assert answer.status_code == 200
        assert str(10**30) in answer.text
    finally:
        web.state.state.sessions["s1"].budget_bytes = None
