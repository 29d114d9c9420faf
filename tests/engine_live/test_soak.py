"""Eight agents at once on a live vLLM, any action after any turn, some of them gone before the answer is there.

``TIDEGATE_SOAK_S=60`` makes it longer than the 20 s of every run.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine_live.test_live_engine import records
from tests.support.server import running_server
from tests.support.vllm_server import POOL_BLOCKS, missing, running_vllm

SOAK_S = float(os.environ.get("TIDEGATE_SOAK_S", "20"))
AGENTS = 8
HOST_BYTES = 96 * 32 * 512  # half again as many blocks as the pool has
ACTIONS = ("KEEP", "PIN", "OFFLOAD", "OFFLOAD", "DROP", None)
CONNECTOR = {
    "kv_connector": "TidegateHostTier",
    "kv_role": "kv_both",
    "kv_connector_module_path": "tidegate_collectors.engine.plugin.host_tier_connector",
}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300 + 2 * SOAK_S),
    pytest.mark.skipif(bool(missing()), reason=missing() or "installed"),
]


def agent(engine: httpx.Client, number: int, until_s: float, seed: int) -> Counter[str]:
    """Conversations that grow, one after the other; what its turns came to."""
    rng, done, conversation = random.Random(seed + number), Counter[str](), 0
    text = ""
    while time.monotonic() < until_s:
        if not text or len(text) > 800 or rng.random() < 0.05:
            conversation += 1
            text = f"agent {number}, conversation {conversation}: " + "x" * rng.randrange(60, 300)
        action = rng.choice(ACTIONS)
        extra: dict[str, Any] = {"kv_ttl_s": 0.3} | ({"kv_action": action} if action else {})
        body = {
            "model": "tiny", "prompt": text, "max_tokens": rng.randrange(2, 24), "temperature": 0, "ignore_eos": True,
            "vllm_xargs": extra,
        }  # fmt: skip
        headers = {"X-Session-ID": f"soak-{number}-{conversation}"}
        if rng.random() < 0.15:  # it hangs up
            with engine.stream("POST", "/v1/completions", headers=headers, json=body | {"stream": True}) as answer:
                for _ in zip(answer.iter_lines(), range(rng.randrange(3)), strict=False):
                    pass
            done["hung up"] += 1
        else:
            answer = engine.post("/v1/completions", headers=headers, json=body)
            done[str(answer.status_code)] += 1
            text += f" {rng.randrange(10**6)}" * rng.randrange(1, 5)
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.1)
    return done


def test_agents_do_anything_at_once(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    with (
        tempfile.TemporaryDirectory(prefix="tgs") as directory,
        running_server(Path(directory)) as backend,
        running_vllm(
            tmp_path, backend.runtime_dir, "--kv-transfer-config", json.dumps(CONNECTOR), mode="enforce", name="soak",
            max_ttl_s="1", host_bytes=str(HOST_BYTES),
        ) as engine,
    ):  # fmt: skip
        until_s = time.monotonic() + SOAK_S
        with ThreadPoolExecutor(AGENTS) as pool:
            came = sum(pool.map(lambda n: agent(engine, n, until_s, seed), range(AGENTS)), Counter[str]())
        assert set(came) == {"200", "hung up"}, f"seed {seed}: {came}"

        deadline = time.monotonic() + 30
        while True:
            found = records(backend)
            last = [record for record in found if record["type"] == "engine.sample"][-1]
            busy = ("running", "waiting", "blocks_active", "blocks_pinned")
            if not any(last.get(name, 0) for name in busy):
                break
            assert time.monotonic() < deadline, f"seed {seed}: {last}"
            time.sleep(0.5)
        kinds = Counter(record["type"] for record in found)
        transfers = [record for record in found if record["type"] == "kv.transfer"]
        ways = Counter((record["direction"], record.get("ok", True)) for record in transfers)
        print(f"\nsoak, seed {seed}: {dict(came)} {dict(kinds)} {dict(ways)}")

        assert last.get("blocks_cached", 0) + last.get("blocks_free", 0) == POOL_BLOCKS
        samples = [record for record in found if record["type"] == "engine.sample"]
        assert max(record.get("host_used_bytes", 0) for record in samples) <= last["host_total_bytes"] <= HOST_BYTES
        assert not kinds["engine.mode"], [record for record in found if record["type"] == "engine.mode"]
        assert ways["out", True] > 10 and ways["in", True] > 10
        # A copy may find no room beside those that are being made, and nothing else may go wrong.
        assert all("no room" in record["error"] for record in transfers if not record.get("ok", True))
        actions = Counter(record["action"] for record in found if record["type"] == "kv.decision")
        assert set(actions) == {"KEEP", "PIN", "OFFLOAD", "DROP"}
        metrics = engine.get("/metrics").text
        left = [
            line
            for line in metrics.splitlines()
            if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
        ]
        assert len(left) == 2 and all(float(line.split()[-1]) == 0 for line in left), left
        # AND the engine serves on
        body = {"model": "tiny", "prompt": "still there?", "max_tokens": 4}
        assert engine.post("/v1/completions", json=body).status_code == 200
