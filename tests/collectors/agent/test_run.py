"""``tidegate run`` as a program: exit codes, signals, the terminal, and life without a collector."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.daemon_rig import TIDEGATE, environment_for, running_daemon
from tidegate_collectors.agent.commands import CommandError, find_program, strip_separator
from tidegate_collectors.agent.launchers import agent_name, runtime_depth
from tidegate_collectors.agent.run import exit_code, new_session_id
from tidegate_collectors.names import is_safe_id
from tidegate_collectors.records import SessionEnd, SessionStart


@pytest.mark.parametrize(
    ("command", "depth", "agent"),
    [
        ("claude", 0, "claude"),
        ("/usr/bin/python3 agent.py", 0, "python3"),
        ("npx -y @anthropic-ai/claude-code", 1, "claude-code"),
        ("uv run agent.py", 1, "agent.py"),
        ("uvx aider", 1, "aider"),
        ("pnpm dlx codex", 1, "codex"),
        ("env A=1 B=2 claude", 0, "claude"),
        ("nohup npx claude", 1, "claude"),
        ("timeout 60 npx claude", 2, "claude"),
        ("timeout --foreground 1h claude --flag", 1, "claude"),
        ("poetry run python agent.py", 1, "python"),
        ("conda run --name=work claude", 1, "claude"),
        ("bash -c npx", 0, "bash"),
        ("npx", 1, "npx"),
    ],
)
def test_launchers_are_looked_through(command: str, depth: int, agent: str) -> None:
    assert runtime_depth(command.split()) == depth
    assert agent_name(command.split()) == agent


def test_session_ids_are_safe_and_differ() -> None:
    ids = {new_session_id([name]) for name in ("claude", "./\x1b[31m bad", "é", "", "x" * 300) for _ in range(3)}
    assert all(is_safe_id(text) for text in ids)
    assert len(ids) == 15


def test_exit_codes_are_those_of_a_shell() -> None:
    assert [exit_code(status) for status in (0, 7 << 8, 255 << 8, 9, 15, 11 | 0x80)] == [0, 7, 255, 137, 143, 139]


def test_programs_are_found_as_exec_finds_them(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for directory in (first, second):
        directory.mkdir()
    (first / "tool").write_text("")
    (second / "tool").write_text("#!/bin/sh\n")
    (second / "tool").chmod(0o755)
    (second / "dir").mkdir()
    path = f"{first}:{second}"
    assert find_program("tool", path) == f"{second}/tool"
    for name, code in (("absent", 127), ("dir", 127), ("", 127), (f"{first}/tool", 126), ("/", 126)):
        with pytest.raises(CommandError) as caught:
            find_program(name, path)
        assert caught.value.code == code, name
    assert strip_separator(["--", "--", "x"]) == ["--", "x"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """No collector serves this runtime directory."""
    return environment_for(tmp_path)


def run(env: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TIDEGATE, "run", *command], env=env, capture_output=True, text=True, timeout=30)


def test_without_a_collector_the_command_runs_and_one_line_says_what_to_do(env: dict[str, str]) -> None:
    done = run(env, "--", "sh", "-c", "echo out; echo $TIDEGATE_SESSION; exit 9")
    assert (done.returncode, done.stdout) == (9, "out\n\n")
    assert len(done.stderr.splitlines()) == 1
    assert "start one with: sudo tidegate collect" in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (["--", "tgtest-no-such-program"], 127, "command not found"),
        (["--", "/etc/passwd"], 126, "not executable"),
        (["--"], 125, "there is no command"),
        (["--session", "..", "--", "true"], 125, "is refused"),
        (["--", "sh", "-c", "kill -TERM $$"], 143, ""),
    ],
)
def test_codes_of_what_went_wrong(env: dict[str, str], command: list[str], code: int, says: str) -> None:
    done = run(env, *command)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_size_is_explained(env: dict[str, str]) -> None:
    done = run(env, "--budget", "lots", "--", "true")
    assert done.returncode == 2
    assert "'lots' is no size" in done.stderr


def test_a_script_without_interpreter_is_not_executable(env: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert run(env, "--", str(script)).returncode == 127
    script.write_text("\x7fELF nonsense")
    assert run(env, "--", str(script)).returncode == 126


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(env: dict[str, str], number: signal.Signals) -> None:
    """GIVEN a signal sent to the launcher alone THEN the command gets it, and its own answer is the exit code."""
    # One child and `wait`: bash can miss the end of one of many short ones, and would then wait for ever.
    script = f"sleep 60 >/dev/null & trap 'kill $!; exit 42' {number.name[3:]}; echo ready; wait"
    with subprocess.Popen(
        [TIDEGATE, "run", "--", "bash", "-c", script],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        launcher.send_signal(number)
        assert launcher.wait(20) == 42


def test_the_command_finds_signals_and_descriptors_as_they_were(env: dict[str, str]) -> None:
    program = (
        "import os, signal\n"
        "blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
        "status = open('/proc/self/status').read()\n"
        "ignored = [l.split()[1] for l in status.splitlines() if l.startswith('SigIgn')][0]\n"
        "print(sorted(blocked), int(ignored, 16) & ~(1 << 12 | 1 << 24), sorted(os.listdir('/proc/self/fd'))[:4])"
    )
    plain = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=30)
    assert run(env, "--", sys.executable, "-c", program).stdout == plain.stdout


def test_input_goes_to_the_command(env: dict[str, str]) -> None:
    done = subprocess.run(
        [TIDEGATE, "run", "--", "cat"], input="hello", env=env, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, "hello")


def test_interrupt_in_a_terminal_reaches_the_command_once(env: dict[str, str]) -> None:
    """GIVEN a terminal WHEN Ctrl-C is typed THEN the command's handler runs once and decides."""
    script = (
        "n=0; trap 'n=$((n+1)); echo got $n' INT; echo ready; for i in 1 2 3 4 5 6 7 8; do sleep 0.1; done; exit $n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(TIDEGATE, [TIDEGATE, "run", "--", "bash", "-c", script], env)
    try:
        seen = _read_until(terminal, b"ready")
        os.write(terminal, b"\x03")
        seen += _read_until(terminal, b"got 1")
        assert b"got 1" in seen
        seen += _read_until(terminal, b"got 2", timeout_s=1.5)
        assert b"got 2" not in seen
        _, status = os.waitpid(pid, 0)
        pid = 0
        assert os.waitstatus_to_exitcode(status) == 1
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


def _read_until(descriptor: int, word: bytes, timeout_s: float = 15) -> bytes:
    seen = b""
    until = time.monotonic() + timeout_s
    while word not in seen and time.monotonic() < until:
        if select.select([descriptor], [], [], 0.1)[0]:
            try:
                chunk = os.read(descriptor, 4096)
            except OSError:  # the terminal's other side is closed
                break
            if not chunk:
                break
            seen += chunk
    return seen


def test_it_loads_little() -> None:
    """A launcher that imports a web framework, or even msgspec, would be felt before every agent."""
    program = (
        "import sys; sys.argv = ['tidegate', 'run', '--', 'true']; import tidegate.commands as c\n"
        "c.build_parser('run'); from tidegate_collectors.agent import run, exec_\n"
        "heavy = ('msgspec', 'asyncio', 'fastapi', 'sqlalchemy', 'numpy', 'dataclasses', 'subprocess')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_user_without_the_right_to_the_socket_runs_unobserved(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    with running_daemon(tmp_path) as rig:
        command = [TIDEGATE, "run", "--", "sh", "-c", "exit 3"]
        done = subprocess.run(
            command, env=rig.env, user=65534, group=65534, extra_groups=[], capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 3
        assert "uid 65534 may not use" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_user_of_the_group_may_start_sessions(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    with running_daemon(tmp_path, group="nogroup") as rig:
        command = [TIDEGATE, "run", "--session", "u1", "--", "sh", "-c", "sleep 0.3; exit 3"]
        done = subprocess.run(
            command, env=rig.env, user=65534, group=65534, extra_groups=[], capture_output=True, text=True, timeout=30
        )
        assert (done.returncode, done.stderr) == (3, "")
        rig.sink.wait_for(lambda records: any(isinstance(record, SessionEnd) for record in records))
        (start,) = rig.sink.of(SessionStart)
        assert start.session == "u1"


def ignoring(number: signal.Signals, *command: str) -> list[str]:
    """A command that starts with this signal ignored, as from a script's background or a daemon."""
    program = (
        f"import os, signal, sys; signal.signal({int(number)}, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", program, *command]


@pytest.mark.parametrize("number", [signal.SIGCHLD, signal.SIGINT, signal.SIGHUP])
def test_ignored_signals_stay_ignored_and_the_exit_code_is_told(env: dict[str, str], number: signal.Signals) -> None:
    """Whoever ignores SIGCHLD has the kernel throw exit statuses away: the launcher would wait for ever."""
    look = [sys.executable, "-c", "print(open('/proc/self/status').read()); raise SystemExit(3)"]
    plain = subprocess.run(ignoring(number, *look), env=env, capture_output=True, text=True, timeout=10)
    done = subprocess.run(
        ignoring(number, TIDEGATE, "run", "--", *look), env=env, capture_output=True, text=True, timeout=10
    )
    ours = signals_of(done.stdout)
    assert ours == signals_of(plain.stdout)
    assert number in ours
    assert done.returncode == 3


def signals_of(status: str) -> set[int]:
    mask = int(status.partition("SigIgn:")[2].split()[0], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_a_name_that_is_no_utf8_keeps_nobody_from_running(tmp_path: Path) -> None:
    program = os.fsencode(tmp_path) + b"/caf\xe9"
    Path(os.fsdecode(program)).symlink_to("/bin/true")
    with running_daemon(tmp_path) as rig:
        done = rig.run("run", "--title", os.fsdecode(b"t\xe9"), "--", os.fsdecode(program))
        assert (done.returncode, done.stderr) == (0, "")
        rig.sink.wait_for(lambda records: any(isinstance(record, SessionEnd) for record in records))
        (start,) = [record for record in rig.sink.records if isinstance(record, SessionStart)]
        assert (start.agent, start.title) == ("caf?", "t?")
