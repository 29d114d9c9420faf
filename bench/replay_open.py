"""Seconds from a recording of 1e6 records to the first answer with its state: goal 10.

``tidegate serve --replay FILE`` is started on a made-up recording (bench._workload); the clock stops when
``/api/state`` answers with the state at the end. By then the file was read, folded, indexed and written into a database
with its snapshots and rollups, by processes of its own.

Reference, in the same run: the same file read and each line decoded, nothing else (one process). ``--full`` does it
three times, and once with a recording of 2 GB, for the memory that the processes take.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench._report import Report, arguments, progress
from bench._stack import TIDEGATE, BenchError, fail, free_port
from bench._workload import workload
from tidegate_collectors import records

RECORDS = 1_000_000
GOAL_S = 10.0
_LOGIN = re.compile(rb"https?://\S+/login\?token=(\S+)")
_DEADLINE_S = 900.0


def write(path: Path, count: int) -> int:
    """A recording of so many records; returns its size, bytes."""
    with path.open("wb") as file:
        for _, line in workload(count):
            file.write(line + b"\n")
    return path.stat().st_size


def decode_alone(path: Path) -> float:
    """Seconds to read the file and decode each line."""
    began = time.perf_counter()
    with path.open("rb") as file:
        for line in file:
            records.decode(line)
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Opened:
    """One opening: seconds by the clock, of all CPUs, and the peaks of resident memory, MB."""

    seconds: float
    cpu_s: float
    peak_rss_mb: dict[str, float]


class Memory(threading.Thread):
    """Watches the resident memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.peak_mb: dict[str, float] = {}

    def run(self) -> None:
        """Look four times a second."""
        while not self._over.wait(0.25):
            for name, pid in self._processes():
                with contextlib.suppress(OSError, ValueError):
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
                    self.peak_mb[name] = max(self.peak_mb.get(name, 0.0), megabytes)

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self.join(5)

    def _processes(self) -> Iterator[tuple[str, int]]:
        yield "backend", self._pid
        for writer in _children(self._pid):
            yield "writer", writer
            for reader in _children(writer):
                yield "reader", reader


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def open_once(path: Path, count: int) -> Opened:
    """Open a recording, until the state at its end is answered.

    Raises:
        BenchError: it did not come.
    """
    root = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    port = free_port()
    command = [*TIDEGATE, "serve", "--replay", str(path), "--port", str(port), "--state-dir", str(root / "state")]
    if os.geteuid() == 0:
        command += ["--user", "root"]
    log = root / "log"
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    memory = Memory(process.pid)
    memory.start()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        headers = _login(process, port, log, began)
        while True:
            answer = _get(port, "/api/state", headers)
            if answer is not None and answer.get("ord") == count:
                took = time.perf_counter() - began
                break
            if process.poll() is not None or time.perf_counter() - began > _DEADLINE_S:
                raise BenchError(f"no state: {log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.05)
    finally:
        memory.stop()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        shutil.rmtree(root, ignore_errors=True)

    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Opened(took, used, memory.peak_mb)


def _login(process: subprocess.Popen[bytes], port: int, log: Path, began: float) -> dict[str, str]:
    while (found := _LOGIN.search(log.read_bytes())) is None:
        if process.poll() is not None or time.perf_counter() - began > 60:
            raise BenchError(f"the backend did not start: {log.read_text(errors='replace')[-1000:]}")
        time.sleep(0.02)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", f"/login?token={found[1].decode()}")
        return {"Cookie": (connection.getresponse().getheader("Set-Cookie") or "").partition(";")[0]}
    finally:
        connection.close()


def _get(port: int, path: str, headers: dict[str, str]) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        return json.loads(body) if answer.status == 200 else None
    except OSError:
        return None
    finally:
        connection.close()


def measure(runs: int, large_bytes: int) -> Report:
    """Open a recording so many times; once one of ``large_bytes`` too, unless that is 0."""
    root = Path(tempfile.mkdtemp(prefix="tidegate-bench-file-"))
    try:
        path = root / "bench.jsonl"
        progress(f"writing {RECORDS} records")
        size = write(path, RECORDS)
        opened: list[Opened] = []
        references: list[float] = []
        for number in range(runs):
            references.append(decode_alone(path))
            progress(f"opening it, {number + 1} of {runs}")
            opened.append(open_once(path, RECORDS))
        details: dict[str, Any] = {
            "records": RECORDS, "file_mb": size / 1e6, "opened": [asdict(one) for one in opened],
            "reference_s": references, "goal_s": GOAL_S, "cpus": os.cpu_count(), "load_1min": os.getloadavg()[0],
        }  # fmt: skip
        if large_bytes:
            details["large"] = _large(path, size, large_bytes)
        return Report(
            bench="replay_open",
            value=statistics.median(one.seconds for one in opened),
            unit="s",
            reference_name="reading the file and decoding each line, nothing else",
            reference_value=statistics.median(references),
            runs=runs,
            details=details,
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _large(path: Path, size: int, large_bytes: int) -> dict[str, Any]:
    count = RECORDS * large_bytes // size
    progress(f"writing {count} records")
    size = write(path, count)
    progress("opening it")
    return {"file_mb": size / 1e6, "records": count, **asdict(open_once(path, count))}


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("replay_open", __doc__).full
    try:
        report = measure(3 if full else 1, 2_000_000_000 if full else 0)
    except BenchError as error:
        return fail("replay_open", error)
    print(report.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
