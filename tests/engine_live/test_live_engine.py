"""A real vLLM with the plugin and a real backend: what an operator sees of sessions that come back."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import Server, running_server
from tests.support.vllm_server import BLOCK_TOKENS, POOL_BLOCKS, missing, running_vllm

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(missing()), reason=missing() or "installed"),
]


@pytest.fixture(scope="module")
def backend() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="tgv") as directory, running_server(Path(directory)) as server:
        yield server


@pytest.fixture(scope="module")
def engine(backend: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_vllm(tmp_path_factory.mktemp("vllm"), backend.runtime_dir, mode="enforce", name="live") as client:
        yield client


def turn(engine: httpx.Client, session: str, prompt: str, name: str = "", **extra: Any) -> tuple[int, int]:
    """Tokens of a prompt, and those that were found, as the engine tells its client."""
    headers = {"X-Session-ID": session} | ({"X-Request-Id": name} if name else {})
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "vllm_xargs": extra}
    answer = engine.post("/v1/completions", headers=headers, json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"] or 0


def records(backend: Server) -> list[dict[str, Any]]:
    """Everything that the live run has so far."""
    with backend.client() as client:
        run = client.get("/api/state").json()["run"]["id"]
        lines = client.get(f"/api/runs/{run}/export").text.splitlines()
    return [json.loads(line) for line in lines]


def wait_for(backend: Server, kind: str, **fields: Any) -> dict[str, Any]:
    """The first record with these fields, once it is there."""
    deadline = time.monotonic() + 20
    while True:
        for record in records(backend):
            if record["type"] == kind and all(record.get(name) == value for name, value in fields.items()):
                return record
        assert time.monotonic() < deadline, f"no {kind} with {fields}"
        time.sleep(0.2)


def test_a_pinned_session_outlives_pressure_and_a_kept_one_does_not(backend: Server, engine: httpx.Client) -> None:
    first = {"pinned": "p" * 160, "kept": "k" * 160}
    turn(engine, "pinned", first["pinned"], kv_action="PIN", kv_ttl_s=30)
    turn(engine, "kept", first["kept"], kv_action="KEEP")
    for number in range(4):
        turn(engine, f"other-{number}", chr(97 + number) * 700, kv_action="KEEP")

    found = {name: turn(engine, name, text + "!", f"back-{name}", kv_action="KEEP")[1] for name, text in first.items()}
    assert found == {"pinned": 160, "kept": 0}
    outcome = wait_for(backend, "kv.outcome", session="kept", turn="back-kept")
    assert (outcome["served_from"], outcome["recomputed_tokens"], outcome["evicted"]) == ("recompute", 160, True)
    assert wait_for(backend, "kv.outcome", session="pinned", turn="back-pinned")["served_from"] == "device"
    taken = wait_for(backend, "kv.transition", session="kept", cause="lru")
    assert taken["victim_of"].startswith("other-")


def test_a_pin_runs_out_in_an_idle_engine(backend: Server, engine: httpx.Client) -> None:
    turn(engine, "brief", "b" * 100, kv_action="PIN", kv_ttl_s=0.5)

    released = wait_for(backend, "kv.transition", session="brief", cause="ttl")
    assert (released["from"], released["to"], released["blocks"]) == ("device_pinned", "device_cached", 3)
    time.sleep(0.6)
    samples = [record for record in records(backend) if record["type"] == "engine.sample"]
    assert samples[-1].get("blocks_pinned", 0) == 0


def test_turns_have_the_numbers_of_the_client(backend: Server, engine: httpx.Client) -> None:
    prompt, _ = turn(engine, "numbers", "n" * 200, kv_action="KEEP")
    _, cached = turn(engine, "numbers", "n" * 200 + "m" * 50, "numbers-2", kv_action="KEEP")

    end = wait_for(backend, "turn.end", session="numbers", turn="numbers-2")
    assert prompt == 200 and cached == 192
    assert (end["prompt_tokens"], end["cached_device_tokens"], end["output_tokens"]) == (250, 192, 8)
    assert end["prefill_us"] > 0 and end["decode_us"] > 0


def test_agents_at_once_leave_no_block_behind(backend: Server, engine: httpx.Client) -> None:
    actions = ("PIN", "KEEP", "DROP")

    def agent(number: int) -> None:
        text = chr(65 + number) * 64
        for step in range(12):
            text += f"{step}" * 30
            extra = {"kv_action": actions[(number + step) % 3], "kv_ttl_s": 0.3} if step % 4 else {}
            turn(engine, f"agent-{number}", text[-900:], f"agent-{number}-{step}", **extra)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(agent, range(8)))
    deadline = time.monotonic() + 40  # a pin that the rule chose lasts 30 s at most
    while True:
        last = [record for record in records(backend) if record["type"] == "engine.sample"][-1]
        if last.get("running", 0) + last.get("blocks_active", 0) + last.get("blocks_pinned", 0) == 0:
            break
        assert time.monotonic() < deadline, last
        time.sleep(0.5)
    assert last.get("blocks_cached", 0) + last.get("blocks_free", 0) == POOL_BLOCKS
    assert not [record for record in records(backend) if record["type"] in ("engine.mode", "loss")]


def test_the_engine_is_introduced(backend: Server, engine: httpx.Client) -> None:
    start = wait_for(backend, "engine.start", engine="live")

    assert (start["model"], start["block_tokens"], start["pool_blocks"]) == ("tiny", BLOCK_TOKENS, POOL_BLOCKS)
    assert (start["mode"], start["rule"], start["version"]) == ("enforce", "four-state", "0.32.0")
    assert wait_for(backend, "capability", name="engine.offload").get("available") is False
