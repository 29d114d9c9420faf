"""Files of /proc, and the observer that lives on them: real processes, no rights needed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_collectors.kernel import procfs_files as files
from tidegate_collectors.kernel.observer import Event, EventKind
from tidegate_collectors.kernel.procfs import ProcfsObserver


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    tail = "S 7 8 9 0 -1 64 0 0 0 0 11 22 0 0 20 0 3 0 4242 " + "0 " * 29 + "2304"
    stat = files.parse_stat(f"55 (a) R (b) {tail}\n")
    assert stat is not None
    assert (stat.pid, stat.comm, stat.state, stat.ppid, stat.pgrp) == (55, "a) R (b", "S", 7, 8)
    assert (stat.cpu_us, stat.threads, stat.start_ticks, stat.status) == (33 * files.TICK_US, 3, 4242, 2304)
    assert not stat.has_execed


@given(st.text())
def test_no_text_breaks_the_readers(text: str) -> None:
    files.parse_stat(text)
    files.parse_memory(text)


def test_own_figures_are_those_of_the_kernel() -> None:
    stat = files.read_stat(os.getpid())
    assert stat is not None
    assert (stat.ppid, stat.dead) == (os.getppid(), False)
    before = files.read_memory(os.getpid())
    held = bytearray(b"x" * (40 << 20))
    after = files.read_memory(os.getpid())
    assert before is not None
    assert after is not None
    assert after.anon_bytes - before.anon_bytes >= len(held) * 0.98
    assert files.read_cmdline(os.getpid())[0]


def test_a_forked_child_is_told_from_one_that_runs_a_program() -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        forked = files.read_stat(pid)
        with subprocess.Popen(["sleep", "5"]) as sleeping:
            execed = files.read_stat(sleeping.pid)
            sleeping.kill()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert forked is not None
    assert execed is not None
    assert (forked.has_execed, execed.has_execed) == (False, True)


def test_one_variable_of_the_environment_is_read_and_no_part_of_another() -> None:
    env = {"XHINT": "no", "HINT": "memory:1g", "HINTX": "no"}
    with subprocess.Popen(["/bin/sleep", "5"], env=env) as child:
        until = time.monotonic() + 5  # Popen returns while the kernel still builds the new stack
        while files.read_environ(child.pid, "HINT") is None and time.monotonic() < until:
            time.sleep(0.005)
        assert files.read_environ(child.pid, "HINT") == "memory:1g"
        assert files.read_environ(child.pid, "HIN") is None
        child.kill()
    assert files.read_environ(child.pid, "HINT") is None


def test_host_files() -> None:
    memory = files.parse_meminfo(
        "MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 60 kB\nSwapTotal: 9 kB\nSwapFree: 4 kB\n"
    )
    assert (memory.total_bytes, memory.available_bytes, memory.swap_used_bytes) == (102400, 61440, 5120)
    assert files.parse_cpu_busy_us("cpu  1 2 3 1000 500 4 5 77 8 9\ncpu0 ...\n") == 15 * files.TICK_US
    assert files.parse_cpu_busy_us("") == 0


# --- the observer --------------------------------------------------------------------------------------------------


class Watched:
    """A shell under observation; ``events`` grows with each :meth:`until`."""

    def __init__(self, observer: ProcfsObserver, script: str, depth: int = 0) -> None:
        self.observer = observer
        self.events: list[Event] = []
        self.shell = subprocess.Popen(
            ["/bin/sh", "-c", f"read go; {script}"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        observer.track_runtime(None, 1, pid=self.shell.pid, runtime_depth=depth)

    def go(self) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.write(b"\n")
        self.shell.stdin.flush()

    def until(self, kind: EventKind, count: int = 1, timeout_s: float = 8) -> list[Event]:
        """Read events until ``count`` of a kind have come."""
        until = time.monotonic() + timeout_s
        while len(self.of(kind)) < count:
            assert time.monotonic() < until, f"only {self.events}"
            if select.select([self.observer], [], [], 0.2)[0]:
                self.events.extend(self.observer.read_events())
        return self.of(kind)

    def of(self, kind: EventKind) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


@contextmanager
def watched(script: str, *, burst_bytes: int = 1 << 40, depth: int = 0) -> Iterator[Watched]:
    observer = ProcfsObserver(burst_bytes=burst_bytes, window_us=200_000, poll_s=0.02)
    rig = Watched(observer, script, depth)
    try:
        yield rig
    finally:
        subprocess.run(["pkill", "-KILL", "-P", str(rig.shell.pid)], check=False)
        rig.shell.kill()
        rig.shell.communicate()
        observer.close()


def test_a_program_of_the_runtime_is_a_call_and_its_children_belong_to_it() -> None:
    with watched("sh -c 'sleep 0.3; true' arg; true") as rig:
        rig.go()
        (call,) = rig.until(EventKind.CALL)
        assert call.argv == ("sh", "-c", "sleep 0.3; true", "arg")
        assert (call.a, call.ppid) == (1, rig.shell.pid)
        assert abs(call.t_us - time.time_ns() // 1000) < 2_000_000
        rig.until(EventKind.EXIT, 3)
        forks = {event.pid: event.subject for event in rig.of(EventKind.FORK)}
        assert forks.pop(call.pid) == 1
        assert set(forks.values()) == {call.subject}
        assert len(rig.of(EventKind.CALL)) == 1
        assert {event.subject for event in rig.of(EventKind.EXIT)} == {1, call.subject}
        stats = rig.observer.stats(call.subject)
        assert stats is not None
        assert (stats.forks, stats.alive) == (1, 0)


def test_launched_programs_belong_to_the_runtime_down_to_the_depth() -> None:
    with watched("sh -c 'sleep 0.3; true' launcher; true", depth=1) as rig:
        rig.go()
        (call,) = rig.until(EventKind.CALL)
        assert call.argv == ("sleep", "0.3")


def test_memory_peak_and_burst_are_seen() -> None:
    program = "import sys; a = bytearray(120 << 20); sys.stdin.readline()"
    with watched(f'{sys.executable} -c "{program}"; true', burst_bytes=30 << 20) as rig:
        rig.go()
        (call,) = rig.until(EventKind.CALL)
        bursts = rig.until(EventKind.BURST)
        assert bursts[0].subject == call.subject
        assert bursts[0].a >= 30 << 20
        until = time.monotonic() + 10
        while time.monotonic() < until:  # the allocation may take a while on a busy machine
            rig.events.extend(rig.observer.read_events())
            running = rig.observer.stats(call.subject)
            if running is None or running.used_bytes >= 120 << 20:
                break
            time.sleep(0.02)
        rig.go()
        rig.until(EventKind.EXIT, 2)
        stats, session = rig.observer.stats(call.subject), rig.observer.session_stats(1)
        assert stats is not None
        assert session is not None
        assert 120 << 20 <= stats.peak_bytes < 160 << 20
        assert session.peak_bytes >= stats.peak_bytes
        assert stats.max_session_bytes - stats.start_session_bytes >= 115 << 20
        assert stats.used_bytes == 0
        assert stats.bursts == len([burst for burst in rig.of(EventKind.BURST) if burst.subject == call.subject])


def test_cpu_time_and_waits_are_counted() -> None:
    program = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    with watched(f"{sys.executable} -c '{program}'; sleep 0.2") as rig:
        rig.go()
        call = rig.until(EventKind.CALL)[0]
        rig.until(EventKind.CALL, 2, timeout_s=20)
        stats = rig.observer.stats(call.subject)
        assert stats is not None
        assert 350_000 <= stats.oncpu_us <= 1_000_000
        assert stats.wait_us is None or stats.wait_us >= 0
        session = rig.observer.session_stats(1)
        assert session is not None
        assert session.oncpu_us >= stats.oncpu_us


def test_the_status_of_a_zombie_is_its_exit() -> None:
    """GIVEN a parent that reaps late THEN the exit code is known."""
    observer = ProcfsObserver(burst_bytes=1 << 40, window_us=100_000, poll_s=0.02)
    child = subprocess.Popen(["/bin/sh", "-c", "read go; exit 7"], stdin=subprocess.PIPE)
    try:
        observer.track_runtime(None, 1, pid=child.pid)
        assert child.stdin is not None
        child.stdin.close()
        until = time.monotonic() + 5
        exits: list[Event] = []
        while not exits and time.monotonic() < until:
            time.sleep(0.02)
            exits = [event for event in observer.read_events() if event.kind == EventKind.EXIT]
        assert [(event.pid, event.a) for event in exits] == [(child.pid, 7 << 8)]
    finally:
        child.kill()
        child.wait()
        observer.close()


def test_an_explicit_call_takes_the_process_and_what_it_starts() -> None:
    with watched("sleep 0.1; sleep 1") as rig:
        rig.observer.track_call(None, 2, 1, pid=rig.shell.pid)
        rig.go()
        forks = rig.until(EventKind.FORK)
        assert forks[0].subject == 2
        assert rig.of(EventKind.CALL) == []


def test_nothing_is_read_while_nothing_is_tracked() -> None:
    observer = ProcfsObserver(burst_bytes=1, window_us=100_000, poll_s=0.01)
    try:
        assert not select.select([observer], [], [], 0.1)[0]
        observer.track_runtime(None, 1, pid=os.getpid())
        assert select.select([observer], [], [], 1)[0]
        observer.untrack(None, 1)
        observer.read_events()
        assert not select.select([observer], [], [], 0.1)[0]
        assert observer.stats(1) is None
        assert observer.lost() == {}
        assert observer.run_time_us() is None
    finally:
        observer.close()


def test_a_process_that_is_gone_cannot_be_tracked() -> None:
    observer = ProcfsObserver(burst_bytes=1, window_us=100_000)
    child = subprocess.Popen(["true"])
    child.wait()
    try:
        with pytest.raises(ProcessLookupError):
            observer.track_runtime(None, 1, pid=child.pid)
    finally:
        observer.close()
