"""A made-up run of any size for the benches: the same records every time, encoded as a collector encodes them.

The mix is that of a busy host: each session runs tool calls one after the other, some of them two at once, with a
minute's pause at most; runtime and running calls are sampled 10 times a second, pressure and the host once a second,
and each call has processes. Test runs and builds burst. Over a longer span everything is slower by the same factor, so
the mix stays as it is.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any, Final

from tidegate_collectors.link import Stamper
from tidegate_collectors.records import (
    AnyRecord,
    CallEnd,
    CallStart,
    Capability,
    Category,
    HostInfo,
    HostSample,
    MemBurst,
    MemEvent,
    MemSample,
    ProcExec,
    ProcExit,
    PsiSample,
    Record,
    RunEnd,
    RunMeta,
    SchedSample,
    SessionEnd,
    SessionStart,
)

T0_US: Final = 1_790_000_000_000_000
HOST: Final = "bench"
MB: Final = 1_000_000
RECORDS_A_TICK: Final = 3.0
"""Records that a session makes in a tick, with its share of the host's; measured."""

_CALLS: Final[tuple[tuple[str, Category, str, float, int], ...]] = (
    ("rg", "search", "rg -n 'def handle' src", 0.6, 9),
    ("sed", "read", "sed -n 1,120p src/app.py", 0.3, 4),
    ("git", "git", "git diff --stat HEAD~1", 0.8, 12),
    ("apply_patch", "edit", "apply_patch fix.patch", 0.4, 6),
    ("pytest", "tests", "python3 -m pytest tests/unit -q", 12.0, 420),
    ("pip", "install", "pip install -e .[test]", 8.0, 140),
    ("make", "build", "make -j4 all", 20.0, 610),
)
"""Tool, category, command, seconds in the mean, peak in MB."""


class _Agent:
    """One session: what it does in each tick."""

    def __init__(self, number: int, seed: int, tick_us: int) -> None:
        self.id = f"agent-{number:03}"
        self.rng = random.Random(seed * 1000 + number)
        self.tick_us = tick_us
        self.pid = 1000 + number * 50_000
        self.runtime = self.rng.randrange(150, 210) * MB
        self.calls = 0
        self.running: list[list[Any]] = []  # id, kind, start_us, end_us, pid, burst told
        self.next_us = 0

    def start(self, t: int) -> Iterator[Record]:
        self.next_us = t + self.rng.randrange(30) * self.tick_us
        yield SessionStart(
            t=t, session=self.id, agent="claude", title=f"task {self.id}", pid=self.pid,
            priority=self.rng.choice(("high", "normal", "low")), budget_bytes=2000 * MB,
        )  # fmt: skip

    def tick(self, t: int, second: bool) -> Iterator[Record]:
        rng, session, tick_us = self.rng, self.id, self.tick_us
        self.runtime += rng.randrange(-300_000, 320_000)
        yield MemSample(
            t=t,
            session=session,
            subject="runtime",
            anon_bytes=self.runtime,
            shmem_bytes=0,
            peak_bytes=self.runtime + MB,
        )
        yield SchedSample(
            t=t, session=session, subject="runtime", oncpu_us=rng.randrange(9000), wait_us=rng.randrange(900),
            window_us=tick_us,
        )  # fmt: skip
        if second:
            yield PsiSample(
                t=t, session=session, memory_some_us=rng.randrange(4000), cpu_some_us=rng.randrange(90_000),
                io_some_us=0, window_us=10 * tick_us,
            )  # fmt: skip
        if t >= self.next_us:
            yield from self._begin(t)
        for call in list(self.running):
            if t >= call[3]:
                self.running.remove(call)
                yield from self._end(call)
            else:
                yield from self._sample(t, call)

    def _begin(self, t: int) -> Iterator[Record]:
        rng = self.rng
        kind = rng.choices(_CALLS, (30, 25, 15, 14, 8, 4, 4))[0]
        self.calls += 1
        second = 10 * self.tick_us
        took = int(max(0.06, rng.expovariate(1 / kind[3])) * second)
        pid = self.pid + self.calls * 3 % 40_000 + 1
        call = [f"c{self.calls}", kind, t, t + took, pid, False]
        self.running.append(call)
        pause = int(min(60, rng.expovariate(1 / 4)) * second)
        self.next_us = t + (pause // 4 if rng.random() < 0.05 else took + pause)
        common: dict[str, Any] = {"t": t, "session": self.id, "call": call[0]}
        yield CallStart(**common, tool=kind[0], category=kind[1], command=kind[2], pid=pid)
        yield ProcExec(**common, pid=pid, ppid=self.pid, comm=kind[0])
        if kind[3] > 1:
            yield ProcExec(**common, pid=pid + 1, ppid=pid, comm="python3")

    def _sample(self, t: int, call: list[Any]) -> Iterator[Record]:
        name, kind, start, end, pid, told = call
        rng = self.rng
        share = (t - start) / (end - start)
        used = int(kind[4] * MB * (0.1 + 0.9 * math.sin(math.pi * share) ** 2)) + rng.randrange(200_000)
        common: dict[str, Any] = {"t": t, "session": self.id, "call": name}
        yield MemSample(**common, subject="call", anon_bytes=used, shmem_bytes=0, peak_bytes=used + used // 16)
        yield SchedSample(
            **common, subject="call", oncpu_us=rng.randrange(90_000), wait_us=rng.randrange(12_000),
            window_us=self.tick_us,
        )  # fmt: skip
        if not told and kind[4] > 100 and share > 0.3:
            call[5] = True
            yield MemBurst(**common, grown_bytes=used // 2, window_us=1_000_000, total_bytes=used, pid=pid)
            if rng.random() < 0.05:
                yield MemEvent(**common, high=3)

    def _end(self, call: list[Any]) -> Iterator[Record]:
        name, kind, start, end, pid, told = call
        rng = self.rng
        common: dict[str, Any] = {"t": end, "session": self.id, "call": name}
        peak = kind[4] * MB + rng.randrange(MB)
        killed = kind[1] == "build" and rng.random() < 0.02
        if killed:
            yield MemEvent(**common, oom=1, oom_kill=1, pid=pid)
        if kind[3] > 1:
            yield ProcExit(**common, pid=pid + 1, exit_code=0, hiwater_bytes=peak)
        yield ProcExit(**common, pid=pid, exit_code=None if killed else 0, signal=9 if killed else None)
        yield CallEnd(
            **common, exit_code=None if killed else int(rng.random() < 0.1), signal=9 if killed else None, oom=killed,
            duration_us=end - start, peak_bytes=peak, spike_bytes=peak // 2, kept_bytes=0, cpu_us=(end - start) // 2,
            runq_wait_us=(end - start) // 20, processes=2, left_behind=0, bursts=int(told),
        )  # fmt: skip

    def stop(self, t: int) -> Iterator[Record]:
        for call in self.running:
            call[3] = t
            yield from self._end(call)
        yield SessionEnd(t=t, session=self.id, reason="finished", exit_code=0)


def _records(count: int, sessions: int, tick_us: int, seed: int, t0_us: int) -> Iterator[Record]:
    """More than ``count`` records, without an end."""
    agents = [_Agent(number, seed, tick_us) for number in range(sessions)]
    machine = HostInfo(kernel="6.12.0", cpus=16, memory_bytes=64_000 * MB, boot_id="bench")
    yield RunMeta(t=t0_us, run=f"bench-{count}", title=f"{count} records", source="live", machine=machine)
    yield Capability(t=t0_us, name="tp_btf.rss_stat", available=True, reason="loaded and fired")
    for agent in agents:
        yield from agent.start(t0_us)
    tick = 0
    rng = random.Random(seed)
    while True:
        tick += 1
        t = t0_us + tick * tick_us
        second = tick % 10 == 0
        if second:
            yield HostSample(
                t=t, mem_total_bytes=64_000 * MB, mem_available_bytes=rng.randrange(20_000, 40_000) * MB,
                cpu_busy_us=rng.randrange(90) * tick_us, window_us=10 * tick_us,
            )  # fmt: skip
        for agent in agents:
            yield from agent.tick(t, second)


def workload(
    count: int, *, sessions: int = 64, span_s: float | None = None, seed: int = 1, t0_us: int = T0_US
) -> Iterator[tuple[AnyRecord, bytes]]:
    """``count`` stamped records and their lines without newline, in order; the last one ends the run.

    Args:
        count: how many; at least a few for each session.
        sessions: how many agents there are, from the first tick to the last.
        span_s: what the run covers, about, seconds; by default as long as it takes at 10 samples a second.
        seed: another one gives another run of the same kind.
        t0_us: time of the first record.
    """
    tick_us = 100_000 if span_s is None else max(1000, int(span_s * 1_000_000 * sessions * RECORDS_A_TICK / count))
    stamp = Stamper("kernel-bench", HOST).stamp
    t = t0_us
    for record in itertools.islice(_records(count, sessions, tick_us, seed, t0_us), count - 1):
        t = max(t, record.t)
        yield record, stamp(record)  # type: ignore[misc]  # all of them are in AnyRecord
    end = RunEnd(t=t, clean=True)
    yield end, stamp(end)
