"""``tidegate demo``: its options, and the whole thing against a real collector and backend."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.start_script import started, wait_for

REPOSITORY = Path(__file__).resolve().parents[3]
TIDEGATE = [sys.executable, "-m", "tidegate"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agents", "0"], "--agents 0: expected 1 to 64"),
        (["--agents", "65"], "--agents 65: expected 1 to 64"),
        (["--rounds", "0"], "must be above 0"),
        (["--minutes", "0"], "must be above 0"),
        (["--pace", "-1"], "--pace must not be negative"),
        (["--minutes", "1", "--rounds", "1"], "not allowed with"),
        (["--minutes", "nan"], "must be above 0"),
        (["--pace", "inf"], "--pace must not be negative"),
        (["--rule", "lru"], "--rule: only with --engine"),
        (["--mode", "observe", "--vllm-python", "x"], "--mode, --vllm-python: only with --engine"),
        (["--engine", "--rule", "best"], "argument --rule: invalid choice"),
        (["--engine", "--pool-blocks", "64"], "--pool-blocks 64: expected 96"),
        (["--engine", "--host-mib", "-1"], "--host-mib -1: expected 0 to 4096"),
        (["--engine", "--vllm-python", "/nowhere/python"], "--vllm-python: '/nowhere/python' is no program"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str) -> None:
    done = subprocess.run([*TIDEGATE, "demo", *arguments], capture_output=True, text=True, timeout=30)

    assert done.returncode == 2
    assert message in done.stderr


def test_without_a_collector_it_says_how_to_start_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process, so that the wait for a collector can be short.
    from tidegate.demo import conductor
    from tidegate.errors import UnavailableError

    monkeypatch.setattr(conductor, "_COLLECTOR_WAIT_S", 0.2)
    monkeypatch.setenv("TIDEGATE_AGENT_SOCKET", str(tmp_path / "agent.sock"))

    with pytest.raises(UnavailableError, match=r"agent\.sock.*start_backend\.sh"):
        conductor.run(conductor.Options(rounds=1))


def test_without_a_vllm_it_says_how_to_install_one(tmp_path: Path) -> None:
    # A copy of the package that lies beside no environment of vLLM's, and a directory without one.
    package = tmp_path / "lib" / "site"
    shutil.copytree(REPOSITORY / "backend" / "tidegate", package / "tidegate")
    path = f"{package}{os.pathsep}{REPOSITORY / 'collectors'}"
    environment = {name: value for name, value in os.environ.items() if name != "TIDEGATE_VLLM_PYTHON"}

    done = subprocess.run(
        [*TIDEGATE, "demo", "--engine"],
        capture_output=True, text=True, timeout=30, cwd=tmp_path, env={**environment, "PYTHONPATH": path},
    )  # fmt: skip

    assert done.returncode == 5
    assert "there is no vLLM here: run scripts/install_vllm.sh" in done.stderr


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a real collector with kernel programs")
@pytest.mark.timeout(240)
def test_three_agents_are_seen_with_their_calls_and_leave_no_files() -> None:
    with tempfile.TemporaryDirectory() as directory, started(watchdog_s=200) as script:
        cookie = script.get(script.wait_until_up())[2]
        script.wait_for_collector("bpf")

        done = subprocess.run(
            [*TIDEGATE, "demo", "--rounds", "1", "--pace", "0.1"],
            env={**script.environment, "TMPDIR": directory},
            capture_output=True,
            text=True,
            timeout=150,
        )

        assert done.returncode == 0, done.stdout + done.stderr
        assert not list(Path(directory).iterdir())
        assert "all 3 agents have ended" in done.stdout
        wait_for(lambda: _ended(script.get("/api/state", cookie)[1]) == 3, 15, "three sessions that have ended")
        sessions = _sessions(script.get("/api/state", cookie)[1])
        assert sorted(session["priority"] for session in sessions.values()) == ["high", "low", "normal"]
        assert all(session["exit_code"] == 0 for session in sessions.values())
        assert all(session["calls_total"] >= 5 for session in sessions.values())

        survey = next(session for session in sessions.values() if session["priority"] == "low")
        calls = json.loads(script.get(f"/api/sessions/{survey['id']}", cookie)[1])["calls"]
        assert {"search", "python"} <= {call["category"] for call in calls}
        assert [call["left_behind"] for call in calls if call["left_behind"]] == [1]
        # Two of the four that start together last for tenths of a second; the others may be over at once.
        assert max(call["lane"] for call in calls) >= 1, "calls at once lie in lanes of their own"

        build = next(session for session in sessions.values() if session["priority"] == "normal")
        calls = json.loads(script.get(f"/api/sessions/{build['id']}", cookie)[1])["calls"]
        assert len([call for call in calls if call["exit_code"] == 1 and call["category"] == "tests"]) == 4
        assert max(call["peak_bytes"] for call in calls) >= 390 << 20
        # How fast memory can be touched is the machine's affair; a burst is what grew over 64 MiB within 100 ms.
        steepest = max(call["rise_bytes_per_s"] for call in calls)
        assert (build["bursts"] >= 1) == (steepest >= (64 << 20) * 10)
        assert script.interrupt() == 0


def _sessions(body: str) -> dict[str, dict[str, Any]]:
    return {session["id"]: session for session in json.loads(body)["sessions"]}


def _ended(body: str) -> int:
    return sum(session["state"] == "ended" for session in _sessions(body).values())
