"""Run-queue waits and time on a CPU: exact sums, the kernel's own account, and the histogram."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bpf import PYTHON, calls, exits, needs_root, session
from tidegate_collectors.kernel.bpf_observer import BpfObserver
from tidegate_collectors.kernel.observer import EventKind

pytestmark = [pytest.mark.kernel, needs_root]


@pytest.fixture(scope="module")
def observer() -> Iterator[BpfObserver]:
    """One observer for the module, with latency events from 20 ms on."""
    opened = BpfObserver(check=False, latency_us=20_000)
    yield opened
    opened.close()


HOGS = """
import os, sys, time
count, cpu, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
os.sched_setaffinity(0, {cpu})
gate_r, gate_w = os.pipe()
pids = []
for _ in range(count):
    pid = os.fork()
    if pid == 0:
        os.close(gate_w)
        os.read(gate_r, 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        o = open("/proc/self/schedstat").read().split()
        os.write(1, (" ".join(o[:2]) + "\\n").encode())
        os._exit(0)
    pids.append(pid)
os.close(gate_r)
time.sleep(0.05)
os.close(gate_w)
for pid in pids:
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(("hogs", "seconds"), [(2, 2.0), (4, 2.0)])
def test_waits_of_hogs_on_one_cpu_add_up(observer: BpfObserver, hogs: int, seconds: float) -> None:
    """n hogs on one CPU for t seconds wait (n - 1) * t in all, plus what the rest of the machine takes from them.

    Other load would make the sum larger than exact, so what we saw is held against the kernel's own account of the
    same processes (/proc/<pid>/schedstat) always, and against the exact sum with what others took added.
    """
    cpu = max(os.sched_getaffinity(0))
    with session(observer, PYTHON, "-I", "-S", "-c", HOGS, str(hogs), str(cpu), str(seconds)) as s:
        before = time.monotonic()
        s.go()
        told = [tuple(map(int, s.hear().split())) for _ in range(hogs)]
        assert time.monotonic() - before < 60
        s.wait_for(lambda seen: not s.alive(seen))
        stats = observer.stats(s.subject)
        assert stats is not None
        assert stats.wait_us is not None
        oncpu_us, wait_us = (sum(column) / 1000 for column in zip(*told, strict=True))
        # Beside the hogs there is only their parent's start, some 30 ms.
        assert abs(stats.wait_us - wait_us) <= 0.02 * wait_us + 30_000
        assert abs(stats.oncpu_us - oncpu_us) <= 0.02 * oncpu_us + 60_000
        others_us = hogs * seconds * 1e6 - oncpu_us - (hogs - 1) * seconds * 1e6
        exact_us = (hogs - 1) * seconds * 1e6 + max(others_us, 0)
        assert abs(stats.wait_us - exact_us) <= 0.02 * exact_us + 30_000
        assert sum(stats.hist) <= (stats.switches or 0)
        lowest = sum(count << bucket for bucket, count in enumerate(stats.hist) if bucket)
        assert lowest <= stats.wait_us <= 2 * lowest + sum(stats.hist) * 2
        total = observer.session_stats(s.subject)
        assert total is not None
        assert (total.wait_us, total.hist) == (stats.wait_us, stats.hist)


def test_a_sleeper_neither_runs_nor_waits(observer: BpfObserver) -> None:
    with session(observer, "bash", "-c", "sleep 0.5; :") as s:
        events = s.run()
        (call,) = calls(events)
        stats = observer.stats(call.subject)
        assert stats is not None
        assert stats.oncpu_us < 100_000
        assert exits(events)[call.pid].t_us - call.t_us >= 500_000


def test_time_on_a_cpu_is_read_while_it_runs(observer: BpfObserver) -> None:
    code = "import time\nprint('go', flush=True)\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    with session(observer, PYTHON, "-I", "-S", "-c", code) as s:
        s.go()
        assert s.hear() == "go"
        readings = []
        for _ in range(8):
            stats = observer.stats(s.subject)
            truth = int(Path(f"/proc/{s.pid}/schedstat").read_text().split()[0]) // 1000
            assert stats is not None
            readings.append((stats.oncpu_us, truth))
            time.sleep(0.1)
        assert readings == sorted(readings)
        # /proc advances with the timer tick only, hence the room upwards.
        offset = readings[0][0] - readings[0][1]
        assert all(abs(seen - truth - offset) < 15_000 for seen, truth in readings), readings
        s.wait_for(lambda seen: not s.alive(seen))


def test_a_long_wait_is_an_event(observer: BpfObserver) -> None:
    code = (
        "import os, time\n"
        "os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\n"
        "pid = os.fork()\n"
        "if pid: os.nice(19)\n"
        "end = time.monotonic() + 0.8\n"
        "while time.monotonic() < end: pass\n"
        "if pid: os.waitpid(pid, 0)"
    )
    with session(observer, PYTHON, "-I", "-S", "-c", code) as s:
        s.go()
        events = s.wait_for(lambda seen: not s.alive(seen))
        late = [e for e in events if e.kind is EventKind.LATENCY]
        assert late
        stats = observer.stats(s.subject)
        assert stats is not None
        assert max(e.a for e in late) == stats.wait_max_us
        assert min(e.a for e in late) >= 20_000
