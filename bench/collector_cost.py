"""How much slower real work gets when all of it is tracked: per cent of a pytest + git workload, paired runs.

The workload makes a git repository, commits, diffs and searches it (about 40 short programs, each of which becomes a
call) and runs a small pytest suite twice. It measures itself, from its first tool to the end of its last. Tracked
means: the collector runs and the workload is a session under ``tidegate run``. Reference, in the same run: the same
workload with no collector on the host. The backend runs in both arms; what it does for the tracked one counts against
us. The order within the pairs alternates, and the value is the median over the pairs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench._report import Report, arguments, percentile, progress
from bench._stack import BenchError, Stack, fail, require_root

_WORKLOAD = '''
import json, os, pathlib, resource, subprocess, sys, tempfile, time

SUITE = """
import pytest

@pytest.mark.parametrize("n", range(40))
def test_sort(n):
    assert sorted(range(20_000, 0, -1))[0] == 1

def test_memory():
    assert len(b"z" * (64 << 20)) == 64 << 20
"""

def run(*command):
    subprocess.run(command, cwd=work, env=environment, check=True, stdout=subprocess.DEVNULL)

environment = os.environ | {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "b", "GIT_AUTHOR_EMAIL": "b@b",
    "GIT_COMMITTER_NAME": "b", "GIT_COMMITTER_EMAIL": "b@b", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}
with tempfile.TemporaryDirectory(prefix="tidegate-bench-work-") as name:
    work = pathlib.Path(name)
    (work / "test_some.py").write_text(SUITE)
    for number in range(100):
        (work / f"module_{number}.py").write_text(f"value = {number}\\n" * 50)
    started = time.perf_counter()
    run("git", "init", "--quiet")
    run("git", "add", ".")
    run("git", "commit", "--quiet", "-m", "start")
    for number in range(8):
        (work / f"module_{number}.py").write_text("value = 0\\n")
        run("git", "diff", "--stat")
        run("git", "commit", "--quiet", "-a", "-m", str(number))
        run("git", "grep", "--quiet", "value")
        run("grep", "-rq", "value = 99", ".")
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_some.py")
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_some.py")
    took = time.perf_counter() - started
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
pathlib.Path(sys.argv[1]).write_text(json.dumps({"s": took, "cpu_s": usage.ru_utime + usage.ru_stime}))
'''


def workload(stack: Stack, session: str | None) -> dict[str, float]:
    """Run it once, as a session or plainly. Returns its own wall and CPU seconds."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-out-") as name:
        result = Path(name) / "result.json"
        command = [sys.executable, "-c", _WORKLOAD, str(result)]
        if session is not None:
            command = stack.run_command(*command, session=session)
        status = subprocess.run(command, env=stack.environment, stdin=subprocess.DEVNULL).returncode
        if status or not result.exists():
            raise BenchError(f"the workload ended with {status}")
        measured: dict[str, float] = json.loads(result.read_text())
        return measured


class Collector:
    """The collector's own use, read around what it tracked and before it is stopped."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._pid = 0
        self.rss_bytes: list[int] = []

    def set(self, running: bool) -> None:
        """Start or stop it; nothing when it is so already."""
        if running and not self._pid:
            self._pid = self._stack.collect()
        elif not running and self._pid:
            status = Path(f"/proc/{self._pid}/status").read_text(encoding="utf-8")
            self.rss_bytes.append(int(status.partition("VmHWM:")[2].split()[0]) * 1024)
            self._stack.stop("collect")
            self._pid = 0

    def cpu_s(self) -> float:
        """CPU seconds since its start; 0 when it does not run."""
        if not self._pid:
            return 0.0
        fields = Path(f"/proc/{self._pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(pairs: int, seconds: float) -> Report:
    """So many pairs, or as many as are begun within so many seconds (on a busy machine), but at least four."""
    deadline = time.monotonic() + seconds
    walls: list[tuple[float, float]] = []
    cpus: list[tuple[float, float]] = []
    shares: list[float] = []
    with Stack() as stack:
        stack.serve()
        collector = Collector(stack)
        workload(stack, None)  # the page cache warms up outside the measurement
        for number in range(pairs):
            if number >= 4 and time.monotonic() > deadline:
                break
            result: dict[bool, dict[str, float]] = {}
            # T U, U T, T U …: a drift of the machine falls on both arms, and the collector is started half as often.
            for tracked in (True, False) if number % 2 == 0 else (False, True):
                collector.set(tracked)
                before_s = collector.cpu_s()
                result[tracked] = workload(stack, f"cost-{number}" if tracked else None)
                if tracked:
                    shares.append(100 * (collector.cpu_s() - before_s) / result[True]["s"])
            walls.append((result[True]["s"], result[False]["s"]))
            cpus.append((result[True]["cpu_s"], result[False]["cpu_s"]))
            progress(f"pair {number + 1}/{pairs}: tracked {walls[-1][0]:.3f} s, untracked {walls[-1][1]:.3f} s")
        collector.set(False)
    slower = [100 * (tracked / untracked - 1) for tracked, untracked in walls]
    return Report(
        bench="collector_cost",
        value=statistics.median(slower),
        unit="% slower",
        reference_name="the same workload untracked, median seconds",
        reference_value=statistics.median(untracked for _, untracked in walls),
        ratio=statistics.median(tracked / untracked for tracked, untracked in walls),
        runs=len(walls),
        details={
            "slower_quartiles_percent": [percentile(slower, 25), percentile(slower, 75)],
            "tracked_s": [tracked for tracked, _ in walls],
            "untracked_s": [untracked for _, untracked in walls],
            "workload_cpu_more_percent": statistics.median(100 * (a / b - 1) for a, b in cpus),
            "collector_rss_mb": max(collector.rss_bytes) / 1e6,
            "collector_cpu_percent_of_one": statistics.median(shares),
            "goal_percent": 3,
            "goal_rss_mb": 40,
        },
    )


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("collector_cost", __doc__).full
    try:
        require_root()
        report = measure(40, 600) if full else measure(10, 45)
    except BenchError as error:
        return fail("collector_cost", error)
    print(report.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
