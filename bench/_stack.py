"""A whole Tidegate for a bench: its own backend and kernel collector, on loopback, in a directory of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIDEGATE = [sys.executable, "-m", "tidegate"]
_LOGIN = re.compile(rb"https?://\S+/login\?token=(\S+)")


class BenchError(RuntimeError):
    """The bench cannot be run here; the message says why."""


def free_port() -> int:
    """A TCP port on loopback that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Stack:
    """Directories and environment of one Tidegate, and the processes that a bench starts in it.

    As a context manager it ends what it started and removes its directory. ``environment`` is for ``tidegate run``.
    """

    def __init__(self) -> None:
        # Root's web process becomes another user, who must be able to walk to its directories.
        self.root = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
        self.root.chmod(0o755)
        self.port = free_port()
        self.environment = os.environ | {
            "TIDEGATE_STATE_DIR": str(self.root / "state"),
            "TIDEGATE_RUNTIME_DIR": str(self.root / "run"),
        }
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._cookie = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, _ in reversed(list(self._processes)):
            self.stop(name)
        shutil.rmtree(self.root, ignore_errors=True)

    def serve(self) -> None:
        """Start the backend, wait until it answers, and log in."""
        self._start("serve", "--port", str(self.port))
        self._wait("serve", self.healthy, 30)
        self._wait("serve", lambda: _LOGIN.search(self.log("serve")) is not None, 10)
        found = _LOGIN.search(self.log("serve"))
        if found is None:
            raise BenchError("the backend printed no login URL")
        with self.connection() as connection:
            connection.request("GET", f"/login?token={found[1].decode()}")
            cookie = connection.getresponse().getheader("Set-Cookie") or ""
        self._cookie = cookie.partition(";")[0]

    def collect(self) -> int:
        """Start the kernel collector and wait until agents can register. Returns its pid.

        Raises:
            BenchError: it did not come up, or has no kernel programs, so that there is nothing to measure.
        """
        group = f"tidegate-bench-{os.getpid()}"
        process = self._start("collect", "--cgroup-root", group)
        agents = self.root / "run" / "agent.sock"
        self._wait("collect", lambda: agents.exists() and b"observing with" in self.log("collect"), 20)
        if b"observing with bpf" not in self.log("collect"):
            raise BenchError(f"no kernel programs here: {self.log('collect').decode(errors='replace').strip()[-500:]}")
        return process.pid

    def stop(self, name: str) -> None:
        """End one of them, with TERM, and with KILL after 10 s."""
        for entry in [entry for entry in self._processes if entry[0] == name]:
            process = entry[1]
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._processes.remove(entry)

    def kill(self, name: str) -> None:
        """End one of them with KILL, in the middle of whatever it does; it may be started anew."""
        (entry,) = [entry for entry in self._processes if entry[0] == name]
        entry[1].kill()
        entry[1].wait()
        self._processes.remove(entry)

    def log(self, name: str) -> bytes:
        """What it has written so far."""
        with contextlib.suppress(FileNotFoundError):
            return (self.root / f"{name}.log").read_bytes()
        return b""

    @contextlib.contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        """An HTTP connection to the backend."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            yield connection
        finally:
            connection.close()

    def headers(self) -> dict[str, str]:
        """Headers of somebody who has logged in."""
        return {"Cookie": self._cookie}

    def healthy(self) -> bool:
        """Whether ``GET /health`` answers."""
        try:
            with self.connection() as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
        except OSError:
            return False

    def run_command(self, *command: str, session: str) -> list[str]:
        """The command line that runs ``command`` in a session of its own."""
        return [*TIDEGATE, "run", "--session", session, "--", *command]

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.root / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*TIDEGATE, name, *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append((name, process))
        return process

    def _wait(self, name: str, condition: Any, seconds: float) -> None:
        process = next(process for known, process in self._processes if known == name)
        deadline = time.monotonic() + seconds
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                state = "took too long" if process.poll() is None else f"ended with {process.returncode}"
                raise BenchError(f"tidegate {name} {state}: {self.log(name).decode(errors='replace').strip()[-1000:]}")
            time.sleep(0.02)


def require_root() -> None:
    """The kernel programs need root.

    Raises:
        BenchError: we are not root.
    """
    if os.geteuid() != 0:
        raise BenchError("this bench loads kernel programs: run it as root")


def fail(bench: str, error: BenchError) -> int:
    """Tell a person why there is no number. Returns the exit code."""
    print(f"bench.{bench}: {error}", file=sys.stderr)
    return 5
