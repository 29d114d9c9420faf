"""Run-queue waits and time on a CPU: exact sums, the kernel's own account, and the histogram."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bpf import PYTHON, Loader, calls, exits, needs_root, session
from tidegate_collectors.kernel.bpf_observer import BpfObserver
from tidegate_collectors.kernel.observer import EventKind

pytestmark = [pytest.mark.kernel, needs_root]


@pytest.fixture(scope="module")
def observer(loader: Loader) -> Iterator[BpfObserver]:
    """One observer for the module, with latency events from 20 ms on."""
    opened = BpfObserver(loader=loader, check=False, latency_us=20_000)
    yield opened
    opened.close()


HOGS = """
import mmap, os, struct, sys, time
count, cpu, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
os.sched_setaffinity(0, {cpu})
gate_r, gate_w = os.pipe()
opened = mmap.mmap(-1, 8)
pids = []
for _ in range(count):
    pid = os.fork()
    if pid == 0:
        os.close(gate_w)
        os.read(gate_r, 1)
        start = struct.unpack("d", opened[:])[0]
        while time.monotonic() < start + seconds:
            pass
        os.write(1, f"{os.getpid()} {(time.monotonic() - start) * 1e6:.0f}\\n".encode())
        os.read(0, 1)
        os._exit(0)
    pids.append(pid)
os.close(gate_r)
time.sleep(0.05)
opened[:] = struct.pack("d", time.monotonic())
os.close(gate_w)
for pid in pids:
    os.waitpid(pid, 0)
"""


def schedstat_at_rest(pid: int) -> tuple[float, float]:
    """Microseconds on a CPU and waiting for one by the kernel's account, once it sleeps."""
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    oncpu, wait, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(oncpu) / 1000, int(wait) / 1000


@pytest.mark.parametrize(("hogs", "seconds"), [(2, 2.0), (4, 2.0)])
def test_waits_of_hogs_on_one_cpu_add_up(observer: BpfObserver, hogs: int, seconds: float) -> None:
    """n hogs on one CPU for t seconds wait (n - 1) * t in all, plus what the rest of the machine takes from them.

    So what they have not run of their time is waiting, and the kernel's own account of the same processes
    (/proc/<pid>/schedstat) says so too. All is read while they sleep: no wait is then half over.
    """
    cpu = max(os.sched_getaffinity(0))
    with session(observer, PYTHON, "-I", "-S", "-c", HOGS, str(hogs), str(cpu), str(seconds)) as s:
        before = schedstat_at_rest(s.pid)
        s.go()
        told = [tuple(map(int, s.hear().split())) for _ in range(hogs)]
        parent = schedstat_at_rest(s.pid)
        accounts = [schedstat_at_rest(pid) for pid, _ in told]
        stats = observer.stats(s.subject)
        assert stats is not None
        assert stats.wait_us is not None
        oncpu_us, wait_us = (sum(column) for column in zip(*accounts, strict=True))
        assert abs(stats.wait_us - wait_us - (parent[1] - before[1])) <= 0.02 * wait_us + 30_000
        assert abs(stats.oncpu_us - oncpu_us - (parent[0] - before[0])) <= 0.02 * oncpu_us + 60_000
        exact_us = sum(life_us for _, life_us in told) - oncpu_us
        assert exact_us >= 0.95 * (hogs - 1) * seconds * 1e6
        assert abs(wait_us - exact_us) <= 0.02 * exact_us + 30_000
        s.tell(b"." * hogs)
        s.wait_for(lambda seen: not s.alive(seen))
        stats = observer.stats(s.subject)
        assert stats is not None
        assert stats.wait_us is not None
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


def oncpu_by_proc_us(pid: int) -> int:
    """The kernel's own account."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) // 1000


def test_time_on_a_cpu_is_read_while_it_runs(observer: BpfObserver) -> None:
    code = "import time\nprint('go', flush=True)\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    with session(observer, PYTHON, "-I", "-S", "-c", code) as s:
        s.go()
        assert s.hear() == "go"
        readings = []
        for _ in range(8):
            earlier = oncpu_by_proc_us(s.pid)
            stats = observer.stats(s.subject)
            assert stats is not None
            readings.append((stats.oncpu_us, earlier, oncpu_by_proc_us(s.pid)))
            time.sleep(0.1)
        assert readings == sorted(readings)
        # /proc advances with the timer tick only, hence the room; and it began before the process was tracked.
        first, least, most = readings[0]
        for seen, earlier, later in readings:
            assert earlier - most - 15_000 < seen - first < later - least + 15_000, readings
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
