"""Milliseconds from an event in the kernel to the bytes of its SSE frame in a client, p99, at the default tick.

A real backend and a real collector on loopback; a session starts short programs at random moments and now and then one
that takes 128 MB. Each call's start (its fork), end (its exit) and burst carries the kernel's time; a client reads the
stream and notes when the bytes of the frame with that event had arrived. The time of the kernel's event and that of the
client are both UTC of this host, so the clock conversion's error (well below 1 ms) is part of the result.

Reference, in the same run: a client that asks ``/api/state`` once a second, as a page without a stream would.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from bench._report import Report, arguments, percentile, progress
from bench._stack import BenchError, Stack, fail, require_root

KINDS = ("call.start", "call.end", "mem.burst")

# Random pauses, so that the events do not fall into step with the tick.
_AGENT = """
import random, subprocess, sys, time
random.seed(7)
end = time.monotonic() + float(sys.argv[1])
burst = [sys.executable, "-S", "-c", "import time; b = b'z' * (128 << 20); time.sleep(0.05)"]
number = 0
while time.monotonic() < end:
    number += 1
    subprocess.run(burst if number % 8 == 0 else ["/bin/true"], check=True)
    time.sleep(random.uniform(0.02, 0.25))
"""


class StreamClient(threading.Thread):
    """Reads the stream as bytes and notes when each frame was complete; decoding waits until the run is over."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_connection(("127.0.0.1", stack.port))
        cookie = stack.headers()["Cookie"]
        # HTTP/1.0: no chunk headers between the frames.
        request = f"GET /api/stream HTTP/1.0\r\nHost: 127.0.0.1:{stack.port}\r\nCookie: {cookie}\r\n\r\n"
        self._socket.sendall(request.encode())
        self.frames: list[tuple[int, bytes]] = []

    def run(self) -> None:
        """Read until :meth:`stop`."""
        rest = b""
        while data := self._socket.recv(1 << 18):
            now_us = time.time_ns() // 1000
            *complete, rest = (rest + data).split(b"\n\n")
            self.frames += [(now_us, frame) for frame in complete]

    def stop(self) -> None:
        """End the connection and the thread."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self.join(5)
        self._socket.close()

    def latencies(self) -> dict[tuple[int, str], float]:
        """Milliseconds by event (ord, type)."""
        found: dict[tuple[int, str], float] = {}
        for now_us, frame in self.frames:
            lines = frame.splitlines()
            if b"event: frame" not in lines:
                continue
            data = b"\n".join(line[6:] for line in lines if line.startswith(b"data: "))
            note(found, json.loads(data)["events"], now_us)
        return found


class PollClient(threading.Thread):
    """Asks for the whole state once a second."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self._stack = stack
        self._done = threading.Event()
        self.found: dict[tuple[int, str], float] = {}

    def run(self) -> None:
        """Poll until :meth:`stop`."""
        while not self._done.wait(1.0):
            with self._stack.connection() as connection:
                connection.request("GET", "/api/state", headers=self._stack.headers())
                body = connection.getresponse().read()
            note(self.found, json.loads(body)["events"], time.time_ns() // 1000)

    def stop(self) -> None:
        """End the thread."""
        self._done.set()
        self.join(5)


def note(found: dict[tuple[int, str], float], events: list[dict[str, Any]], now_us: int) -> None:
    """Keep the age in milliseconds of the events that were not seen before."""
    for event in events:
        key = (event["ord"], event["type"])
        if event["type"] in KINDS and key not in found:
            found[key] = (now_us - event["t_us"]) / 1000


def measure(seconds: float) -> Report:
    """One run of so many seconds."""
    with Stack() as stack:
        stack.serve()
        stack.collect()
        time.sleep(1.5)
        stream, poll = StreamClient(stack), PollClient(stack)
        stream.start()
        poll.start()
        progress(f"measuring for {seconds:.0f} s")
        command = stack.run_command(sys.executable, "-c", _AGENT, str(seconds), session="latency")
        status = subprocess.run(command, env=stack.environment, stdin=subprocess.DEVNULL).returncode
        time.sleep(1.5)
        stream.stop()
        poll.stop()
        if status:
            raise BenchError(f"the agent ended with {status}")
    by_event = stream.latencies()
    if not by_event or not poll.found:
        raise BenchError(f"no events came: {len(by_event)} by stream, {len(poll.found)} by polling")
    values = list(by_event.values())
    kinds = {kind: [value for (_, name), value in by_event.items() if name == kind] for kind in KINDS}
    return Report(
        bench="live_latency",
        value=percentile(values, 99),
        unit="ms",
        reference_name="polling /api/state once a second, p99",
        reference_value=percentile(list(poll.found.values()), 99),
        runs=len(values),
        details={
            "p50_ms": percentile(values, 50),
            "p90_ms": percentile(values, 90),
            "max_ms": max(values),
            "min_ms": min(values),
            "poll_p50_ms": percentile(list(poll.found.values()), 50),
            "by_type": {
                kind: {"n": len(some), "p50_ms": percentile(some, 50), "p99_ms": percentile(some, 99)}
                for kind, some in kinds.items()
                if some
            },
            "frames": len(stream.frames),
            "tick_ms": 100,
            "goal_ms": 150,
        },
    )


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("live_latency", __doc__).full
    try:
        require_root()
        report = measure(180.0 if full else 35.0)
    except BenchError as error:
        return fail("live_latency", error)
    print(report.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
