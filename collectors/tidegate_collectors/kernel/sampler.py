"""Ten times a second: memory, scheduling and pressure of every subject, the host, and what we cost ourselves.

A figure is sent when it changed, and once a second when it did not. All samples of one tick carry the same time.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tidegate_collectors.kernel import procfs_files
from tidegate_collectors.kernel.cgroup_files import HOST_PRESSURE, ControlFiles, MemoryCounters, Psi, read_psi
from tidegate_collectors.kernel.cgroups import CgroupHandle
from tidegate_collectors.kernel.observer import Observer, SubjectStats
from tidegate_collectors.records import (
    HostSample,
    Loss,
    MemEvent,
    MemSample,
    PsiSample,
    Record,
    SchedSample,
    SelfCost,
)

PERIOD_S = 0.1
REPEAT_US = 1_000_000
"""A sample that says nothing new is sent this often."""

_HOST_STEP_BYTES = 1 << 20
_SubjectKind = Literal["runtime", "call", "session"]


@dataclass(slots=True, frozen=True)
class Target:
    """Something to sample: its ids, its counters in the kernel, and its group where it has one."""

    kind: _SubjectKind
    session: str
    call: str | None
    subject: int
    group: CgroupHandle | None


@dataclass(slots=True)
class _Last:
    memory: tuple[int, ...] = ()
    memory_us: int = 0
    sched: tuple[int, int] = (0, 0)
    switches: int = 0
    hist: list[int] | None = None
    sched_us: int = 0
    psi: Psi = field(default_factory=Psi)
    psi_us: int = 0
    events: tuple[int, ...] = (0, 0, 0, 0, 0)


class Sampler:
    """Turns counters into records.

    Args:
        observer: where counters by subject come from.
        kills_reported: the observer reports each OOM victim, so the controller's own count of kills is not repeated.
    """

    def __init__(self, observer: Observer, *, kills_reported: bool) -> None:
        self._observer = observer
        self._kills_reported = kills_reported
        self._last: dict[tuple[str, str, str | None], _Last] = {}
        self._host = HostSampler(observer)
        self._lost: dict[str, int] = {}

    def sample(self, targets: Iterable[Target], now_us: int) -> list[Record]:
        """One tick."""
        records: list[Record] = self._losses(now_us)
        seen: set[tuple[str, str, str | None]] = set()
        for target in targets:
            key: tuple[str, str, str | None] = (target.session, target.kind, target.call)
            seen.add(key)
            last = self._last.get(key)
            if last is None:
                last = self._last[key] = _Last(sched_us=now_us, psi_us=now_us)
            records.extend(self._sample(target, last, now_us))
        for key in self._last.keys() - seen:
            del self._last[key]
        records.extend(self._host.sample(now_us))
        return records

    def count_events(self, count: int) -> None:
        """The observer delivered ``count`` events: part of our own cost."""
        self._host.events += count

    def close(self) -> None:
        """Close the files held open."""
        self._host.close()

    def _losses(self, now_us: int) -> list[Record]:
        records: list[Record] = []
        for where, total in self._observer.lost().items():
            if (count := total - self._lost.get(where, 0)) > 0:
                self._lost[where] = total
                place: Literal["bpf_ring", "bpf_map"] = "bpf_map" if where == "bpf_map" else "bpf_ring"
                of = {"bpf_ring": "events", "bpf_map": "subjects"}.get(where, where)
                records.append(Loss(t=now_us, where=place, count=count, of=of))
        return records

    def _sample(self, target: Target, last: _Last, now_us: int) -> list[Record]:
        records: list[Record] = []
        session = target.kind == "session"
        stats = self._observer.session_stats(target.subject) if session else self._observer.stats(target.subject)
        if stats is not None:
            moved = self._memory(target, last, stats, now_us, records)
            if not session:
                self._sched(target, last, stats, now_us, records)
        else:
            moved = False
        if target.group is not None and (session or moved):
            self._psi(target, last, now_us, records)
        return records

    def _memory(self, target: Target, last: _Last, stats: SubjectStats, now_us: int, records: list[Record]) -> bool:
        figures = (stats.anon_bytes, stats.shmem_bytes, stats.swap_bytes, stats.peak_bytes)
        if figures == last.memory and now_us - last.memory_us < REPEAT_US:
            return False
        last.memory, last.memory_us = figures, now_us
        counters = target.group.memory() if target.group is not None else MemoryCounters()
        records.append(
            MemSample(
                t=now_us,
                session=target.session,
                call=target.call,
                subject=target.kind,
                anon_bytes=max(stats.anon_bytes, 0),
                file_bytes=max(stats.file_bytes, 0),
                shmem_bytes=max(stats.shmem_bytes, 0),
                swap_bytes=max(stats.swap_bytes, 0),
                peak_bytes=max(stats.peak_bytes, 0),
                charged_bytes=counters.charged_bytes,
                high_bytes=counters.high_bytes,
                max_bytes=counters.max_bytes,
                source=self._observer.memory_source,
            )
        )
        if target.kind != "session":
            # v2 counts a child's events in its parents too; leaves only, so that each is told once.
            self._events(target, last, counters, now_us, records)
        return True

    def _events(
        self, target: Target, last: _Last, counters: MemoryCounters, now_us: int, records: list[Record]
    ) -> None:
        kills = 0 if self._kills_reported else counters.oom_kill
        totals = (counters.low, counters.high, counters.max, counters.oom, kills)
        if totals == last.events:
            return
        low, high, limit, oom, kill = (max(new - old, 0) for new, old in zip(totals, last.events, strict=True))
        last.events = totals
        records.append(
            MemEvent(
                t=now_us,
                session=target.session,
                call=target.call,
                low=low,
                high=high,
                max=limit,
                oom=oom,
                oom_kill=kill,
            )
        )

    @staticmethod
    def _sched(target: Target, last: _Last, stats: SubjectStats, now_us: int, records: list[Record]) -> None:
        figures = (stats.oncpu_us, stats.wait_us or 0)
        if figures == last.sched and now_us - last.sched_us < REPEAT_US:
            return
        hist = None
        if any(stats.hist):
            old = last.hist or [0] * len(stats.hist)
            hist = [max(new - before, 0) for new, before in zip(stats.hist, old, strict=True)]
            last.hist = list(stats.hist)
        switches = None
        if stats.switches is not None:
            switches, last.switches = max(stats.switches - last.switches, 0), stats.switches
        records.append(
            SchedSample(
                t=now_us,
                session=target.session,
                call=target.call,
                subject=target.kind,
                oncpu_us=max(figures[0] - last.sched[0], 0),
                wait_us=max(figures[1] - last.sched[1], 0) if stats.wait_us is not None else None,
                wait_max_us=stats.wait_max_us,
                switches=switches,
                hist=hist,
                window_us=max(now_us - last.sched_us, 0),
            )
        )
        last.sched, last.sched_us = figures, now_us

    @staticmethod
    def _psi(target: Target, last: _Last, now_us: int, records: list[Record]) -> None:
        if target.group is None:
            return
        psi = target.group.psi()
        if psi == Psi() or (psi == last.psi and now_us - last.psi_us < REPEAT_US):
            return
        sample = psi_sample(psi, last.psi, t_us=now_us, window_us=now_us - last.psi_us)
        sample.session, sample.call, sample.subject = target.session, target.call, target.kind
        last.psi, last.psi_us = psi, now_us
        records.append(sample)


def psi_sample(now: Psi, before: Psi, *, t_us: int, window_us: int) -> PsiSample:
    """The growth of the totals between two readings."""

    def grown(new: int | None, old: int | None) -> int | None:
        return max(new - (old or 0), 0) if new is not None else None

    return PsiSample(
        t=t_us,
        memory_some_us=grown(now.memory_some_us, before.memory_some_us),
        memory_full_us=grown(now.memory_full_us, before.memory_full_us),
        cpu_some_us=grown(now.cpu_some_us, before.cpu_some_us),
        io_some_us=grown(now.io_some_us, before.io_some_us),
        io_full_us=grown(now.io_full_us, before.io_full_us),
        window_us=window_us,
    )


class HostSampler:
    """The host's memory, CPUs and pressure, and the collector's own cost."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._meminfo = ControlFiles(Path("/proc"))
        self._pressure = ControlFiles(Path("/proc/pressure"))
        self._available = 0
        self._psi = read_psi(self._pressure, HOST_PRESSURE)
        self._sent_us = 0
        self._psi_us = 0
        self._busy_us = procfs_files.parse_cpu_busy_us(self._meminfo.text("stat") or "")
        self._own_us = own_cpu_us()
        self._bpf_us = observer.run_time_us() or 0
        self.events = 0

    def close(self) -> None:
        """Close the files held open."""
        self._meminfo.close()
        self._pressure.close()

    def sample(self, now_us: int) -> list[Record]:
        """A host sample when available memory moved by a megabyte, or a second is over."""
        memory = procfs_files.parse_meminfo(self._meminfo.text("meminfo") or "")
        moved = abs(memory.available_bytes - self._available) >= _HOST_STEP_BYTES
        if not moved and now_us - self._sent_us < REPEAT_US:
            return []
        busy_us, own_us = procfs_files.parse_cpu_busy_us(self._meminfo.text("stat") or ""), own_cpu_us()
        bpf_us = self._observer.run_time_us()
        own = SelfCost(cpu_us=own_us - self._own_us, rss_bytes=own_rss_bytes(), events=self.events)
        if bpf_us is not None:
            own.bpf_run_us, self._bpf_us = max(bpf_us - self._bpf_us, 0), bpf_us
        records: list[Record] = [
            HostSample(
                t=now_us,
                mem_available_bytes=memory.available_bytes,
                mem_total_bytes=memory.total_bytes,
                cpu_busy_us=max(busy_us - self._busy_us, 0),
                swap_used_bytes=memory.swap_used_bytes,
                window_us=now_us - self._sent_us if self._sent_us else None,
                own=own,
            )
        ]
        self._available, self._sent_us, self._busy_us, self._own_us = memory.available_bytes, now_us, busy_us, own_us
        self.events = 0
        if now_us - self._psi_us >= REPEAT_US:
            psi = read_psi(self._pressure, HOST_PRESSURE)
            if self._psi_us and psi != Psi():
                sample = psi_sample(psi, self._psi, t_us=now_us, window_us=now_us - self._psi_us)
                sample.subject = "host"
                records.append(sample)
            self._psi, self._psi_us = psi, now_us
        return records


def own_cpu_us() -> int:
    """CPU time of this process, all threads."""
    return time.process_time_ns() // 1000


def own_rss_bytes() -> int:
    """Resident memory of this process."""
    fields = (procfs_files.read_text("/proc/self/statm", 128) or "").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def raise_file_limit() -> None:
    """Allow as many open files as the host lets us: each group's counters stay open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard > 0 else 65536, hard))
