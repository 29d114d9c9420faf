"""``tidegate demo --engine`` for real: agents, tools, gateway, engine and collectors, in one run on one clock."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.start_script import Started, started, wait_for
from tests.support.vllm_server import missing
from tidegate.demo import engine
from tidegate.demo.engine_tools import TOOLS

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(missing()), reason=missing() or "installed"),
]

AGENTS = 3
TURNS = 10
"""Of a session: eight that ask for tools, one that answers, and the last."""


def records(script: Started, cookie: str) -> list[dict[str, Any]]:
    run = json.loads(script.get("/api/state", cookie)[1])["run"]["id"]
    return [json.loads(line) for line in script.get(f"/api/runs/{run}/export", cookie)[1].splitlines()]


def sessions_of(found: list[dict[str, Any]], kind: str, **fields: Any) -> Counter[str]:
    return Counter(
        record["session"]
        for record in found
        if record["type"] == kind and all(record.get(name) == value for name, value in fields.items())
    )


def test_both_planes_of_the_same_sessions_are_in_one_run() -> None:
    # Loaded by root with BPF, otherwise by looking at /proc, which misses short calls but not pytest.
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as directory, started(watchdog_s=350) as script:
        cookie = script.get(script.wait_until_up())[2]
        script.wait_for_collector("bpf" if root else "")

        done = subprocess.run(
            [sys.executable, "-m", "tidegate", "demo", "--engine", "--rounds", "1", "--agents", str(AGENTS)],
            env={**script.environment, "TMPDIR": directory},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

        # THEN it ended by itself and left nothing
        assert done.returncode == 0, done.stdout + done.stderr
        assert not list(Path(directory).iterdir())
        ports = [int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)", done.stdout)]
        assert len(set(ports)) == 2 and not any(engine.answers(port) for port in ports)
        assert not [words for words in script.processes().values() if any("vllm" in word for word in words)]

        # AND the engine ended its turns, with tools that the kernel plane saw running
        wait_for(lambda: len(sessions_of(records(script, cookie), "session.end")) == AGENTS, 15, "all sessions ended")
        found = records(script, cookie)
        unable = [record for record in found if record["type"] == "capability" and not record["available"]]
        assert not [record for record in unable if record["name"].startswith("engine.")]
        assert not [record for record in found if record["type"] == "engine.mode"], "the plugin gave up"
        turns = sessions_of(found, "turn.end", finish_reason="tool_calls", by="gateway")
        assert len(turns) == AGENTS and min(turns.values()) >= 6
        assert set(sessions_of(found, "call.end")) == set(turns)
        assert min(sessions_of(found, "call.end").values()) >= (6 if root else 1)

        # AND each turn has one decision, at the boundaries of calls with the tool that the answer asked for
        decisions = [record for record in found if record["type"] == "kv.decision"]
        assert sessions_of(found, "kv.decision") == dict.fromkeys(turns, TURNS)
        at_calls = [record for record in decisions if record["boundary"] == "call"]
        assert len(at_calls) >= 6 * AGENTS
        assert {record["tool"] for record in at_calls} <= set(TOOLS)
        asked = {(record["session"], record["turn"]): record["tools"] for record in found if "tools" in record}
        for record in at_calls:
            assert record["tool"] == asked[record["session"], record["turn"]][-1]
        last = [record for record in decisions if record["boundary"] == "terminal"]
        assert Counter(record["session"] for record in last) == dict.fromkeys(turns, 1)
        assert {record["action"] for record in last} == {"DROP"}

        # AND no plane lost anything, and the engine said goodbye
        assert [record.get("clean", True) for record in found if record["type"] == "engine.end"] == [True]
        assert not [record for record in found if record["type"] == "loss"]
        assert script.interrupt() == 0
