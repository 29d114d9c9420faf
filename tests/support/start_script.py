"""Runs ./start_backend.sh in directories of its own, and looks at what it started and what it left behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "start_backend.sh"
NOBODY = 65534
WATCHDOG_S = 100.0
"""Whatever a test does, its processes are gone after this long."""

_LOGIN = re.compile(r"https?://\S+(/login\?token=\S+)")
_SYS_BPF = 321  # x86-64
_BPF_PROG_GET_FD_BY_ID = 13


def free_port() -> int:
    """A TCP port on loopback that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Look every 50 ms; fails the test when it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def program_exists(program: int) -> bool:
    """Whether the kernel still has the BPF program with that id. Needs root, x86-64."""
    attributes = (ctypes.c_uint32 * 32)(program)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(_SYS_BPF, _BPF_PROG_GET_FD_BY_ID, ctypes.byref(attributes), ctypes.sizeof(attributes))
    if descriptor >= 0:
        os.close(descriptor)
        return True
    assert ctypes.get_errno() == errno.ENOENT, os.strerror(ctypes.get_errno())
    return False


def cgroups_named(name: str) -> list[Path]:
    """Directories of that name in the cgroup hierarchies, two levels deep: v1 controllers, and v2."""
    return [path for pattern in (name, f"*/{name}") for path in Path("/sys/fs/cgroup").glob(pattern)]


class Started:
    """A script that runs. ``root`` is its directory; ``output`` and ``errors`` what it has printed so far."""

    def __init__(self, arguments: list[str], *, as_nobody: bool = False, watchdog_s: float = WATCHDOG_S) -> None:
        # Not pytest's tmp_path: the web process is another user, who must be able to walk there.
        self.root = Path(tempfile.mkdtemp(prefix="tidegate-test-"))
        self.root.chmod(0o755)
        self.port = free_port()
        self.cgroup = f"tidegate-test-{os.getpid()}-{self.port}"
        self.environment = {
            **os.environ,
            "TIDEGATE_STATE_DIR": str(self.root / "state"),
            "TIDEGATE_RUNTIME_DIR": str(self.root / "run"),
            "TIDEGATE_CGROUP_ROOT": self.cgroup,
        }
        command = [str(SCRIPT), "--port", str(self.port), *arguments]
        if as_nobody:
            os.chown(self.root, NOBODY, NOBODY)
            ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            command = ["setpriv", *ids, "--inh-caps=-all", *command]
            self.environment["HOME"] = str(self.root)
        with (self.root / "output").open("wb") as output, (self.root / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd="/",  # it must work from anywhere
                start_new_session=True,
            )
        self._watchdog = threading.Timer(watchdog_s, self._kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    @property
    def output(self) -> str:
        return (self.root / "output").read_text(errors="replace")

    @property
    def errors(self) -> str:
        return (self.root / "errors").read_text(errors="replace")

    def log(self, name: str) -> str:
        """``backend`` or ``collector``."""
        with contextlib.suppress(FileNotFoundError):
            return (self.root / "state" / "logs" / f"{name}-{self.port}.log").read_text(errors="replace")
        return ""

    def wait_until_up(self) -> str:
        """Waits for the login URL; returns its path and query."""
        with contextlib.suppress(AssertionError):
            wait_for(lambda: _LOGIN.search(self.output) is not None or self.process.poll() is not None, 60, "")
        found = _LOGIN.search(self.output)
        assert found is not None, (
            f"no login URL: {self.output}{self.errors}{self.log('backend')}{self.log('collector')}"
        )
        return found[1]

    def wait_for_collector(self, observer: str = "") -> None:
        """Waits until agents can register; ``observer`` is the one that it must have chosen: bpf or procfs."""
        deadline = time.monotonic() + 45
        while "observing with" not in self.log("collector"):
            ended = "the collector ended" in self.errors
            assert not ended and time.monotonic() < deadline, self.log("collector") + self.errors
            time.sleep(0.05)
        assert f"observing with {observer}" in self.log("collector"), self.log("collector")

    def wait(self, seconds: float = 40) -> int:
        """Its exit code."""
        return self.process.wait(seconds)

    def interrupt(self) -> int:
        """What Ctrl-C does; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def get(self, path: str, cookie: str = "") -> tuple[int, str, str]:
        """Status, body and cookie of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
            answer = connection.getresponse()
            body = answer.read().decode()
            return answer.status, body, (answer.getheader("Set-Cookie") or "").partition(";")[0]
        finally:
            connection.close()

    def processes(self) -> dict[int, list[str]]:
        """Command lines of the processes that have our runtime directory in their environment, by pid."""
        mark = f"TIDEGATE_RUNTIME_DIR={self.root}/run".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        words = (entry / "cmdline").read_bytes().split(b"\0")
                        found[int(entry.name)] = [word.decode(errors="replace") for word in words if word]
        return found

    def pid_of(self, subcommand: str) -> int:
        """The process of ``tidegate SUBCOMMAND``."""
        found = [pid for pid, words in self.processes().items() if len(words) > 2 and words[2] == subcommand]
        assert len(found) == 1, self.processes()
        return found[0]

    def sockets(self) -> list[Path]:
        """Sockets below its directory."""
        return [path for path in self.root.rglob("*") if path.is_socket()]

    def close(self) -> None:
        """End it, if it still runs, and remove its directory."""
        self._watchdog.cancel()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self._kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def _kill(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def started(*arguments: str, as_nobody: bool = False, watchdog_s: float = WATCHDOG_S) -> Iterator[Started]:
    """A script for the length of a test."""
    script = Started(list(arguments), as_nobody=as_nobody, watchdog_s=watchdog_s)
    try:
        yield script
    finally:
        script.close()
