"""The hook: what it makes of its input, and that it never gets in the agent's way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import hook_payloads as payloads
from tests.support.daemon_rig import TIDEGATE, environment_for
from tidegate_collectors.agent.hook_payload import request_of
from tidegate_collectors.kernel import agent_protocol
from tidegate_collectors.kernel.agent_protocol import Hook

HOOK = [sys.executable, "-IS", str(Path(agent_protocol.__file__).parents[1] / "agent" / "hook.py")]
PATIENCE_S = 3.0
"""For the whole process on a busy machine; the hook itself gives up after 0.3 s."""


def hook_of(payload: dict[str, Any]) -> Hook:
    """The request as the collector reads it."""
    request = agent_protocol.decode(json.dumps(request_of(json.dumps(payload).encode())).encode())
    assert isinstance(request, Hook)
    return request


def test_a_tool_call_is_named_with_its_id_and_command() -> None:
    hook = hook_of(payloads.BEFORE)
    assert (hook.event, hook.tool, hook.id) == ("before", "Bash", "toolu_01ABCdefGHIjklMNOpqrSTUv")
    assert (hook.command, hook.detail) == ("git diff | head -5", None)
    assert hook.agent_session == payloads.BEFORE["session_id"]
    after = hook_of(payloads.AFTER)
    assert (after.event, after.id, after.result_chars) == ("after", hook.id, len("diff --git") + len("warn"))
    failed = hook_of(payloads.FAILED)
    assert (failed.event, failed.result_chars) == ("failed", len(payloads.FAILED["error"]))


def test_without_an_id_the_input_pairs_beginning_and_end() -> None:
    before, after = hook_of(payloads.OLD_BEFORE), hook_of(payloads.OLD_AFTER)
    assert before.id == after.id == ""
    assert before.input_digest == after.input_digest
    assert hook_of(payloads.AFTER_WITHOUT_ID).input_digest == hook_of(payloads.BEFORE).input_digest
    assert hook_of(payloads.BEFORE).input_digest != before.input_digest


def test_results_prompts_and_messages_are_not_sent() -> None:
    for payload in payloads.ALL:
        sent = json.dumps(request_of(json.dumps(payload).encode()))
        for secret in ("4 passed", "x = 1", "12345", "no such file", "The secret", "something secret", "transcript"):
            assert secret not in sent, payload["hook_event_name"]
    assert hook_of(payloads.READ).detail == "/home/u/work/secret-name.py"
    assert hook_of(payloads.MCP).result_chars == len("text") + len("12345")


def test_events_that_are_no_tools() -> None:
    assert [hook_of(payload).event for payload in (payloads.STOP, payloads.PROMPT)] == ["turn_over", "other"]
    assert [hook_of(payload).about for payload in (payloads.PERMISSION, payloads.IDLE)] == ["permission", "waiting"]
    assert request_of(b"[]") == request_of(b"{") == request_of(b"\xff") == {"verb": "hook", "event": "other"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)
KEYS = sorted({key for payload in payloads.ALL for key in payload})
PAYLOADS = st.sampled_from(payloads.ALL).flatmap(
    lambda payload: st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5).map(lambda other: {**payload, **other})
)


@settings(max_examples=150, deadline=None)
@given(PAYLOADS | st.dictionaries(st.sampled_from(KEYS), JSON))
def test_whatever_the_payload_the_collector_can_read_the_request(payload: dict[str, Any]) -> None:
    data = json.dumps(payload).encode()
    line = json.dumps(request_of(data), ensure_ascii=False).encode("utf-8", "replace")
    assert len(line) < agent_protocol.MAX_LINE_BYTES
    assert isinstance(agent_protocol.decode(line), Hook)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_json_are_no_error(data: bytes) -> None:
    assert request_of(data)["verb"] == "hook"


def test_deep_and_long_inputs_are_cut() -> None:
    assert request_of(b"[" * 200_000)["event"] == "other"
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    long = {
        **payloads.BEFORE,
        "tool_name": "n" * 999,
        "tool_use_id": "i" * 999,
        "tool_input": {"command": "c" * 99_999},
    }
    hook = hook_of({**long, "hook_event_name": "PostToolUse", "tool_response": deep})
    assert (len(hook.tool), len(hook.id), len(hook.command or ""), hook.result_chars) == (200, 200, 8192, 0)


# --- as a process ----------------------------------------------------------------------------------------------------


def run_hook(data: bytes, env: dict[str, str], command: list[str] = HOOK) -> tuple[int, bytes, float]:
    """Exit code, everything printed, and how long it took."""
    began = time.monotonic()
    done = subprocess.run(command, input=data, env=env, capture_output=True, timeout=30)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


@contextmanager
def listener(path: Path, answer: bytes | None) -> Iterator[list[bytes]]:
    """What listens where a collector would: answers each line so, or never."""
    heard: list[bytes] = []
    stop = threading.Event()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        sock.settimeout(0.05)

        def serve() -> None:
            while not stop.is_set():
                try:
                    peer, _ = sock.accept()
                except TimeoutError:
                    continue
                with peer:
                    peer.settimeout(2)
                    data = b""
                    while not data.endswith(b"\n") and (chunk := peer.recv(1 << 16)):
                        data += chunk
                    heard.append(data)
                    if answer is None:
                        stop.wait(2)
                    else:
                        peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield heard
        finally:
            stop.set()
            thread.join(5)


def session_env(tmp_path: Path) -> dict[str, str]:
    return {
        **environment_for(tmp_path),
        "TIDEGATE_SESSION": "s1",
        "TIDEGATE_AGENT_SOCKET": str(tmp_path / "agent.sock"),
    }


@pytest.mark.parametrize("command", [HOOK, [TIDEGATE, "hook"]], ids=["fast", "tidegate hook"])
def test_it_says_one_word_and_nothing_else(tmp_path: Path, command: list[str]) -> None:
    with listener(tmp_path / "agent.sock", b'{"ok":true}\n') as heard:
        code, output, _ = run_hook(json.dumps(payloads.BEFORE).encode(), session_env(tmp_path), command)
    assert (code, output) == (0, b"")
    (line,) = heard
    assert agent_protocol.decode(line) == hook_of(payloads.BEFORE)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\x00\xff" * 99, b"[" * 100_000, b'{"tool_input":' + b"9" * 10_000 + b"}", json.dumps("x").encode()],
    ids=["nothing", "cut off", "binary", "deep", "a large number", "text"],
)
def test_garbage_is_nobodys_problem(tmp_path: Path, data: bytes) -> None:
    with listener(tmp_path / "agent.sock", b'{"ok":false,"error":"no"}\n') as heard:
        assert run_hook(data, session_env(tmp_path))[:2] == (0, b"")
    assert [json.loads(line)["event"] for line in heard] == ["other"]


@settings(max_examples=12, deadline=None)
@given(st.binary(max_size=300) | PAYLOADS.map(lambda payload: json.dumps(payload).encode()))
def test_fuzzed_input_ends_with_0_and_silence(data: bytes) -> None:
    env = {**os.environ, "TIDEGATE_SESSION": "s1", "TIDEGATE_AGENT_SOCKET": "/nonexistent/agent.sock"}
    assert run_hook(data, env)[:2] == (0, b"")


def test_a_collector_that_is_away_or_hangs_costs_a_moment(tmp_path: Path) -> None:
    data = json.dumps(payloads.BEFORE).encode()
    assert run_hook(data, session_env(tmp_path))[:2] == (0, b"")
    with listener(tmp_path / "agent.sock", None):
        code, output, took_s = run_hook(data, session_env(tmp_path))
    assert (code, output) == (0, b"")
    assert took_s < PATIENCE_S


def test_an_input_without_end_is_given_up(tmp_path: Path) -> None:
    for env in (session_env(tmp_path), environment_for(tmp_path)):
        with subprocess.Popen(HOOK, stdin=subprocess.PIPE, env=env) as hook:
            began = time.monotonic()
            assert hook.wait(10) == 0
            assert time.monotonic() - began < PATIENCE_S


def test_a_huge_input_is_taken_off_the_agents_hands(tmp_path: Path) -> None:
    """GIVEN more than is looked at THEN the writer does not fail (it would, were we to leave), and we say so little."""
    data = b'{"hook_event_name":"PostToolUse","tool_response":"' + b"x" * (17 << 20) + b'"}'
    outcomes = []
    with listener(tmp_path / "agent.sock", b'{"ok":true}\n') as heard:
        for _ in range(5):  # on a busy machine its time may be over before it has read so much
            with subprocess.Popen(HOOK, stdin=subprocess.PIPE, env=session_env(tmp_path)) as hook:
                assert hook.stdin is not None
                try:
                    hook.stdin.write(data)
                    hook.stdin.close()
                    outcomes.append("taken")
                except BrokenPipeError:
                    outcomes.append("late")
                assert hook.wait(10) == 0
            if outcomes[-1] == "taken":
                break
    assert outcomes[-1] == "taken"
    assert {json.loads(line)["event"] for line in heard} <= {"other"}


def test_a_closed_standard_input(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" <&-', *HOOK], env=session_env(tmp_path), capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_outside_of_a_session_it_speaks_to_nobody(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with listener(path, b'{"ok":true}\n') as heard:
        env = {**environment_for(tmp_path), "TIDEGATE_AGENT_SOCKET": str(path)}
        assert run_hook(json.dumps(payloads.BEFORE).encode(), env)[:2] == (0, b"")
    assert heard == []


def test_it_loads_little() -> None:
    """It runs twice for each tool call of the agent."""
    program = (
        "import sys; sys.path.append(sys.argv[1]); before = set(sys.modules)\n"
        "from tidegate_collectors.agent import hook, hook_payload, wire\n"
        "heavy = ('msgspec', 'typing', 'pathlib', 'hashlib', 'argparse', 'dataclasses', 'subprocess', 'tempfile')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    root = str(Path(agent_protocol.__file__).parents[2])
    done = subprocess.run([sys.executable, "-IS", "-c", program, root], capture_output=True, text=True, timeout=30)
    assert done.stdout == "[]\n", done.stderr
