"""Acknowledged records that are gone after kill -9 of the backend during ingest: 0 is the only good number.

A real ``tidegate serve`` takes mixed records from a collector's link client that never pauses. It is killed at random
moments while it commits, and started anew on the same directories, 20 times (``--full``: 100). At each kill the highest
number that had been acknowledged is compared with what the database holds; at the end every record that was sent must
be there once: the client has sent again what was not acknowledged.

Reference, in the same run: what a sender that does not wait for acknowledgements would have lost, the records that were
sent and not yet committed at the kills.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from bench._report import Report, arguments, progress
from bench._stack import BenchError, Stack, fail
from bench._workload import workload
from tidegate.store.chunks import unpack
from tidegate_collectors.link import Backoff, Hello, LinkClient

SRC = "crash-bench"
_MAX_QUEUED = 20_000
_WAIT_S = 60.0


class _Line(msgspec.Struct):
    src: str = ""
    seq: int = -1


class Sender(threading.Thread):
    """Sends records through a link client without a pause, but never more than fit into its queue."""

    def __init__(self, client: LinkClient) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._over = threading.Event()
        self.sent = 0

    def run(self) -> None:
        """Send until :meth:`stop`."""
        for record, _ in workload(1 << 40, sessions=16):
            while self._client.stats.queued > _MAX_QUEUED and not self._over.is_set():
                time.sleep(0.002)
            if self._over.is_set():
                return
            self._client.send(record)
            self.sent += 1
            if self.sent % 64 == 0:
                time.sleep(0.001)

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self.join(10)


def committed(database: Path) -> int:
    """The highest number of the sender that is in the database."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    try:
        ((seq,),) = connection.execute("SELECT COALESCE(MAX(last_seq), -1) FROM sources WHERE src = ?", (SRC,))
        return int(seq)
    finally:
        connection.close()


def stored(database: Path) -> Counter[int]:
    """How often each number of the sender is in the raw log."""
    decode = msgspec.json.Decoder(_Line).decode
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    found: Counter[int] = Counter()
    try:
        for codec, data in connection.execute("SELECT codec, data FROM chunks ORDER BY run, no"):
            lines = (decode(line) for line in unpack(codec, data))
            found.update(line.seq for line in lines if line.src == SRC)
    finally:
        connection.close()
    return found


def wait(condition: Any, what: str) -> None:
    """Wait until the condition holds. Raises BenchError."""
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"{what} did not happen within {_WAIT_S:.0f} s")
        time.sleep(0.005)


def measure(kills: int) -> Report:
    """So many kills."""
    rng = random.Random(11)
    with Stack() as stack:
        database = stack.root / "state" / "tidegate.db"
        stack.serve()
        client = LinkClient(
            stack.root / "run" / "link.sock",
            Hello(role="bench", src=SRC, host="bench"),
            backoff=Backoff(first_s=0.02, max_s=0.1),
            max_records=4 * _MAX_QUEUED,
        )
        client.start()
        sender = Sender(client)
        sender.start()
        lost = in_flight = 0
        away: list[float] = []
        try:
            for number in range(kills):
                before = client.stats.acked_seq
                wait(lambda before=before: client.stats.acked_seq > before + 500, "an acknowledgement")
                time.sleep(rng.uniform(0.0, 0.4))
                stack.kill("serve")
                began = time.monotonic()
                # What was acknowledged may still be on its way to the client: it only makes this number smaller.
                wait(lambda: not client.stats.connected, "the end of the connection")
                acked, sent = client.stats.acked_seq, sender.sent
                last = committed(database)
                lost += max(0, acked - last)
                in_flight += max(0, sent - 1 - last)
                stack.serve()
                away.append(time.monotonic() - began)
                progress(f"kill {number + 1} of {kills}: acknowledged {acked + 1}, committed {last + 1}, sent {sent}")
        finally:
            sender.stop()
        wait(lambda: client.stats.queued == 0, "the last acknowledgement")
        acked = client.stats.acked_seq
        client.close()
        stack.stop("serve")
        counts = stored(database)
        missing = sum(seq not in counts for seq in range(sender.sent))
        twice = sum(count - 1 for count in counts.values())
        dropped = client.stats.dropped_records + client.stats.dropped_samples
        check(database)
        return Report(
            bench="crash",
            value=float(lost + sum(seq not in counts for seq in range(acked + 1))),
            unit="acknowledged records lost",
            reference_name="records sent and not committed at the kills: lost without acknowledgements",
            reference_value=float(in_flight),
            runs=kills,
            details={
                "kills": kills, "sent": sender.sent, "acknowledged": acked + 1, "stored": len(counts),
                "missing": missing, "stored_twice": twice, "dropped_by_client": dropped,
                "reconnects": client.stats.reconnects, "seconds_away": away, "integrity": "ok", "goal": 0,
            },
        )  # fmt: skip


def check(database: Path) -> None:
    """SQLite's own check of the file. Raises BenchError."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    try:
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    finally:
        connection.close()
    if found != ["ok"]:
        raise BenchError(f"the database is damaged: {found}")


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("crash", __doc__).full
    logging.getLogger("tidegate_collectors").setLevel(logging.ERROR)  # that the link breaks is what is wanted
    try:
        report = measure(100 if full else 20)
    except BenchError as error:
        return fail("crash", error)
    print(report.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
