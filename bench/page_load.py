"""Percent of the time that the Live page keeps Chromium's main thread busy, with 64 sessions live at 4 frames a second.

A real backend on loopback (tick 250 ms), fed over its link with 64 synthetic sessions: each ten times a second with
memory and scheduling of its runtime and of a call, calls that begin and end, bursts. Chromium shows the Live page,
which has been open for a while and draws two full minutes. What its main thread does is counted by the browser itself
(``Performance.getMetrics``: TaskDuration) in CPU time, which other work on the machine does not change; the same by
the clock, in a window of its own, is ``by_the_clock_percent``. The heap is read after a collection, its growth from
the first quarter on.

Reference, in the same run: a page of the same browser that only follows the same stream and parses it.
"""

from __future__ import annotations

import math
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import BrowserContext, CDPSession, Page, sync_playwright

from bench._report import Report, arguments, progress
from bench._stack import BenchError, Stack, fail
from tidegate_collectors.link import Hello, LinkClient, new_src
from tidegate_collectors.records import (
    CallEnd,
    CallStart,
    Category,
    HostSample,
    MemBurst,
    MemSample,
    Record,
    SchedSample,
    SessionStart,
)

SESSIONS: Final = 64
FRAMES_PER_S: Final = 4
SAMPLES_PER_S: Final = 10
HISTORY_S: Final = 120
GOAL_PERCENT: Final = 30.0
PARTS: Final = 4
CYCLE_S: Final = 20
BUSY: Final = 0.75
MB: Final = 1_000_000
CHROMIUM: Final = "/usr/bin/chromium"
_CATEGORIES: Final[tuple[Category, ...]] = ("tests", "install", "build", "git", "search", "python")

# The reference: the same stream, parsed and nothing more, on a page of ours that has no script.
_FOLLOW = """() => {
  window.frames_seen = 0;
  new EventSource("/api/stream").addEventListener("frame", (event) => {
    JSON.parse(event.data);
    window.frames_seen++;
  });
}"""


def now_us() -> int:
    """The wall clock in microseconds UTC."""
    return time.time_ns() // 1000


def tick(number: int, t: int, window_us: int) -> Iterator[Record]:
    """What the collector of a host with :data:`SESSIONS` agents says at one moment."""
    yield HostSample(
        t=t, mem_total_bytes=64_000 * MB, mem_available_bytes=30_000 * MB, cpu_busy_us=window_us, window_us=window_us
    )
    seconds = t / 1e6
    for index in range(SESSIONS):
        name = f"agent-{index:02}"
        phase = seconds / CYCLE_S + index * 0.618
        # Each agent works fifteen seconds of twenty: calls begin and end all the time, but not all at once.
        call, busy = f"c{int(phase)}", phase % 1 < BUSY
        before = phase - window_us / 1e6 / CYCLE_S
        was = f"c{int(before)}" if before % 1 < BUSY else None
        if was is not None and (not busy or was != call):
            yield CallEnd(t=t, session=name, call=was, exit_code=0, duration_us=15_000_000, peak_bytes=300 * MB)
        if busy and was != call:
            category = _CATEGORIES[int(phase) % len(_CATEGORIES)]
            command = f"python3 -m {category} --number {int(phase)} of {name}"
            yield CallStart(t=t, session=name, call=call, tool="python3", category=category, command=command)
        anon = int((60 + 10 * math.sin(phase)) * MB)
        yield MemSample(t=t, session=name, subject="runtime", anon_bytes=anon)
        yield SchedSample(
            t=t, session=name, subject="runtime", oncpu_us=window_us // 9, wait_us=700, window_us=window_us
        )
        if busy:
            size = int(300 * MB * math.sin(math.pi * (phase % 1) / BUSY)) + MB
            yield MemSample(t=t, session=name, call=call, subject="call", anon_bytes=size)
            if number % 60 == index:
                yield MemBurst(
                    t=t, session=name, call=call, grown_bytes=100 * MB, window_us=window_us, total_bytes=size
                )


def feed(link_socket: Path, ready: Event, done: Event) -> None:
    """A process: speaks for a collector, first of the last two minutes, then live, until ``done``."""
    hello = Hello(role="kernel", version="bench", src=new_src("kernel"), host="bench", boot_id="b", pid=1)
    link = LinkClient(link_socket, hello)
    link.start()
    start = now_us() - HISTORY_S * 1_000_000
    for index in range(SESSIONS):
        title = f"agent {index} of {SESSIONS}"
        link.send(SessionStart(t=start, session=f"agent-{index:02}", agent="claude", title=title))
    for number in range(HISTORY_S * 2):
        for record in tick(number, start + number * 500_000, 500_000):
            link.send(record)
        while link.stats.queued > 20_000:
            time.sleep(0.01)
    while link.stats.queued:
        time.sleep(0.01)
    ready.set()
    period = 1 / SAMPLES_PER_S
    due, number = time.monotonic(), 0
    while not done.wait(max(0.0, due - time.monotonic())):
        for record in tick(number, now_us(), int(period * 1e6)):
            link.send(record)
        due, number = due + period, number + 1
    link.close()


class Meter:
    """Counts what a page's main thread does."""

    def __init__(self, page: Page, *, cpu: bool = True) -> None:
        self._cdp: CDPSession = page.context.new_cdp_session(page)
        self._cdp.send("Performance.enable", {"timeDomain": "threadTicks" if cpu else "timeTicks"})
        self._cdp.send("HeapProfiler.enable")

    def close(self) -> None:
        """Stop counting: the clock of the counters belongs to all who count."""
        self._cdp.send("Performance.disable")
        self._cdp.detach()

    def read(self) -> dict[str, float]:
        """The browser's counters: seconds, bytes, numbers."""
        found: dict[str, float] = {
            metric["name"]: metric["value"] for metric in self._cdp.send("Performance.getMetrics")["metrics"]
        }
        return found

    def heap(self) -> tuple[float, float]:
        """The heap in use, bytes, and the DOM nodes, after a collection."""
        self._cdp.send("HeapProfiler.collectGarbage")
        found = self.read()
        return found["JSHeapUsedSize"], found["Nodes"]

    def watch(self, page: Page, seconds: float) -> dict[str, float]:
        """Percent of the time that went into tasks, and into their parts."""
        before = self.read()
        page.wait_for_timeout(seconds * 1000)
        after = self.read()
        took = after["Timestamp"] - before["Timestamp"]
        names = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
        return {name: 100 * (after[name] - before[name]) / took for name in names}


def measure(seconds: float) -> Report:
    """One run in which the page is watched so many seconds."""
    if shutil.which(CHROMIUM) is None:
        raise BenchError(f"no Chromium at {CHROMIUM} (Debian: apt-get install chromium)")
    with Stack() as stack, tempfile.TemporaryDirectory(prefix="tidegate-bench-profile-") as profile:
        stack.environment["TIDEGATE_TICK_MS"] = str(1000 // FRAMES_PER_S)
        stack.serve()
        ready, done = multiprocessing.Event(), multiprocessing.Event()
        feeder = multiprocessing.Process(target=feed, args=(stack.root / "run" / "link.sock", ready, done))
        feeder.start()
        try:
            if not ready.wait(60):
                raise BenchError("the backend did not take two minutes of records within one")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch_persistent_context(
                    profile,
                    executable_path=CHROMIUM,
                    args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
                    viewport={"width": 1440, "height": 900},
                )
                try:
                    return _watched(browser, stack, seconds)
                finally:
                    browser.close()
        finally:
            done.set()
            feeder.join(10)
            if feeder.is_alive():
                feeder.kill()
                feeder.join()


def _watched(browser: BrowserContext, stack: Stack, seconds: float) -> Report:
    name, _, value = stack.headers()["Cookie"].partition("=")
    url = f"http://127.0.0.1:{stack.port}"
    browser.add_cookies([{"name": name, "value": value, "url": url}])
    page = browser.new_page()
    page.goto(url)
    rows = f"() => document.querySelectorAll('#sessions tbody tr').length === {SESSIONS}"
    page.wait_for_function(rows, timeout=30_000)
    page.wait_for_selector("#host .main-svg", timeout=30_000)
    meter = Meter(page)
    page.wait_for_timeout(4000)
    progress(f"watching the Live page for {seconds:.0f} s")
    heap = [meter.heap()]
    parts: list[dict[str, float]] = []
    for _ in range(PARTS):
        parts.append(meter.watch(page, seconds / PARTS))
        heap.append(meter.heap())
    meter.close()
    by_the_clock = Meter(page, cpu=False).watch(page, seconds / 4)["TaskDuration"]
    # What the page says of itself: that it followed, and lost nothing on the way.
    badge = page.inner_text("#badge-conn")
    if badge != "connected":
        raise BenchError(f"the page did not follow the run: it says {badge}")
    page.close()

    progress("watching a page that only parses the stream")
    blank = browser.new_page()
    blank.goto(f"{url}/login")
    blank.evaluate(_FOLLOW)
    blank.wait_for_timeout(1000)
    reference = Meter(blank).watch(blank, seconds / 4)
    frames: int = blank.evaluate("window.frames_seen")
    busy = sum(part["TaskDuration"] for part in parts) / len(parts)
    return Report(
        bench="page_load",
        value=busy,
        unit="% of the main thread",
        reference_name="a page that only follows and parses the same stream",
        reference_value=reference["TaskDuration"],
        runs=len(parts),
        details=_details(parts, heap, seconds)
        | {"by_the_clock_percent": by_the_clock, "frames_per_s": frames / (seconds / 4 + 1)},
    )


def _details(parts: list[dict[str, float]], heap: list[tuple[float, float]], seconds: float) -> dict[str, Any]:
    sizes, nodes = zip(*heap, strict=True)
    return {
        "by_part": [part["TaskDuration"] for part in parts],
        "script_percent": [part["ScriptDuration"] for part in parts],
        "layout_percent": [part["LayoutDuration"] for part in parts],
        "style_percent": [part["RecalcStyleDuration"] for part in parts],
        "heap_mb": [size / MB for size in sizes],
        "heap_growth_kb_per_s": (sizes[-1] - sizes[1]) / 1000 / (seconds * (PARTS - 1) / PARTS),
        "dom_nodes": nodes,
        "sessions": SESSIONS,
        "seconds": seconds,
        "goal_percent": GOAL_PERCENT,
    }


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("page_load", __doc__).full
    try:
        report = measure(240.0 if full else 24.0)
    except BenchError as error:
        return fail("page_load", error)
    print(report.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
