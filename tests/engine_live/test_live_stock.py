"""A real vLLM without our plugin, watched by ``tidegate collect --engine``: what comes to a real backend."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import Server, running_server
from tests.support.vllm_server import BLOCK_TOKENS, POOL_BLOCKS, missing
from tidegate.demo import engine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(missing()), reason=missing() or "installed"),
]

Records = list[dict[str, Any]]


@dataclass
class Stock:
    """A vLLM, the collector beside it, and the backend."""

    backend: Server
    client: httpx.Client
    url: str
    sent_tokens: int = 0
    cached_tokens: int = 0

    def turn(self, session: str, prompt: str) -> tuple[int, int]:
        """Tokens of a prompt, and those that were found, as the engine tells its client."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0}
        answer = self.client.post("/v1/completions", headers={"X-Session-ID": session}, json=body)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        found = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"] or 0
        self.sent_tokens += found[0]
        self.cached_tokens += found[1]
        return found

    def records(self) -> Records:
        """Everything that the live run has so far."""
        with self.backend.client() as client:
            run = client.get("/api/state").json()["run"]["id"]
            return [json.loads(line) for line in client.get(f"/api/runs/{run}/export").text.splitlines()]

    def wait_until(self, condition: Callable[[Records], bool]) -> Records:
        """The records, once they are as they should be."""
        deadline = time.monotonic() + 30
        while not condition(found := self.records()):
            assert time.monotonic() < deadline, [record for record in found if record["type"] != "run.meta"][-12:]
            time.sleep(0.2)
        return found


@contextlib.contextmanager
def collecting(backend: Server, url: str, events: str, replay: str, log: Path) -> Iterator[None]:
    """``tidegate collect --engine``, as a process, without more rights than any other."""
    command = [
        sys.executable, "-m", "tidegate", "collect", "--engine", url, "--kv-events", events, "--kv-replay", replay,
        "--link", str(backend.link_socket), "--engine-name", "stock", "--interval", "0.25",
    ]  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    directory = tmp_path_factory.mktemp("vllm")
    with tempfile.TemporaryDirectory(prefix="tgl") as place, running_server(Path(place)) as backend:
        events, replay = f"ipc://{place}/ev", f"ipc://{place}/rp"
        config = {
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events, "replay_endpoint": replay,
            "topic": "kv-events",
        }  # fmt: skip
        python = engine.find_python()
        options = engine.EngineOptions(
            python=python, log=directory / "vllm.log", pool_blocks=POOL_BLOCKS, max_tokens=1024, plugin=False,
            arguments=("--kv-events-config", json.dumps(config)),
        )  # fmt: skip
        with (
            engine.running_engine(options, engine.make_model(python, directory)) as running,
            httpx.Client(base_url=running.url, timeout=60.0) as client,
            collecting(backend, running.url, events, replay, directory / "collect.log"),
        ):
            yield Stock(backend, client, running.url)


def samples(found: Records) -> Records:
    return [record for record in found if record["type"] == "engine.sample"]


def residency(found: Records, session: str) -> dict[str, int]:
    last = [record for record in found if record["type"] == "kv.transition" and record.get("session") == session]
    value: dict[str, int] = last[-1].get("residency", {}) if last else {}
    return value


def test_counts_are_those_that_clients_were_told(stock: Stock) -> None:
    first, _ = stock.turn("a", "a" * 300)
    again, cached = stock.turn("a", "a" * 300 + "b" * 100)
    stock.turn("b", "c" * 200)
    assert cached >= (first // BLOCK_TOKENS - 1) * BLOCK_TOKENS

    found = stock.wait_until(
        lambda found: bool(samples(found)) and samples(found)[-1].get("prompt_tokens") == stock.sent_tokens
    )
    last = samples(found)[-1]
    assert (last["prefix_queries_tokens"], last["prefix_hits_tokens"]) == (stock.sent_tokens, stock.cached_tokens)
    assert last["output_tokens"] == 24 and not last.get("missing")
    start = next(record for record in found if record["type"] == "engine.start")
    assert (start["engine"], start["version"], start["model"]) == ("stock", "0.32.0", "tiny")
    assert (start["block_tokens"], start["pool_blocks"], start.get("plugin", False)) == (
        BLOCK_TOKENS,
        POOL_BLOCKS,
        False,
    )
    # A block is cached when it is full; that of the last tokens of an answer may be one of them.
    assert residency(found, "a")["device_cached"] in (again // BLOCK_TOKENS, (again + 8) // BLOCK_TOKENS)
    assert not [record for record in found if record["type"] == "loss"]


def test_the_pool_adds_up_and_what_was_removed_is_not_found(stock: Stock) -> None:
    stock.turn("victim", "v" * 300)
    before = residency(stock.wait_until(lambda found: bool(residency(found, "victim"))), "victim")
    for number in range(8):
        stock.turn(f"other-{number}", chr(65 + number) * 600)

    found = stock.wait_until(lambda found: residency(found, "victim") == {"gone": before["device_cached"]})
    _, cached = stock.turn("victim", "v" * 300)
    assert cached == 0
    found = stock.wait_until(lambda found: residency(found, "victim").get("device_cached") == before["device_cached"])
    idle = stock.wait_until(
        lambda found: samples(found)[-1].get("running") == 0 and samples(found)[-1]["blocks_used"] == 0
    )
    last = samples(idle)[-1]
    assert last["blocks_cached"] + last["blocks_free"] == POOL_BLOCKS == last["blocks_total"]
    held: dict[str, int] = {}
    for record in found:
        if record["type"] == "kv.transition":
            held[record["session"]] = record.get("residency", {}).get("device_cached", 0)
    assert sum(held.values()) == last["blocks_cached"]
    assert "blocks_active" not in last and "blocks_pinned" not in last


def test_what_needs_the_plugin_is_said(stock: Stock) -> None:
    found = stock.wait_until(lambda found: any(record["type"] == "capability" for record in found))

    reasons = {record["name"]: record.get("reason", "") for record in found if record["type"] == "capability"}
    assert "docs/engine.md" in reasons["engine.pin"] and "in use or pinned" in reasons["engine.residency"]
    assert not [record for record in found if record["type"] in ("kv.decision", "turn.end")]
