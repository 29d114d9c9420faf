"""Helpers for tests that load real BPF programs: tracked processes, groups of their own, waiting for events."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from tidegate_collectors.kernel.bcc_find import BccMissingError, find_bcc
from tidegate_collectors.kernel.bpf_observer import BpfObserver
from tidegate_collectors.kernel.observer import Event, EventKind

V2 = next(
    (path for path in map(Path, ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")) if (path / "cgroup.procs").exists()), None
)
V1_MEMORY = Path("/sys/fs/cgroup/memory")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: loads BPF programs")
needs_v2 = pytest.mark.skipif(V2 is None, reason="no cgroup v2 hierarchy is mounted")
needs_v1_memory = pytest.mark.skipif(
    not (V1_MEMORY / "memory.usage_in_bytes").exists(), reason="the memory controller is not in a v1 hierarchy here"
)

Loader = Literal["libbpf", "bcc"]


def _bcc_problem() -> str:
    try:
        find_bcc()
    except BccMissingError as error:
        return str(error)
    return ""


needs_bcc = pytest.mark.skipif(bool(_bcc_problem()), reason=_bcc_problem())


@pytest.fixture(scope="session", params=["libbpf", pytest.param("bcc", marks=needs_bcc)])
def loader(request: pytest.FixtureRequest) -> Loader:
    """Each of the two ways to load the programs; what they do must be the same."""
    found: Loader = request.param
    return found


PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else "python3"
_WATCHDOG_S = 60
_counter = 0


@contextmanager
def group(parent: Path | None) -> Iterator[Path]:
    """A cgroup of our own below ``parent``; whoever is left in it is killed at the end."""
    global _counter
    assert parent is not None
    _counter += 1
    path = parent / f"tgtest-{os.getpid()}-{_counter}"
    path.mkdir()
    try:
        yield path
    finally:
        for _ in range(100):
            for pid in map(int, (path / "cgroup.procs").read_text().split()):
                os.kill(pid, signal.SIGKILL)
            try:
                path.rmdir()
                break
            except OSError:
                time.sleep(0.02)
        else:
            raise AssertionError(f"{path} cannot be removed")


class Session:
    """A process that waits to become ``argv``, tracked as the root of a session.

    It runs under an alarm clock, so that a broken test leaves nothing behind.
    """

    def __init__(
        self,
        observer: BpfObserver,
        argv: Sequence[str],
        *,
        subject: int = 7,
        cgroup: Path | None = None,
        memcg: Path | None = None,
        runtime_depth: int = 0,
    ) -> None:
        self.observer = observer
        self.subject = subject
        self.events: list[Event] = []
        gate = f"import os,signal,sys; signal.alarm({_WATCHDOG_S}); os.read(0,1); os.execvp(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen(
            [PYTHON, "-I", "-S", "-c", gate, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self.process.pid
        if memcg:
            (memcg / "cgroup.procs").write_text(str(self.pid))
        if cgroup:
            observer.track_runtime(cgroup.stat().st_ino, subject, runtime_depth=runtime_depth)
            (cgroup / "cgroup.procs").write_text(str(self.pid))
        else:
            memcg_id = memcg.stat().st_ino if memcg else None
            observer.track_runtime(None, subject, pid=self.pid, runtime_depth=runtime_depth, memcg_id=memcg_id)
        self.cgroup_id = cgroup.stat().st_ino if cgroup else None

    def go(self) -> None:
        """Let it become ``argv``."""
        assert self.process.stdin
        self.process.stdin.write(b".")
        self.process.stdin.flush()

    def tell(self, data: bytes = b".") -> None:
        """Write to its standard input."""
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def hear(self) -> str:
        """A line of its standard output."""
        assert self.process.stdout
        return self.process.stdout.readline().decode().strip()

    def wait_for(self, done: Callable[[list[Event]], bool], timeout_s: float = 20.0) -> list[Event]:
        """All events so far, once ``done`` says so of them."""
        deadline = time.monotonic() + timeout_s
        while not done(self.events):
            remaining = deadline - time.monotonic()
            assert remaining > 0, f"events did not come; got {self.events}"
            select.select([self.observer.fileno()], [], [], remaining)
            self.events.extend(self.observer.read_events())
        return self.events

    def run(self) -> list[Event]:
        """Go on to the end of all its processes; all events."""
        self.go()
        self.close_pipes()
        return self.wait_for(lambda events: not self.alive(events))

    def alive(self, events: list[Event]) -> set[int]:
        """Processes that have not ended, by the events."""
        pids = {self.pid}
        for event in events:
            if event.kind is EventKind.FORK:
                pids.add(event.pid)
            elif event.kind is EventKind.EXIT:
                pids.discard(event.pid)
        return pids

    def close_pipes(self) -> None:
        """Close our ends."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()

    def end(self) -> None:
        """Kill what is left and forget the subjects."""
        self.events.extend(self.observer.read_events())
        for pid in self.alive(self.events):
            if pid != self.pid and self.observer.stats(self.subject) is not None:
                # A left-over that the events still show as ours; its pid cannot have been given away while we track it.
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.close_pipes()
        for subject in {event.subject for event in self.events} | {self.subject}:
            self.observer.untrack(self.cgroup_id, subject)


@contextmanager
def session(observer: BpfObserver, *argv: str, **options: object) -> Iterator[Session]:
    """A :class:`Session` that is ended at the end."""
    started = Session(observer, argv, **options)  # type: ignore[arg-type]
    try:
        yield started
    finally:
        started.end()


def calls(events: list[Event]) -> list[Event]:
    """CALL events."""
    return [event for event in events if event.kind is EventKind.CALL]


def exits(events: list[Event]) -> dict[int, Event]:
    """EXIT events by pid."""
    return {event.pid: event for event in events if event.kind is EventKind.EXIT}


def names(events: list[Event]) -> list[str]:
    """Base names of the programs of the calls."""
    return [event.argv[0].rpartition("/")[2] if event.argv else event.comm for event in calls(events)]
