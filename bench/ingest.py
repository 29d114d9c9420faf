"""Records a second from the bytes on the link to committed: decoded, judged, in the raw log and in all tables.

Mixed records of about 180 bytes: 50 % memory samples, 30 % scheduling samples, 20 % events. A process of its own sends
them over the unix socket and waits for the last acknowledgement. Reference, in the same run: inserts of the same rows
by the SQLAlchemy ORM into the same tables, in transactions of the same size; neither lines nor sockets there.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import Session, registry

from bench._report import Report, arguments, progress
from bench._stack import BenchError, fail
from tidegate.app import GC_THRESHOLD
from tidegate.ingest import Ingest, LinkServer, bind_link
from tidegate.store import open_store, schema
from tidegate.store.rows import RowBuilder, Rows
from tidegate_collectors import records
from tidegate_collectors.link import Hello, Up
from tidegate_collectors.link.messages import encode_line
from tidegate_collectors.records import CallEnd, CallStart, MemSample, ProcExec, ProcExit, Record, SchedSample

BATCH: Final = 8192
SRC: Final = "kernel-bench"
SESSIONS: Final = 64
START_US: Final = 1_790_000_000_000_000
ORM_ROWS: Final = 40_000

_SENDER: Final = """
import json, socket, sys
path, file, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = open(file, "rb").read()
hello, rest = data.split(b"\\n", 1)
link = socket.socket(socket.AF_UNIX)
link.connect(path)
link.sendall(hello + b"\\n")
answers = link.makefile("rb")
answers.readline()
sys.stdin.readline()
link.sendall(rest)
while True:
    line = answers.readline()
    if not line:
        sys.exit("the link was closed")
    if json.loads(line).get("ack", -1) >= last:
        break
print("done", flush=True)
sys.stdin.readline()
"""


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("ingest", __doc__).full
    gc.set_threshold(*GC_THRESHOLD)
    count, runs = (600_000, 7) if full else (300_000, 3)
    made = list(_records(count))
    lines = [records.encode(record) for record in made]
    progress(f"{count} records, {sum(map(len, lines)) / count:.0f} bytes a line")
    rates, cpu, orm, sizes = [], [], [], []
    try:
        for number in range(runs):
            with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
                wall_s, cpu_s, size = asyncio.run(_through_the_link(Path(directory), lines))
                orm.append(_orm(Path(directory), made, lines))
            rates.append(count / wall_s)
            cpu.append(count / cpu_s)
            sizes.append(size)
            progress(f"run {number + 1}: {rates[-1]:,.0f}/s ({cpu[-1]:,.0f} per CPU second), ORM {orm[-1]:,.0f}/s")
    except BenchError as error:
        return fail("ingest", error)
    report = Report(
        bench="ingest",
        value=statistics.median(rates),
        unit="records/s",
        reference_name="SQLAlchemy ORM inserts of the same rows",
        reference_value=statistics.median(orm),
        runs=runs,
        details={
            "goal": 150_000,
            "goal_ratio": 5,
            "records": count,
            "records_per_s": rates,
            "records_per_cpu_s": cpu,
            "orm_rows_per_s": orm,
            "database_bytes": sizes[-1],
            "load_average": os.getloadavg()[0],
        },
    )
    print(report.line())
    return 0


async def _through_the_link(directory: Path, lines: list[bytes]) -> tuple[float, float, int]:
    """Seconds, CPU seconds of this process, and bytes of the database."""
    hello = encode_line(Up(hello=Hello(role="kernel", src=SRC, host="bench")))
    (directory / "lines").write_bytes(hello + b"\n".join(lines) + b"\n")
    store = await open_store(directory / "t.db")
    ingest = Ingest(store)
    run = await ingest.start()
    server = LinkServer(ingest, bind_link(directory / "link.sock"))
    await server.start()
    sender = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SENDER, str(server.path), str(directory / "lines"), str(len(lines) - 1),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert sender.stdin is not None and sender.stdout is not None
    try:
        for _ in range(1000):
            if SRC in ingest.intake.sources:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        started, cpu = time.perf_counter(), time.process_time()
        sender.stdin.write(b"go\n")
        answer = await asyncio.wait_for(sender.stdout.readline(), 120)
        took, cpu = time.perf_counter() - started, time.process_time() - cpu
        if answer.strip() != b"done" or run.last_ord < len(lines):
            raise BenchError(f"{run.last_ord} of {len(lines)} records were committed")
        sender.stdin.write(b"end\n")
        await sender.wait()
    finally:
        if sender.returncode is None:
            sender.kill()
            await sender.wait()
        await server.stop()
        await ingest.stop()
        await store.close()
    return took, cpu, (directory / "t.db").stat().st_size


def _orm(directory: Path, made: list[Any], lines: list[bytes]) -> float:
    """Rows a second."""
    path = directory / "orm.db"
    engine = sa.create_engine(f"sqlite:///{path}")

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "cache_size = -32000"):
            connection.execute(f"PRAGMA {pragma}")

    mapper = registry()
    tables = (schema.subjects, schema.mem, schema.sched, schema.psi, schema.host_samples, schema.events)
    classes: dict[str, type] = {}
    for table in tables:
        classes[table.name] = type(table.name, (), {})
        mapper.map_imperatively(classes[table.name], table)
    schema.metadata.create_all(engine)
    builder = RowBuilder(1)
    batches: list[Rows] = []
    for at in range(0, min(ORM_ROWS, len(made)), BATCH):
        batches.append(builder.build(at + 1, made[at : at + BATCH], lines[at : at + BATCH]))
    count = 0
    started = time.perf_counter()
    for batch in batches:
        with Session(engine) as session:
            for name, cls in classes.items():
                columns = schema.metadata.tables[name].columns.keys()
                for row in batch.by_table[name]:
                    one = cls()
                    for column, value in zip(columns, row, strict=True):
                        setattr(one, column, value)
                    session.add(one)
                    count += 1
            session.commit()
    took = time.perf_counter() - started
    engine.dispose()
    mapper.dispose()
    return count / took


def _records(count: int) -> Iterator[Record]:
    calls = [0] * SESSIONS
    for seq in range(count):
        session = seq % SESSIONS
        t = START_US + seq // SESSIONS * 10_000 + session
        name, call = f"agent-{session:03}", f"c{calls[session]}"
        kind = seq // SESSIONS % 10
        record: Record
        if kind < 5:
            used = 50_000_000 + seq * 37 % 90_000_000
            record = MemSample(
                t=t, session=name, call=call, subject="call", anon_bytes=used, file_bytes=used // 3, shmem_bytes=4096,
                peak_bytes=used + 7_000_000,
            )  # fmt: skip
        elif kind < 8:
            record = SchedSample(
                t=t, session=name, call=call, subject="call", oncpu_us=61_234, wait_us=seq % 40_000, switches=17,
                window_us=100_000,
            )  # fmt: skip
        elif kind == 8:
            record = ProcExec(t=t, session=name, call=call, pid=1000 + seq, ppid=999, comm="python3")
        elif seq // SESSIONS % 30 == 9:
            record = CallEnd(t=t, session=name, call=call, exit_code=0, peak_bytes=99_000_000, cpu_us=1_234_567)
            calls[session] += 1
        elif seq // SESSIONS % 30 == 19:
            record = CallStart(
                t=t, session=name, call=call, tool="bash", category="tests", command="python -m pytest -q tests/unit"
            )
        else:
            record = ProcExit(t=t, session=name, call=call, pid=1000 + seq, exit_code=0, hiwater_bytes=31_000_000)
        record.v, record.seq, record.src, record.host = records.VERSION, seq, SRC, "bench"
        yield record


if __name__ == "__main__":
    sys.exit(main())
