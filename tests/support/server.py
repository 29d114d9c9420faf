"""A real backend in a process of its own, on a free loopback port, with directories of its own, and logged in."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

START_TIMEOUT_S = 30.0
"""How long a start may take on a loaded machine."""


@dataclass(slots=True)
class Server:
    """A running backend. ``cookies`` are those of a logged-in browser."""

    process: subprocess.Popen[str]
    base_url: str
    login_url: str
    cookies: dict[str, str]
    state_dir: Path
    runtime_dir: Path
    output: list[str]

    @property
    def link_socket(self) -> Path:
        """Where a collector connects."""
        return self.runtime_dir / "link.sock"

    def client(self, timeout_s: float = 10.0) -> httpx.Client:
        """A client that is logged in."""
        return httpx.Client(base_url=self.base_url, cookies=self.cookies, timeout=timeout_s)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 10.0) -> int:
        """End the backend with a signal; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextlib.contextmanager
def running_server(
    directory: Path,
    *,
    replay: Path | None = None,
    port: int = 0,
    login: bool = True,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start ``python -m tidegate serve`` and end it again.

    Args:
        directory: for state and sockets; give the same one again to start anew on the same database. Keep it short: the
            path of a unix socket has at most 107 bytes.
        replay: a recording to show.
        port: 0 takes a free one.
        login: whether to use up the login URL, so that ``cookies`` work.
        env: further environment variables.
    """
    state_dir, runtime_dir = directory / "state", directory / "run"
    command = [sys.executable, "-m", "tidegate", "serve", "--port", str(port)]
    if os.geteuid() == 0:
        command += ["--user", "root"]  # an unprivileged user could not enter a test's directory
    if replay is not None:
        command += ["--replay", str(replay)]
    process = subprocess.Popen(
        command,
        env={
            **os.environ,
            "TIDEGATE_STATE_DIR": str(state_dir),
            "TIDEGATE_RUNTIME_DIR": str(runtime_dir),
            **(env or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output: list[str] = []
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, output, lines), daemon=True)
    reader.start()
    try:
        login_url = _login_url(lines, output)
        base_url = login_url.partition("/login")[0]
        cookies = {}
        if login:
            answer = httpx.get(login_url, timeout=10.0)
            assert answer.status_code == 303, answer.text
            cookies = {"tidegate_session": answer.cookies["tidegate_session"]}
            if replay is not None:
                _wait_until_read(base_url, cookies)
        yield Server(process, base_url, login_url, cookies, state_dir, runtime_dir, output)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(5.0)
        if process.stdout is not None:
            process.stdout.close()


def _wait_until_read(base_url: str, cookies: dict[str, str]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with httpx.Client(base_url=base_url, cookies=cookies, timeout=START_TIMEOUT_S) as client:
        while client.get("/api/runs").status_code == 503:
            assert time.monotonic() < deadline, "the recording is still being read"
            time.sleep(0.05)


def _read(process: subprocess.Popen[str], output: list[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line)
        lines.put(line)
    lines.put(None)


def _login_url(lines: queue.Queue[str | None], output: list[str]) -> str:
    while True:
        try:
            line = lines.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            line = None
        if line is None:
            raise AssertionError("the backend did not start:\n" + "".join(output))
        for word in line.split():
            if "/login?token=" in word:
                return word
