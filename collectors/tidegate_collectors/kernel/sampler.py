"""Ten times a second: memory, scheduling and pressure of every subject, the host, and what we cost ourselves.

A figure is sent when it changed, and once a second when it did not. All samples of one tick carry the same time.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tidegate_collectors.kernel.cgroup_files import MemoryCounters, Psi
from tidegate_collectors.kernel.cgroups import CgroupHandle
from tidegate_collectors.kernel.host_sampler import REPEAT_US, HostSampler, psi_sample
from tidegate_collectors.kernel.observer import Observer, SubjectStats
from tidegate_collectors.records import (
    Loss,
    MemEvent,
    MemSample,
    Record,
    SchedSample,
)

PERIOD_S = 0.1
MAX_PER_TICK = 256
"""Subjects looked at in one tick; with more of them, each has its turn every few ticks, and its windows are longer."""

_SubjectKind = Literal["runtime", "call", "session"]


@dataclass(slots=True, frozen=True)
class Target:
    """Something to sample: its ids, its counters in the kernel, and its group where it has one."""

    kind: _SubjectKind
    session: str
    call: str | None
    subject: int
    group: CgroupHandle | None


_Key = tuple[str, str, str | None]
_Item = tuple[_Key, Target]


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
        self._last: dict[_Key, _Last] = {}
        self._host = HostSampler(observer)
        self._lost: dict[str, int] = {}
        self._turn = 0

    def sample(self, targets: Iterable[Target], now_us: int) -> list[Record]:
        """One tick."""
        records: list[Record] = self._losses(now_us)
        all_of = {(target.session, target.kind, target.call): target for target in targets}
        for key, target in self._in_turn(list(all_of.items())):
            last = self._last.get(key)
            if last is None:
                last = self._last[key] = _Last(sched_us=now_us, psi_us=now_us)
            records.extend(self._sample(target, last, now_us))
        for gone in self._last.keys() - all_of.keys():
            del self._last[gone]
        records.extend(self._host.sample(now_us))
        return records

    def _in_turn(self, items: list[_Item]) -> list[_Item]:
        """All of a few; of many, those whose turn it is: no agent may have us eat a CPU by starting thousands."""
        if len(items) <= MAX_PER_TICK:
            return items
        first = self._turn % len(items)
        self._turn = first + MAX_PER_TICK
        return [*items[first : self._turn], *items[: max(self._turn - len(items), 0)]]

    def memory_at(
        self, t_us: int, target: Target, stats: SubjectStats, counters: MemoryCounters | None = None
    ) -> MemSample:
        """Memory of a target at one instant, with its peak so far."""
        charged = counters or MemoryCounters()
        return MemSample(
            t=t_us,
            session=target.session,
            call=target.call,
            subject=target.kind,
            anon_bytes=max(stats.anon_bytes, 0),
            file_bytes=max(stats.file_bytes, 0),
            shmem_bytes=max(stats.shmem_bytes, 0),
            swap_bytes=max(stats.swap_bytes, 0),
            peak_bytes=max(stats.peak_bytes, 0),
            charged_bytes=charged.charged_bytes,
            high_bytes=charged.high_bytes,
            max_bytes=charged.max_bytes,
            source=self._observer.memory_source,
        )

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
        records.append(self.memory_at(now_us, target, stats, counters))
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


def raise_file_limit() -> None:
    """Allow as many open files as the host lets us: each group's counters stay open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard > 0 else 65536, hard))
