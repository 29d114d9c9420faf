"""Counters of subjects from figures of single processes: what BPF programs sum up in the kernel, done here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tidegate_collectors.kernel import procfs_files as files
from tidegate_collectors.kernel.observer import Event, EventKind, SubjectStats


@dataclass(slots=True)
class Process:
    """One process that is followed. ``depth``: generations of programs below it that still belong to the runtime."""

    pid: int
    ppid: int
    start_ticks: int
    subject: int
    depth: int
    root: bool
    execed: bool
    comm: str
    memory: files.ProcMemory = field(default_factory=files.ProcMemory)
    oncpu_us: int = 0
    wait_us: int = 0
    switches: int = 0


@dataclass(slots=True)
class Subject:
    """One runtime or call. ``recent``: ``(time, used bytes)`` of the burst window."""

    runtime: int
    stats: SubjectStats = field(default_factory=SubjectStats)
    recent: deque[tuple[int, int]] = field(default_factory=deque)
    quiet_until_us: int = 0


class Counters:
    """Counters by subject and by session.

    Args:
        burst_bytes: growth of one subject within ``window_us`` that is a burst.
        has_waits: whether this host tells of waits for a CPU.
    """

    def __init__(self, *, burst_bytes: int, window_us: int, has_waits: bool) -> None:
        self._burst_bytes = burst_bytes
        self._window_us = window_us
        self._has_waits = has_waits
        self.subjects: dict[int, Subject] = {}
        self.sessions: dict[int, SubjectStats] = {}

    def add_runtime(self, subject: int) -> None:
        """Begin a session whose runtime is ``subject``."""
        self.subjects[subject] = self._new(subject)
        self.sessions[subject] = self._new(subject).stats

    def add_call(self, subject: int, runtime: int) -> Subject:
        """Begin a call of that runtime."""
        call = self.subjects[subject] = self._new(runtime)
        session = self.sessions.get(runtime)
        if session is not None:
            call.stats.start_session_bytes = call.stats.max_session_bytes = session.used_bytes
        return call

    def remove(self, subject: int) -> None:
        """Forget a subject; unknown ones are ignored."""
        self.subjects.pop(subject, None)
        self.sessions.pop(subject, None)

    def count(self, subject: int, counter: Literal["forks", "execs", "exits", "bursts"]) -> None:
        """Add one to a counter of the subject and of its session."""
        for stats in self._both(subject):
            setattr(stats, counter, getattr(stats, counter) + 1)

    def move(self, process: Process, subject: int) -> None:
        """A living process belongs to ``subject`` from now on."""
        self.subjects[process.subject].stats.alive -= 1
        self.subjects[subject].stats.alive += 1
        process.subject = subject

    def account(self, process: Process, stat: files.ProcStat) -> None:
        """Add the CPU time and waits of a process since the last reading."""
        sched = files.read_schedstat(process.pid, stat.threads) if self._has_waits else None
        # Threads that ended take their schedstat along, but not their CPU time in stat: the greater one is nearer.
        oncpu = max(stat.cpu_us, sched[0] if sched else 0, process.oncpu_us)
        wait = max(sched[1] if sched else 0, process.wait_us)
        switches = max(sched[2] if sched else 0, process.switches)
        for stats in self._both(process.subject):
            stats.oncpu_us += oncpu - process.oncpu_us
            if stats.wait_us is not None and stats.switches is not None:
                stats.wait_us += wait - process.wait_us
                stats.switches += switches - process.switches
        process.oncpu_us, process.wait_us, process.switches = oncpu, wait, switches

    def sum_up(self, processes: Iterable[Process], now_us: int) -> list[Event]:
        """Set the memory of every subject and session from its processes; returns the bursts."""
        sums: dict[int, list[int]] = {subject: [0, 0, 0, 0] for subject in self.subjects}
        first: dict[int, int] = {}
        for process in processes:
            memory, total = process.memory, sums[process.subject]
            total[0] += memory.anon_bytes
            total[1] += memory.file_bytes
            total[2] += memory.shmem_bytes
            total[3] += memory.swap_bytes
            first.setdefault(process.subject, process.pid)
        for runtime, session in self.sessions.items():
            mine = [sums[key] for key, subject in self.subjects.items() if subject.runtime == runtime]
            _set_memory(session, [sum(column) for column in zip(*mine, strict=True)])
        bursts = []
        for key, subject in self.subjects.items():
            grew = sums[key][0] + sums[key][2] > subject.stats.used_bytes
            _set_memory(subject.stats, sums[key])
            whole = self.sessions.get(subject.runtime)
            if grew and whole is not None and subject.stats.max_session_bytes < whole.used_bytes:
                subject.stats.max_session_bytes = whole.used_bytes
            if (grown := self._burst(subject, now_us)) > 0:
                self.count(key, "bursts")
                used = subject.stats.used_bytes
                bursts.append(Event(EventKind.BURST, now_us, key, first.get(key, 0), a=grown, b=used))
        return bursts

    def _burst(self, subject: Subject, now_us: int) -> int:
        """Bytes grown within the window when that is a burst that was not told yet, else 0."""
        used, recent = subject.stats.used_bytes, subject.recent
        recent.append((now_us, used))
        # The reading at the window's edge stays: growth across it is growth of this window.
        while len(recent) > 2 and recent[1][0] <= now_us - self._window_us:
            recent.popleft()
        grown = used - min(value for _, value in recent)
        subject.stats.window_max_bytes = max(subject.stats.window_max_bytes, grown)
        if grown < self._burst_bytes or now_us < subject.quiet_until_us:
            return 0
        subject.quiet_until_us = now_us + self._window_us
        return grown

    def _both(self, subject: int) -> list[SubjectStats]:
        found = self.subjects[subject]
        session = self.sessions.get(found.runtime)
        return [found.stats] if session is None else [found.stats, session]

    def _new(self, runtime: int) -> Subject:
        subject = Subject(runtime)
        subject.stats.wait_max_us = None  # no file tells of single waits
        if not self._has_waits:
            subject.stats.wait_us = subject.stats.switches = None
        return subject


def _set_memory(stats: SubjectStats, sums: Sequence[int]) -> None:
    stats.anon_bytes, stats.file_bytes, stats.shmem_bytes, stats.swap_bytes = sums
    stats.peak_bytes = max(stats.peak_bytes, stats.used_bytes)
