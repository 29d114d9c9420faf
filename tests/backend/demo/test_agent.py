"""One scripted agent as its own process: what it calls, what it leaves, what it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.demo.agent import Agent
from tidegate.demo.scripts import ROLES

LINE = re.compile(r"^ *[\d.]+ s  (?P<role>\w+) +(?P<command>\S.*?) +exit (?P<code>-?\d+) +[\d.]+ s$")


def command(role: str, work: Path, *more: str) -> list[str]:
    base = [sys.executable, "-m", "tidegate.demo.agent", "--role", role, "--work", str(work)]
    return [*base, "--pace", "0", "--burst-mb", "32", *more]


def still_running(work: Path) -> list[int]:
    """Processes that name the agent's directory in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if os.fsencode(work) in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def play(role: str, work: Path) -> list[tuple[str, int]]:
    done = subprocess.run(command(role, work), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    matches = [LINE.match(line) for line in done.stdout.splitlines()]
    assert all(matches), done.stdout
    return [(match["command"], int(match["code"])) for match in matches if match]


def test_fix_reads_edits_tests_and_commits(tmp_path: Path) -> None:
    calls = play("fix", tmp_path / "work")

    programs = [text.split()[0] for text, _ in calls]
    assert {"git", "grep", "cat", "sed", Path(sys.executable).name} <= set(programs)
    assert [text for text, code in calls if code] == []
    log = subprocess.run(
        ["git", "-c", "safe.directory=*", "log", "--format=%s"],
        cwd=tmp_path / "work" / "parser",
        capture_output=True,
        text=True,
    )
    assert log.stdout.split("\n")[:2] == ["round 0", "start"]


def test_build_tries_the_same_failing_command_again(tmp_path: Path) -> None:
    calls = play("build", tmp_path / "work")

    failures = [text for text, code in calls if code]
    assert len(failures) == 4
    assert len(set(failures)) == 1
    assert "test_broken" in failures[0]


def test_survey_ends_what_it_left_behind(tmp_path: Path) -> None:
    work = tmp_path / "work"

    calls = play("survey", work)

    assert any(text.startswith("sh -c") for text, _ in calls)
    assert (work / "server.pid").exists()
    assert still_running(work) == []


def test_terminated_in_the_middle_of_a_call_it_ends_its_processes(tmp_path: Path) -> None:
    work = tmp_path / "work"
    process = subprocess.Popen(command("survey", work, "--rounds", "1000"), stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not (work / "server.pid").exists() or not (work / "server.pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert still_running(work)

        process.send_signal(signal.SIGTERM)

        assert process.wait(15) == 128 + signal.SIGTERM
        deadline = time.monotonic() + 5
        while found := [pid for pid in still_running(work) if "server.py" in _words(pid)]:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def _words(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    work = tmp_path / "work"
    work.mkdir()
    agent = Agent("test", work, seed=1, pace=0, burst_bytes=16 << 20)
    yield agent
    agent.close()


def test_overlapping_calls_overlap_and_give_their_codes_in_order(agent: Agent) -> None:
    started = time.monotonic()

    codes = agent.together([["sh", "-c", "sleep 1; exit 3"], ["sh", "-c", "sleep 1"]])

    assert codes == [3, 0]
    assert time.monotonic() - started < 1.9


def test_a_hint_reaches_the_tool_and_only_that_one(agent: Agent) -> None:
    asks = ["sh", "-c", 'test "$AGENT_RESOURCE_HINT" = memory:high']

    assert agent.call(*asks, hint="memory:high") == 0
    assert agent.call(*asks) == 1


def test_a_pid_that_belongs_to_somebody_else_is_not_ended(agent: Agent) -> None:
    stranger = subprocess.Popen(["sleep", "30"])
    try:
        agent._left_behind.append(stranger.pid)

        agent.close()

        time.sleep(0.2)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_same_seed_makes_the_same_choices(tmp_path: Path) -> None:
    choices = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made = Agent("test", tmp_path / name, seed=5, pace=0, burst_bytes=1)
        choices.append([made.rng.random() for _ in range(5)])

    assert choices[0] == choices[1]


def test_roles_have_different_priorities() -> None:
    assert {role.priority for role in ROLES.values()} == {"high", "normal", "low"}
