"""A made-up but plausible run, told to a real backend through the real link: what the browser tests look at."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from tidegate_collectors.link import Hello, LinkClient, new_src
from tidegate_collectors.records import (
    CallEnd,
    CallStart,
    Capability,
    Category,
    HostSample,
    Loss,
    MemBurst,
    MemSample,
    ProcExec,
    ProcExit,
    PsiSample,
    Record,
    SchedSample,
    SessionEnd,
    SessionStart,
)

MB = 1_000_000
TICK_US = 100_000
HOST = "box"
HOSTILE_ID = "../x<img src=x onerror=alert(1)>"
HOSTILE_TITLE = "</script><script>alert(2)</script>\u202eabc\x1b[31m"
HOSTILE_COMMAND = '"><svg onload=alert(3)>&lt;b&gt; ' + "A" * 10_000

CALLS: Final[tuple[tuple[str, Category, str, float, float, int], ...]] = (
    ("git", "git", "git diff HEAD~1", 1.0, 1.4, 8),
    ("pip", "install", "pip install -e .[test]", 2.0, 4.0, 90),
    ("pytest", "tests", 'python3 -m pytest tests/ -v | grep -E "FAILED|ERROR"', 5.0, 14.0, 900),
    ("rg", "search", "rg -n 'def main' src", 7.0, 7.8, 12),
    ("sed", "edit", "sed -i s/a/b/ src/app.py", 15.0, 15.2, 4),
    ("pytest", "tests", "python3 -m pytest tests/unit", 16.0, 19.0, 400),
)
"""Tool, category, command, start and end in seconds, peak in MB. Calls 3 and 4 overlap."""
LENGTH_S = 20


def now_us() -> int:
    """The wall clock in microseconds UTC."""
    return time.time_ns() // 1000


class Collector:
    """Speaks for a kernel collector on the backend's link."""

    def __init__(self, link_socket: Path) -> None:
        hello = Hello(role="kernel", version="test", src=new_src("kernel"), host=HOST, boot_id="b", pid=os.getpid())
        self.link = LinkClient(link_socket, hello)
        self.link.start()

    def send(self, *records: Record) -> None:
        """Hand the records to the link, in this order."""
        for record in records:
            self.link.send(record)

    def settle(self, timeout_s: float = 10.0) -> None:
        """Wait until the backend has committed everything that was sent."""
        end = time.monotonic() + timeout_s
        while self.link.stats.queued and time.monotonic() < end:
            time.sleep(0.02)
        assert not self.link.stats.queued, self.link.stats

    def close(self) -> None:
        """Say goodbye."""
        self.link.close()


def sample(t: int, session: str, call: str | None, anon: int, wait_us: int = 0) -> Iterator[Record]:
    """Memory and scheduling of a runtime (``call`` None) or a call."""
    subject: Literal["call", "runtime"] = "call" if call else "runtime"
    yield MemSample(t=t, session=session, call=call, subject=subject, anon_bytes=anon, shmem_bytes=0)
    yield SchedSample(
        t=t, session=session, call=call, subject=subject, oncpu_us=60_000, wait_us=wait_us, window_us=TICK_US
    )


def host(t: int) -> HostSample:
    """A host with 8 GB, 3 of them used."""
    return HostSample(
        t=t, mem_total_bytes=8000 * MB, mem_available_bytes=5000 * MB, cpu_busy_us=90_000, window_us=TICK_US
    )


def agent(session: str, start: int, *, title: str) -> Iterator[Record]:
    """An agent that ran :data:`CALLS` and finished; records in time order from ``start`` (microseconds)."""
    yield SessionStart(
        t=start, session=session, agent="claude", title=title, priority="high", budget_bytes=800 * MB, pid=100
    )
    ended: set[int] = set()
    started: set[int] = set()
    for tick in range(LENGTH_S * 10 + 1):
        t = start + tick * TICK_US
        at = tick / 10
        yield host(t)
        yield from sample(t, session, None, 180 * MB + int(9 * MB * math.sin(at)), wait_us=4000)
        yield PsiSample(t=t, session=session, memory_some_us=2000, cpu_some_us=8000, io_some_us=500, window_us=TICK_US)
        for number, (tool, category, command, begin, end, peak) in enumerate(CALLS, start=1):
            call = f"c{number}"
            if begin <= at < end:
                pid = 200 + number
                if number not in started:
                    started.add(number)
                    hint = "memory:high" if peak > 500 else None
                    yield CallStart(
                        t=start + int(begin * 1e6), session=session, call=call, tool=tool,
                        category=category, command=command, pid=pid, hint=hint,
                    )  # fmt: skip
                    yield ProcExec(t=t, session=session, call=call, pid=pid, ppid=100, comm=tool)
                    yield ProcExec(t=t, session=session, call=call, pid=100 + pid, ppid=pid, comm="<b>child")
                phase = (at - begin) / (end - begin)
                yield from sample(t, session, call, int(peak * MB * math.sin(math.pi * (0.1 + 0.8 * phase))), 12_000)
                if peak > 300 and math.isclose(phase, 0.5, abs_tol=0.04):
                    yield MemBurst(
                        t=t, session=session, call=call, grown_bytes=300 * MB, window_us=1_000_000,
                        total_bytes=peak * MB,
                    )  # fmt: skip
            elif at >= end and number not in ended:
                ended.add(number)
                yield from _call_end(start + int(end * 1e6), session, call, number, peak, end - begin)
    yield SessionEnd(t=start + LENGTH_S * 1_000_000, session=session, reason="finished", exit_code=0)


def _call_end(t: int, session: str, call: str, number: int, peak: int, took_s: float) -> Iterator[Record]:
    yield ProcExit(t=t, session=session, call=call, pid=300 + number, exit_code=0, hiwater_bytes=peak * MB)
    yield ProcExit(t=t, session=session, call=call, pid=200 + number, exit_code=number % 2, hiwater_bytes=5 * MB)
    yield CallEnd(
        t=t, session=session, call=call, exit_code=number % 2, duration_us=int(took_s * 1e6), peak_bytes=peak * MB,
        spike_bytes=peak * MB - 2 * MB, kept_bytes=0, charged_peak_bytes=(peak + 7) * MB, rise_bytes_per_s=412 * MB,
        cpu_us=int(took_s * 8e5), runq_wait_us=int(took_s * 1e5), stall_us=40_000, processes=2, left_behind=0, bursts=1,
    )  # fmt: skip


def hostile(start: int) -> Iterator[Record]:
    """A session whose every name is an attack; still running."""
    yield SessionStart(t=start, session=HOSTILE_ID, agent="<i>agent</i>", title=HOSTILE_TITLE, priority="low")
    yield CallStart(
        t=start + 1000, session=HOSTILE_ID, call="c<1>&", tool="<u>tool", category="other", command=HOSTILE_COMMAND,
        hint="<script>", pid=7,
    )  # fmt: skip
    yield ProcExec(t=start + 2000, session=HOSTILE_ID, call="c<1>&", pid=7, ppid=1, comm="<b>x</b>")
    for tick in range(1, 20):
        yield from sample(start + tick * TICK_US, HOSTILE_ID, None, 50 * MB)
        yield from sample(start + tick * TICK_US, HOSTILE_ID, "c<1>&", 70 * MB)


def capabilities(t: int) -> Iterator[Record]:
    """What a collector found."""
    yield Capability(t=t, name="tp_btf.rss_stat", available=True, reason="loaded and fired")
    yield Capability(t=t, name="sched_ext", available=False, reason="not in this kernel; use one with sched_ext <6.12>")


def story(start: int) -> Iterator[Record]:
    """Everything that the page tests need: an ended agent, a hostile one, a loss, capabilities."""
    yield from capabilities(start)
    yield from agent("pre-commit-2524", start, title="pre-commit-2524")
    yield from hostile(start + 21_000_000)
    yield Loss(t=start + 22_000_000, where="bpf_ring", count=12, of="events")
