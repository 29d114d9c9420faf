"""./start_backend.sh as a person runs it: real processes, real signals, on loopback, in directories of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.start_script import (
    SCRIPT,
    cgroups_named,
    program_exists,
    started,
    wait_for,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: kernel programs and the drop of rights")
T0 = 1_790_000_000_000_000


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """One session with one call."""
    session = {"session": "agent-1"}
    end = {"exit_code": 0, "duration_us": 899_000, "peak_bytes": 5 << 20}
    records: list[dict[str, object]] = [
        {"type": "run.meta", "t": T0, "run": "run-1", "title": "a recorded run", "source": "recorded"},
        {"type": "session.start", "t": T0 + 10, **session, "agent": "agent", "title": "a session of the past"},
        {"type": "call.start", "t": T0 + 1000, **session, "call": "c1", "tool": "pytest", "category": "tests"},
        {"type": "call.end", "t": T0 + 900_000, **session, "call": "c1", **end},
        {"type": "session.end", "t": T0 + 950_000, **session, "reason": "finished", "exit_code": 0},
        {"type": "run.end", "t": T0 + 960_000, "clean": True, "last_seq": {"kernel-test": 5}},
    ]
    envelope = {"v": 1, "src": "kernel-test", "host": "elsewhere"}
    lines = [json.dumps({**envelope, "seq": seq, **record}) for seq, record in enumerate(records)]
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, cwd="/")


# --- options --------------------------------------------------------------------------------------------------------


def test_help_names_every_option() -> None:
    done = run_script("--help")

    assert done.returncode == 0
    for option in ("--replay", "--demo", "--host", "--port", "--record-args", "--setup-only"):
        assert option in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bogus"], "unknown option: --bogus"),
        (["--port"], "--port needs a value"),
        (["--port", "0"], "--port: 0 is no port"),
        (["--port=70000"], "--port: 70000 is no port"),
        (["--port", "80; reboot"], "is no port"),
        (["--replay", "/nowhere/x.jsonl"], "/nowhere/x.jsonl is no file that can be read"),
        (["--replay="], "--replay needs a value"),
        (["--replay", "--demo"], "does not go with --replay"),
        (["--replay", str(SCRIPT), "--demo"], "does not go with --replay"),
        (["--replay", str(SCRIPT), "--record-args"], "does not go with --replay"),
    ],
)
def test_wrong_options_start_nothing_and_say_why(arguments: list[str], message: str) -> None:
    done = run_script(*arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert "--help" in done.stderr


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with started("--port", str(port)) as script:
            assert script.wait() == 3
            assert f"127.0.0.1:{port}" in script.errors
            assert script.processes() == {}


def test_setup_only_starts_nothing() -> None:
    with started("--setup-only") as script:
        assert script.wait() == 0
        assert "set up:" in script.errors
        assert script.processes() == {}
        assert script.log("backend") == ""


# --- the live host --------------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.kernel
def test_starts_serves_and_leaves_nothing_behind() -> None:
    # GIVEN a started Tidegate with a session that has made a call
    with started() as script:
        login = script.wait_until_up()
        assert script.get("/health")[:2] == (200, '{"status":"UP"}')
        assert script.get("/api/state")[0] == 401

        # The URL logs in once.
        cookie = script.get(login)[2]
        assert script.get("/", cookie)[0] == 200
        assert script.get(login)[2] == ""

        script.wait_for_collector("bpf")
        backend, collector = script.pid_of("serve"), script.pid_of("collect")
        tidegate = Path(f"/proc/{collector}/cmdline").read_bytes().split(b"\0")[1].decode()
        done = subprocess.run(
            [tidegate, "run", "--session", "s-1", "--", "sh", "-c", "/bin/true; true"],
            env=script.environment,
            timeout=20,
        )
        assert done.returncode == 0
        wait_for(lambda: '"s-1"' in script.get("/api/state", cookie)[1], 10, "the session on the page")

        # An agent that goes on when we stop; it makes a call in every hierarchy.
        agent = subprocess.Popen(
            [tidegate, "run", "--session", "s-2", "--", "sh", "-c", "sleep 8; exit 7"],
            env={**script.environment, "TIDEGATE_RUNTIME_DIR": f"{script.root}/./run"},  # not of the script's processes
        )
        wait_for(lambda: "s-2/tools/" in call_groups(agent.pid), 10, "the call in its group")

        # The web process has no root, the collector's programs are there.
        status = Path(f"/proc/{backend}/status").read_text()
        assert "Uid:\t0" not in status
        assert "CapEff:\t0000000000000000" in status
        programs = [
            int(line.split()[1])
            for info in Path(f"/proc/{collector}/fdinfo").iterdir()
            for line in info.read_text().splitlines()
            if line.startswith("prog_id:")
        ]
        assert programs
        assert all(program_exists(program) for program in programs)
        assert cgroups_named(script.cgroup)

        # WHEN it is interrupted as by Ctrl-C
        assert script.interrupt() == 0

        # THEN no process, socket, control group or kernel program of it is left
        assert script.processes() == {}
        assert script.sockets() == []
        assert cgroups_named(script.cgroup) == []
        assert not any(program_exists(program) for program in programs)
        assert "was killed" not in script.errors
        assert list((script.root / "run").iterdir()) == []
        assert agent.wait(20) == 7


def call_groups(launcher: int) -> str:
    """``/proc/PID/cgroup`` of the last process below a launcher."""
    pid, text = launcher, ""
    with contextlib.suppress(OSError, IndexError):
        while True:
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
            text = Path(f"/proc/{pid}/cgroup").read_text()
    return text


@needs_root
@pytest.mark.kernel
def test_an_agent_is_offered_only_when_it_would_be_observed() -> None:
    with started() as script:
        script.wait_until_up()
        # As fast as one can look: it may not be said before the collector listens.
        deadline = time.monotonic() + 30
        while "run an agent" not in script.errors:
            assert time.monotonic() < deadline, script.errors
            time.sleep(0.002)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(script.root / "run" / "agent.sock"))
        assert script.interrupt() == 0


@needs_root
@pytest.mark.kernel
def test_a_dead_collector_is_reported_and_the_pages_stay() -> None:
    with started() as script:
        script.wait_until_up()
        script.wait_for_collector()

        os.kill(script.pid_of("collect"), signal.SIGKILL)

        wait_for(lambda: "the collector ended (exit code 137)" in script.errors, 10, "the report")
        log = str(script.root / "state" / "logs" / f"collector-{script.port}.log")
        wait_for(lambda: log in script.errors, 10, "the path of its log")
        assert script.get("/health")[0] == 200
        assert script.interrupt() == 0
        assert script.processes() == {}
    for group in cgroups_named(script.cgroup):
        group.rmdir()  # a killed collector cannot remove its group; the next one does


@needs_root
@pytest.mark.kernel
def test_a_dead_web_process_stops_everything() -> None:
    with started() as script:
        script.wait_until_up()
        script.wait_for_collector()

        os.kill(script.pid_of("serve"), signal.SIGKILL)

        assert script.wait() == 4
        assert "the web process ended (exit code 137)" in script.errors
        assert str(script.root / "state" / "logs" / f"backend-{script.port}.log") in script.errors
        assert script.processes() == {}
        assert cgroups_named(script.cgroup) == []


@needs_root
def test_logs_hold_the_login_url_and_are_private() -> None:
    with started() as script:
        script.wait_until_up()
        logs = script.root / "state" / "logs"

        assert stat.S_IMODE((logs / f"backend-{script.port}.log").stat().st_mode) == 0o600
        # The web process may make files beside the logs, but not put its own in their place.
        assert logs.stat().st_uid == 0
        assert stat.S_IMODE(logs.parent.stat().st_mode) == 0o1770
        assert script.interrupt() == 0


@needs_root
def test_without_root_it_says_what_is_missing() -> None:
    with started(as_nobody=True) as script:
        script.wait_until_up()

        assert script.get("/health")[0] == 200
        assert "without root the collector samples /proc" in script.errors
        script.wait_for_collector("procfs")
        assert script.interrupt() == 0
        assert script.processes() == {}
        assert script.sockets() == []


# --- a recording ----------------------------------------------------------------------------------------------------


def test_replay_shows_the_recording_and_has_no_collector(recording: Path) -> None:
    with started("--replay", str(recording)) as script:
        cookie = script.get(script.wait_until_up())[2]

        wait_for(lambda: "a session of the past" in script.get("/api/state", cookie)[1], 10, "the session")
        names = [
            words[2] for words in script.processes().values() if len(words) > 2 and Path(words[1]).name == "tidegate"
        ]
        assert names == ["serve"]
        assert script.sockets() == []
        assert script.interrupt() == 0
        assert script.processes() == {}
        # Of the copy that the web process was given nothing is left.
        assert list((script.root / "state").glob("replay.*")) == []


def test_replay_without_a_file_shows_the_projects_own_recording_of_both_planes() -> None:
    with started("--replay") as script:
        cookie = script.get(script.wait_until_up())[2]

        wait_for(lambda: "demo-survey-" in script.get("/api/state", cookie)[1], 30, "its sessions")
        assert '"engine' in script.get("/api/state", cookie)[1]
        assert script.interrupt() == 0


@needs_root
def test_replay_needs_no_root(recording: Path) -> None:
    readable = recording.read_bytes()
    with started("--replay", "/dev/null", as_nobody=True) as probe:
        probe.wait()  # /dev/null is no regular file: refused before anything starts
        assert "is no file that can be read" in probe.errors
        path = probe.root / "small.jsonl"
        path.write_bytes(readable)
        path.chmod(0o644)
        with started("--replay", str(path), as_nobody=True) as script:
            cookie = script.get(script.wait_until_up())[2]
            wait_for(lambda: "a session of the past" in script.get("/api/state", cookie)[1], 10, "the session")
            assert script.interrupt() == 0


def test_a_broken_recording_is_shown_as_an_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text("this is no record\n" * 3)
    with started("--replay", str(path)) as script:
        assert script.wait(60) == 4
        assert "broken.jsonl:1: this seems to be text; what can be read is" in script.errors
        assert script.output == ""
        assert script.processes() == {}
