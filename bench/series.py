"""Milliseconds to answer a session's chart of 1,600 px over a million samples, as the API does: read, drawn, as JSON.

Reference, in the same run: the same chart, column by column, drawn from the samples. That every extreme is kept is
checked by comparing the two: the greatest total of each column, and the instant of it. The details hold the chart of a
host with 64 sessions over 24 hours.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench._report import Report, arguments, progress
from tidegate.analysis.series import SessionSeries
from tidegate.store import Batch, NewRun, Run, Store, open_store
from tidegate.store.charts import host_chart, session_chart
from tidegate.store.rollups import build_rollups
from tidegate.web.responses import json_response
from tidegate_collectors import records as vocabulary
from tidegate_collectors.records import CallEnd, CallStart, HostSample, MemSample, SchedSample, SessionStart

PX: Final = 1600
SAMPLES: Final = 1_000_000
SECOND: Final = 1_000_000
START_US: Final = 1_790_000_000_000_000
SESSIONS: Final = 64
DAY_US: Final = 24 * 3600 * SECOND


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("series", __doc__).full
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        report = asyncio.run(_measure(Path(directory), runs=60 if full else 20, day_step_s=2 if full else 20))
    print(report.line())
    return 0


async def _measure(directory: Path, *, runs: int, day_step_s: int) -> Report:
    store = await open_store(directory / "one.db")
    run, session = await _filled(store, _million(), "one")
    span: dict[str, Any] = {"from_us": START_US, "to_us": run.last_t or 0, "px": PX}
    took, exact_took, zoomed = [], [], []
    found: Any = None
    exact: Any = None
    for number in range(runs):
        found, ms = await _timed(session_chart(store, run, session, **span))
        took.append(ms)
        if number % 5 == 0:
            exact, ms = await _timed(session_chart(store, run, session, **span, exact=True))
            exact_took.append(ms)
        since = START_US + (3600 + 300 * number) * SECOND
        half_hour: dict[str, Any] = {"from_us": since, "to_us": since + 1800 * SECOND, "px": PX}
        zoomed.append((await _timed(session_chart(store, run, session, **half_hour)))[1])
    (times, total), (exact_times, exact_total) = _total(found), _total(exact)
    kept = times.tolist() == exact_times.tolist() and total.tolist() == exact_total.tolist()
    size = store.path.stat().st_size
    await store.close()
    details = {
        "goal_ms": 30,
        "every_extreme_kept": "yes" if kept else "no",
        "samples": SAMPLES,
        "p95_ms": sorted(took)[int(0.95 * (len(took) - 1))],
        "half_hour_of_it_ms": statistics.median(zoomed),
        "database_bytes": size,
    }
    details |= await _day(directory, runs=max(5, runs // 4), step_s=day_step_s)
    return Report(
        bench="series",
        value=statistics.median(took),
        unit="ms",
        reference_name="the same columns drawn from all samples",
        reference_value=statistics.median(exact_took),
        runs=len(took),
        details=details,
    )


async def _day(directory: Path, *, runs: int, step_s: int) -> dict[str, Any]:
    """64 sessions over 24 hours: the whole, and the last hours while one scrolls."""
    progress(f"{SESSIONS} sessions over 24 h, a sample each {step_s} s")
    store = await open_store(directory / "day.db")
    run, _ = await _filled(store, _day_records(step_s), "day", live=True)
    names = [f"agent-{number}" for number in range(SESSIONS)]
    whole, one, scrolled = [], [], []
    day: dict[str, Any] = {"from_us": START_US, "to_us": START_US + DAY_US, "px": PX}
    for number in range(runs):
        whole.append((await _timed(host_chart(store, run, names, **day, cpus=2)))[1])
        one.append((await _timed(session_chart(store, run, names[0], **day)))[1])
        since = START_US + DAY_US - (number + 3) * 3600 * SECOND
        hours: dict[str, Any] = {"from_us": since, "to_us": since + 7200 * SECOND, "px": PX}
        scrolled.append((await _timed(host_chart(store, run, names, **hours, cpus=2)))[1])
    await store.close()
    return {
        "day_of_64_sessions_host_ms": statistics.median(whole),
        "day_of_64_sessions_two_hours_ms": statistics.median(scrolled),
        "day_of_one_session_ms": statistics.median(one),
        "day_samples": run.last_ord,
    }


async def _timed(drawing: Awaitable[Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    drawn = await drawing
    json_response(drawn.to_json() if isinstance(drawn, SessionSeries) else drawn)
    return drawn, (time.perf_counter() - started) * 1000


def _total(series: SessionSeries) -> tuple[Any, Any]:
    total = np.nan_to_num(series.runtime_bytes) + sum(np.nan_to_num(v) for v in series.calls_bytes.values())
    return series.mem_t_us, total


async def _filled(store: Store, source: Any, title: str, *, live: bool = False) -> tuple[Run, str]:
    started = time.perf_counter()
    run = await store.create_run(NewRun(id=title, started_us=START_US))
    batch = Batch()
    seq = 0
    for record in source:
        record.v, record.seq, record.src = vocabulary.VERSION, seq, "kernel-1"
        seq += 1
        batch.add(record, vocabulary.encode(record))
        if len(batch) >= 16_384:
            await store.commit(run, batch)
            batch = Batch()
    await store.commit(run, batch)
    built = time.perf_counter()
    if not live:
        await store.end_run(run, run.last_t or START_US, clean=True)
    await build_rollups(store, run)
    progress(f"{title}: {seq} records in {built - started:.0f} s, rollups in {time.perf_counter() - built:.1f} s")
    return run, "agent-0"


def _million() -> Any:
    """One session whose runtime and calls are sampled ten times a second, until there are a million samples."""
    rng = random.Random(7)
    yield SessionStart(t=START_US, session="agent-0", agent="claude")
    kinds = ("git", "tests", "read", "build", "search")
    t, made, call, ends, used, peak = START_US, 0, 0, START_US, 0, 0
    runtime = 180_000_000
    while made < SAMPLES:
        t += 100_000 + rng.randrange(-2000, 2000)
        runtime = max(80_000_000, runtime + rng.randrange(-300_000, 300_000))
        yield MemSample(
            t=t, session="agent-0", subject="runtime", anon_bytes=runtime, peak_bytes=max(runtime, 300_000_000)
        )
        made += 1
        name = f"c{call}"
        if call and t < ends:
            used = (
                rng.randrange(1_000_000, 700_000_000)
                if rng.random() < 0.01
                else max(0, used + rng.randrange(-(10**6), 10**6))
            )
            peak = max(peak, used + (rng.randrange(400_000_000) if rng.random() < 0.002 else 0))
            yield MemSample(t=t, session="agent-0", call=name, subject="call", anon_bytes=used, peak_bytes=peak)
            yield SchedSample(
                t=t,
                session="agent-0",
                call=name,
                subject="call",
                oncpu_us=60_000,
                wait_us=rng.randrange(40_000),
                window_us=100_000,
            )
            made += 2
        elif call and t >= ends and used >= 0:
            yield CallEnd(t=t, session="agent-0", call=name, exit_code=0, peak_bytes=peak)
            used = -1
        if (not call or t >= ends) and rng.random() < 0.02:
            call, used, peak = call + 1, 5_000_000, 5_000_000
            ends = t + rng.randrange(2, 120) * SECOND
            yield CallStart(t=t, session="agent-0", call=f"c{call}", tool="bash", category=rng.choice(kinds))  # type: ignore[arg-type]


def _day_records(step_s: int) -> Any:
    """64 sessions for a day."""
    rng = random.Random(8)
    for number in range(SESSIONS):
        yield SessionStart(t=START_US, session=f"agent-{number}")
    for second in range(0, 24 * 3600, step_s):
        t = START_US + second * SECOND
        yield HostSample(
            t=t,
            mem_available_bytes=rng.randrange(10**10),
            mem_total_bytes=16 * 10**9,
            cpu_busy_us=10**6,
            window_us=step_s * SECOND,
        )
        for number in range(SESSIONS):
            used = rng.randrange(10**8, 2 * 10**8) + (10**9 if rng.random() < 0.001 else 0)
            yield MemSample(
                t=t + number, session=f"agent-{number}", subject="runtime", anon_bytes=used, peak_bytes=used
            )


if __name__ == "__main__":
    sys.exit(main())
