"""Records of small, made-up runs, stamped as a collector stamps them."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate_collectors import records
from tidegate_collectors.link import Stamper
from tidegate_collectors.records import (
    AnyRecord,
    CallEnd,
    CallStart,
    HostInfo,
    HostSample,
    MemBurst,
    MemSample,
    Note,
    PsiSample,
    Record,
    RunEnd,
    RunMeta,
    SchedSample,
    SessionEnd,
    SessionStart,
)

T0 = 1_796_000_000_000_000
"""Time of the first record, microseconds UTC."""


def stamped(items: Iterable[Record], src: str = "kernel-1", host: str = "box") -> list[bytes]:
    """Lines of one sender, seq from 0."""
    stamper = Stamper(src, host)
    return [stamper.stamp(item) for item in items]


def scene(sessions: int = 2, ticks: int = 20, *, end: bool = True) -> list[AnyRecord]:
    """A run: each session has two calls, one after the other; samples of all kinds at every tick of 100 ms."""
    out: list[AnyRecord] = [
        RunMeta(t=T0, run="20261130-2306-ab12", title="a scene", machine=HostInfo(kernel="6.18", cpus=2, boot_id="b"))
    ]
    names = [f"s{i}" for i in range(sessions)]
    out += [
        SessionStart(t=T0 + 10, session=s, agent="bash", title=f"title of {s}", budget_bytes=1 << 30) for s in names
    ]
    for tick in range(ticks):
        t = T0 + 100_000 * (tick + 1)
        call = f"c{1 + (tick >= ticks // 2)}"
        out.append(HostSample(t=t, mem_available_bytes=3 << 30, mem_total_bytes=4 << 30, cpu_busy_us=1000 * tick))
        for s in names:
            if tick in (0, ticks // 2):
                out.append(CallStart(t=t - 50, session=s, call=call, tool="pytest", category="tests", command="pytest"))
            out.append(MemSample(t=t, session=s, subject="runtime", anon_bytes=1 << 20, shmem_bytes=4096))
            out.append(
                MemSample(t=t, session=s, call=call, subject="call", anon_bytes=tick << 20, peak_bytes=(tick + 1) << 20)
            )
            out.append(
                SchedSample(t=t, session=s, call=call, subject="call", oncpu_us=900, wait_us=50, window_us=100_000)
            )
            out.append(PsiSample(t=t, session=s, subject="session", memory_some_us=5, window_us=100_000))
            if tick == 3:
                out.append(
                    MemBurst(t=t, session=s, call=call, grown_bytes=64 << 20, window_us=100_000, total_bytes=99 << 20)
                )
            if tick in (ticks // 2 - 1, ticks - 1):
                out.append(CallEnd(t=t + 20, session=s, call=call, exit_code=tick % 3, peak_bytes=7 << 20, cpu_us=123))
    out.append(Note(t=T0 + 100_000 * ticks + 30, text="a note", by="somebody"))
    if end:
        t = T0 + 100_000 * ticks + 40
        out += [SessionEnd(t=t, session=s, reason="finished", exit_code=0) for s in names]
        out.append(RunEnd(t=t + 1, clean=True))
    return out


def scene_lines(sessions: int = 2, ticks: int = 20, *, end: bool = True) -> list[bytes]:
    """The same as lines of one sender."""
    return stamped(scene(sessions, ticks, end=end))


def decoded(lines: Iterable[bytes]) -> list[AnyRecord | records.Unknown]:
    """The records of lines."""
    return [records.decode(line) for line in lines]
