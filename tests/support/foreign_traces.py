"""Small files in other people's formats, written by us for tests: what is in them is known to the byte."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

T0_S = 1_790_000_000
"""All of them begin here: 2026-09-21T14:13:20Z."""

T0_US = T0_S * 1_000_000
BOOT_NS = 5_000_000_000_000
"""CLOCK_MONOTONIC at :data:`T0_S`."""

COMMAND = "cd /src && python -m pytest tests/secret_name.py -q"


def iso(after_s: float) -> str:
    """A time in UTC as the transcripts write it."""
    moment = datetime.fromtimestamp(T0_S + after_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def local(after_s: float) -> str:
    """The same time as the recorder writes it: eight hours behind, without a zone."""
    return datetime.fromtimestamp(T0_S + after_s - 8 * 3600, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


def sample(after_s: float, memory: str, average: float, *, total: str = "134.5GB") -> dict[str, Any]:
    """One reading of ``podman stats``."""
    return {
        "timestamp": local(after_s), "epoch": T0_S + after_s, "mem_usage": f"{memory} / {total}",
        "mem_percent": "0.1%", "cpu_percent": f"{average:.2f}%",
    }  # fmt: skip


def call(id_: str, tool: str, start_s: float, end_s: float | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """One entry of tool_calls.json."""
    entry = {"timestamp": iso(start_s), "tool": tool, "id": id_, "input": arguments}
    return entry if end_s is None else {**entry, "end_timestamp": iso(end_s), "result_preview": "secret result"}


SAMPLES = [
    sample(0, "11.96MB", 50), sample(1, "183MB", 50), sample(2, "1.862GB", 100), sample(3, "1.2GB", 100),
    sample(4, "200MB", 80), sample(5, "190.5kB", 64), sample(6, "0B", 0, total="0B"),
]  # fmt: skip
CALLS = [
    call("c1", "Bash", 1.5, 3.5, {"command": COMMAND}),
    call("c2", "Read", 2.0, 2.5, {"file_path": "/src/secret.py"}),
    call("c3", "Task", 4.2, 4.8, {"prompt": "a secret prompt"}),
    call("c4", "Bash", 5.5, None, {"command": "git diff"}),
]


def process_events() -> list[dict[str, Any]]:
    """ebpf_trace.jsonl: the agent (100) starts a shell (200) for call c1, which starts python (201)."""

    def at(after_s: float) -> int:
        return BOOT_NS + round(after_s * 1e9)

    def exec_(after_s: float, pid: int, ppid: int, comm: str) -> dict[str, Any]:
        return {
            "timestamp": at(after_s), "event": "EXEC", "comm": comm, "pid": pid, "ppid": ppid,
            "filename": f"/usr/bin/{comm}", "full_command": comm, "rss_kb": 100, "shared_kb": 50,
        }  # fmt: skip

    def exit_(after_s: float, pid: int, ppid: int, comm: str, code: int) -> dict[str, Any]:
        return {
            "timestamp": at(after_s), "event": "EXIT", "comm": comm, "pid": pid, "ppid": ppid, "exit_code": code,
            "duration_ms": 1, "vm_hwm_kb": 2000,
        }  # fmt: skip

    def clock(after_s: float, phase: str) -> dict[str, Any]:
        return {
            "timestamp": at(after_s), "event": "CLOCK_SYNC", "phase": phase, "mono_ns": at(after_s),
            "wall_time_ns": T0_S * 10**9 + round(after_s * 1e9),
        }  # fmt: skip

    sampled = {
        "timestamp": at(2), "event": "RESOURCE_SAMPLE", "target_pid": 100, "total_rss_kb": 9, "num_processes": 1,
        "cgroup_memory_bytes": 52_000_000_000,
    }  # fmt: skip
    return [
        clock(0, "start"), exec_(0.1, 100, 1, "claude"), exec_(0.2, 150, 100, "git"), exit_(0.3, 150, 100, "git", 0),
        exec_(1.508, 200, 100, "bash"), exec_(1.6, 201, 200, "python"), sampled,
        exit_(3.4, 201, 200, "python", 1), exit_(3.498, 200, 100, "bash", 1),
        exec_(4.5, 300, 100, "bash"), exit_(4.6, 300, 100, "bash", 0), clock(6, "end"),
    ]  # fmt: skip


def transcript_lines(session: str = "11111111-2222-3333-4444-555555555555") -> list[dict[str, Any]]:
    """A Claude Code session: a streamed turn with call c1, its failed result, a sub-agent's turn, and an answer."""

    def line(kind: str, uuid: str, parent: str | None, after_s: float, **more: Any) -> dict[str, Any]:
        return {
            "type": kind, "uuid": uuid, "parentUuid": parent, "isSidechain": False, "sessionId": session,
            "cwd": "/home/someone/project", "version": "2.0.0", "timestamp": iso(after_s), **more,
        }  # fmt: skip

    def message(id_: str, block: dict[str, Any], out: int, stop: str | None = None) -> dict[str, Any]:
        usage = {
            "input_tokens": 10, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 3000,
            "output_tokens": out,
        }  # fmt: skip
        head = {"id": id_, "role": "assistant", "model": "a-model-1", "stop_reason": stop}
        return {**head, "content": [block], "usage": usage}

    def result(call_id: str, text: str, *, error: bool) -> dict[str, Any]:
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": error}
        return {"role": "user", "content": [block]}

    use = {"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": COMMAND}}
    inner = {"type": "tool_use", "id": "c2", "name": "Read", "input": {"file_path": "/src/secret.py"}}
    return [
        {"type": "summary", "summary": "a secret summary", "leafUuid": "u1"},
        line("user", "u1", None, 0.5, message={"role": "user", "content": "a secret prompt"}),
        line("assistant", "u2", "u1", 1.2, message=message("m1", {"type": "text", "text": "a secret thought"}, 2)),
        line("assistant", "u3", "u2", 1.5, message=message("m1", use, 40)),
        line("user", "u4", "u3", 3.5, message=result("c1", "Exit code 2\nsecret output", error=True)),
        line("assistant", "u5", "u4", 4.0, message=message("m2", inner, 7), isSidechain=True),
        line("user", "u6", "u5", 4.25, message=result("c2", "secret text", error=False), isSidechain=True),
        line("assistant", "u7", "u4", 5.0, message=message("m3", {"type": "text", "text": "done"}, 9, "end_turn")),
    ]


def write_lines(path: Path, values: list[dict[str, Any]]) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def agentcgroup_folder(path: Path, *, limit: str | None = None) -> Path:
    """A whole attempt: all five files."""
    path.mkdir(parents=True)
    document = {"samples": SAMPLES, "summary": {"sample_count": len(SAMPLES)}}
    (path / "resources.json").write_text(json.dumps(document, indent=1))
    (path / "tool_calls.json").write_text(json.dumps(CALLS, indent=1))
    results = {
        "image": "swerebench/sweb.eval.x86_64.owner_1776_project-7", "model": "haiku", "memory_limit": limit,
        "claude_time": 20.0, "claude_output": {"stdout": "secret output", "exit_code": 0}, "end_time": local(9),
    }  # fmt: skip
    (path / "results.json").write_text(json.dumps(results))
    write_lines(path / "trace.jsonl", transcript_lines())
    write_lines(path / "ebpf_trace.jsonl", process_events())
    return path


def evaluation_folder(path: Path) -> Path:
    """An evaluation of three processes, one of which has no result: it was killed."""
    path.mkdir(parents=True)
    config = {
        "strategy": "bpf",
        "run": 1,
        "total_memory_mb": 1100,
        "high_trace": "a",
        "low1_trace": "b",
        "low2_trace": "b",
    }
    (path / "config.json").write_text(json.dumps(config))
    for role, length_s, high in (("high", 2.0, 0), ("low1", 4.5, 239)):
        result = {
            "name": role.upper(), "pid": 77, "start_time": T0_S + 0.5, "end_time": T0_S + 0.5 + length_s,
            "peak_memory_bytes": 441_345_638, "oom_count": 0, "events_delta": {"high": high, "oom_kill": 0},
            "latency_stats": {"count": 2, "p50_ms": 0.5, "p95_ms": 1.5, "max_ms": 1.5},
            "allocation_latencies_ms": [0.5, 1.5],
        }  # fmt: skip
        (path / f"{role}_result.json").write_text(json.dumps(result))
    return path


def wrapper_log(path: Path) -> Path:
    """Four calls of two sessions: a plain one, one whose command has a newline, a broken one, one that hints."""

    def line(after_s: float, cgroup: str, command: str, exit_: int, peak: str, hint: str = "") -> str:
        start_ns = T0_S * 10**9 + round(after_s * 1e9)
        where = f'"pid":{4000 + exit_},"cgroup":"/sys/fs/cgroup/agentcg/{cgroup}"'
        memory = f'"peak_mem":"{peak}","current_mem":"4096","hint":"{hint}"'
        return f'{{"ts":{start_ns},{where},"cmd":"{command}","exit":{exit_},"duration_ms":1500,{memory}}}\n'

    path.write_text(
        line(0, "session_high/tool_4000_1", COMMAND, 0, "104857600", "memory:2g")
        + line(2, "session_high/tool_4001_2", "cat > x <<E\nsecret\nE", 1, "unknown")
        + line(4, "session_low/tool_4137_3", "git status", 137, "1000")
        + line(6, "session_low/tool_4000_4", 'echo "quotes"', 0, "1000")
    )
    return path


def claude_transcript(path: Path) -> Path:
    """The lines of :func:`transcript_lines` in one file."""
    return write_lines(path, transcript_lines())


def weka_trace(path: Path) -> Path:
    """A conversation of three requests, each of which goes on from the one before, with a sub-agent between."""
    first = {"t": 0.0, "type": "n", "in": 200, "out": 70, "hash_ids": [1, 2, 3], "api_time": 2.0, "stop": "tool_use"}
    agent = {
        "t": 3.0, "type": "subagent", "agent_id": "agent_001",
        "requests": [{"t": 0.5, "type": "n", "in": 130, "out": 10, "hash_ids": [90, 91], "api_time": 1.0}],
    }  # fmt: skip
    second = {"t": 10.0, "type": "n", "in": 330, "out": 10, "hash_ids": [1, 2, 3, 4, 5], "api_time": 1.0}
    third = {"t": 20.0, "type": "n", "in": 400, "out": 10, "hash_ids": [1, 2, 3, 4, 5, 6], "api_time": 1.0}
    trace = {
        "id": "trace_1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 1,
        "system_tokens": 1, "requests": [first, agent, second, third],
    }  # fmt: skip
    path.write_text(json.dumps(trace))
    return path


def mooncake_trace(path: Path) -> Path:
    """Two sessions: the third request goes on where the first one ended; all share their first block."""
    lines = [
        {"timestamp": 0, "input_length": 1600, "output_length": 2, "hash_ids": [0, 1, 2, 3]},
        {"timestamp": 1000, "input_length": 1100, "output_length": 2, "hash_ids": [0, 7, 8]},
        {"timestamp": 5000, "input_length": 2600, "output_length": 2, "hash_ids": [0, 1, 2, 4, 5, 6]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def kv_events(path: Path) -> Path:
    """KV events, a line each: two sessions store blocks, one of them loses two, a batch is missing, all is cleared."""

    def stored(seq: int, after_s: float, hashes: list[int], session: str | None) -> dict[str, Any]:
        return {
            "seq": seq, "ts": T0_S + after_s, "dp": 0, "type": "BlockStored", "block_hashes": hashes,
            "parent_block_hash": None, "token_ids": 32 * len(hashes), "block_size": 32, "medium": "GPU",
            "session_id": session,
        }  # fmt: skip

    lost = {"seq": 1, "ts": T0_S + 1, "dp": 0, "type": "BlockRemoved", "block_hashes": [1, 2], "medium": "GPU"}
    lines = [
        stored(0, 0, [1, 2, 3], "a"), lost, stored(1, 1, [4], "b"), stored(2, 2.5, [9], None),
        stored(4, 4, [5], "b"), {"seq": 5, "ts": T0_S + 5, "dp": 0, "type": "AllBlocksCleared"},
    ]  # fmt: skip
    return write_lines(path, lines)


def continuum_timestamps(path: Path) -> Path:
    """Continuum's scheduler on two jobs: one is pinned and comes back in time, one is preempted and comes back late."""
    jobs: dict[str, list[dict[str, float]]] = {
        "astropy__astropy-7746": [
            {"Request_arrival_time": T0_S + 0.0},
            {"waiting_to_running": T0_S + 0.5, "prompt_length": 320, "hit_length": 0},
            {"Request_departure_time": T0_S + 2.0},
            {"pinned_time": T0_S + 2.0},
            {"Request_arrival_time": T0_S + 3.0},
            {"waiting_to_running": T0_S + 3.1, "prompt_length": 480, "hit_length": 320},
            {"Request_departure_time": T0_S + 4.0},
        ],
        "job two": [
            {"Request_arrival_time": T0_S + 1.0},
            {"waiting_to_running": T0_S + 1.0, "prompt_length": 160, "hit_length": 0},
            {"Request_evicted_from_running_queue_time": T0_S + 1.5},
            {"evicted_to_running": T0_S + 2.5, "prompt_length": 160, "hit_length": 0},
            {"Request_departure_time": T0_S + 3.0},
            {"pinned_time": T0_S + 3.0},
            {"unpinned_time": T0_S + 5.0},
            {"Request_arrival_time": T0_S + 9.0},
            {"waiting_to_running": T0_S + 9.0, "prompt_length": 200, "hit_length": 64},
            {"Request_departure_time": T0_S + 10.0},
        ],
    }
    path.write_text(json.dumps(jobs, indent=2))
    return path
