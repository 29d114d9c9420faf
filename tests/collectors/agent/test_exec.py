"""``tidegate exec``: a boundary inside a session, and nothing but the command outside of one."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.daemon_rig import TIDEGATE, environment_for, running_daemon
from tidegate_collectors.agent import client
from tidegate_collectors.records import CallStart, SessionEnd


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment_for(tmp_path)


def execute(env: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TIDEGATE, "exec", *command], env=env, capture_output=True, text=True, timeout=30)


def test_outside_of_a_session_the_command_runs(env: dict[str, str]) -> None:
    done = execute(env, "--", "sh", "-c", "echo out; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "not inside a session" in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (["--", "tgtest-no-such-program"], 127, "command not found"),
        (["--", "/etc/passwd"], 126, "not executable"),
        ([], 125, "there is no command"),
    ],
)
def test_codes_of_what_went_wrong(env: dict[str, str], command: list[str], code: int, says: str) -> None:
    done = execute(env, *command)
    assert (done.returncode, says in done.stderr) == (code, True)


def test_a_hint_that_is_not_understood_is_named_and_the_command_runs(env: dict[str, str]) -> None:
    done = execute(env, "--hint", "memory:lots", "--", "sh", "-c", "echo $AGENT_RESOURCE_HINT")
    assert (done.returncode, done.stdout) == (0, "memory:lots\n")
    assert "kept as text" in done.stderr
    assert "memory:1.5g" in done.stderr


def test_a_collector_that_went_away_stops_nobody(env: dict[str, str]) -> None:
    done = execute({**env, "TIDEGATE_SESSION": "s1"}, "--", "sh", "-c", "exit 4")
    assert done.returncode == 4
    assert "no collector listens" in done.stderr


def test_a_process_of_no_session_has_no_call(tmp_path: Path) -> None:
    """GIVEN the environment of a session, copied by a process outside of it THEN the collector is not fooled."""
    with running_daemon(tmp_path) as rig:
        done = rig.run("exec", "--", "sh", "-c", "exit 4", env={"TIDEGATE_SESSION": "s1"})
        assert done.returncode == 4
        assert "belongs to no session" in done.stderr


def test_a_boundary_inside_of_a_call_is_a_call_of_its_own(tmp_path: Path) -> None:
    with running_daemon(tmp_path, record_args=True) as rig:
        inner = f"sleep 0.3; {TIDEGATE} exec --tool inner -- sleep 0.5; sleep 0.3"
        done = rig.run("run", "--session", "s1", "--", "sh", "-c", f"sh -c '{inner}' outer; true")
        assert (done.returncode, done.stderr) == (0, "")
        rig.sink.wait_for(lambda records: any(isinstance(record, SessionEnd) for record in records))
        calls = [record for record in rig.sink.records if isinstance(record, CallStart)]
        assert [(call.boundary, call.tool == "inner", call.command) for call in calls][1] == (
            "wrapper",
            True,
            "sleep 0.5",
        )
        assert calls[0].boundary == "fork"
        assert len(calls) == 2


# --- the client against what is no collector -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "is no collector"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no collector"),
        (b"[1]\n", "no answer"),
        (b'{"ok":false,"error":"because"}\n', "because"),
        (b'{"ok":false}\n', "no reason given"),
        (b'{"ok":"yes"}\n', "no reason given"),
    ],
)
def test_strange_answers_are_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, says: str
) -> None:
    path = tmp_path / "agent.sock"
    monkeypatch.setenv("TIDEGATE_AGENT_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises((client.RefusedError, client.NoCollectorError), match=says):
            client.request("register_session", session="s1", title=None)
        thread.join(5)


def test_a_collector_that_is_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.sock"
    monkeypatch.setenv("TIDEGATE_AGENT_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(client.NoCollectorError, match=r"does not answer within 0\.1 s"):
            client.request("ended", timeout_s=0.1)
