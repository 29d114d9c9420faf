"""The tables, as SQLAlchemy Core sees them. The migrations make them; a test keeps both equal.

``chunks`` holds the truth: the lines as they came. All other tables are derived from it and can be rebuilt
(:mod:`tidegate.store.reindex`). ``ord`` is a record's ordinal within its run, from 1.

Nothing here is beyond PostgreSQL: 64-bit integers, text, bytes; ``WITHOUT ROWID`` and ``STRICT`` are options of the
SQLite dialect only. Samples are clustered by (run, subject, t), because that is how charts ask for them; ``ord`` makes
the key unique when a clock stands still.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table, Text

metadata: Final = MetaData()

# STRICT wants INTEGER by that name; BIGINT elsewhere, because times and sizes do not fit into 32 bits.
Int: Final = BigInteger().with_variant(sa.Integer(), "sqlite")
Blob: Final = LargeBinary()

_CLUSTERED: Final[dict[str, Any]] = {"sqlite_with_rowid": False, "sqlite_strict": True}


def _int(name: str, **options: Any) -> Column[int]:
    return Column(name, Int, **options)


def _key(name: str, kind: Any = Int) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False, nullable=False)


def _samples(name: str, *columns: Column[Any]) -> Table:
    return Table(
        name, metadata, _key("run"), _key("subject"), _key("t"), _key("ord"), *columns, **_CLUSTERED
    )  # fmt: skip


def _index(name: str, *columns: str, where: str) -> sa.Index:
    condition = sa.text(where)
    return sa.Index(name, *columns, sqlite_where=condition, postgresql_where=condition)


MARKED: Final = "type IN ('action', 'call.start', 'kv.decision', 'mem.burst')"
"""Events that are a mark by their type alone."""

MAYBE_OOM: Final = "type = 'mem.event' AND instr(line, x'226f6f6d') > 0"
"""Events that say something of ``"oom`` or ``"oom_kill"``: rare among those of limits that were touched."""

IS_OOM: Final = (
    "CASE WHEN json_valid(CAST(line AS TEXT)) THEN COALESCE(json_extract(CAST(line AS TEXT), '$.oom'), 0) + "
    "COALESCE(json_extract(CAST(line AS TEXT), '$.oom_kill'), 0) > 0 ELSE 0 END"
)
"""Of those, the ones that count one."""

runs = Table(
    "runs",
    metadata,
    Column("no", Int, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("title", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    _int("started_us", nullable=False),
    _int("ended_us"),
    _int("clean", nullable=False),
    _int("last_ord", nullable=False),
    _int("last_t"),
    sqlite_strict=True,
)

chunks = Table(
    "chunks",
    metadata,
    _key("run"),
    _key("no"),
    _int("first_ord", nullable=False),
    _int("n", nullable=False),
    _int("first_t", nullable=False),
    _int("last_t", nullable=False),
    _int("raw_bytes", nullable=False),
    Column("codec", Text, nullable=False),
    Column("data", Blob, nullable=False),
    sqlite_strict=True,
)

sources = Table(
    "sources",
    metadata,
    _key("run"),
    _key("src", Text),
    _int("last_seq", nullable=False),
    _int("last_t", nullable=False),
    _int("records", nullable=False),
    **_CLUSTERED,
)

subjects = Table(
    "subjects",
    metadata,
    _key("run"),
    _key("no"),
    Column("kind", Text, nullable=False),
    Column("session", Text),
    Column("call", Text),
    Column("host", Text, nullable=False),
    _index("subjects_session", "run", "session", where="session IS NOT NULL"),
    **_CLUSTERED,
)

sessions = Table(
    "sessions",
    metadata,
    _key("run"),
    _key("id", Text),
    _int("first_ord", nullable=False),
    _int("first_us", nullable=False),
    _int("start_ord"),
    _int("started_us"),
    Column("host", Text),
    Column("agent", Text),
    Column("title", Text),
    Column("priority", Text),
    _int("budget_bytes"),
    _int("end_ord"),
    _int("ended_us"),
    Column("end_reason", Text),
    _int("exit_code"),
    _int("signal"),
    **_CLUSTERED,
)

calls = Table(
    "calls",
    metadata,
    _key("run"),
    _key("session", Text),
    _key("id", Text),
    _int("start_ord"),
    _int("started_us"),
    Column("tool", Text),
    Column("category", Text),
    Column("command", Text),
    _int("end_ord"),
    _int("ended_us"),
    _int("exit_code"),
    _int("signal"),
    _int("oom"),
    _int("lost"),
    _int("duration_us"),
    _int("peak_bytes"),
    _int("spike_bytes"),
    _int("kept_bytes"),
    _int("cpu_us"),
    _int("wait_us"),
    sa.Index("calls_ended", "run", "session", "ended_us"),
    **_CLUSTERED,
)

mem = _samples(
    "mem",
    _int("anon_bytes", nullable=False),
    _int("shmem_bytes"),
    _int("file_bytes"),
    _int("swap_bytes"),
    _int("peak_bytes"),
    _int("charged_bytes"),
)

sched = _samples(
    "sched",
    _int("oncpu_us", nullable=False),
    _int("wait_us"),
    _int("wait_max_us"),
    _int("window_us"),
)

psi = _samples(
    "psi",
    _int("memory_some_us"),
    _int("memory_full_us"),
    _int("cpu_some_us"),
    _int("io_some_us"),
    _int("io_full_us"),
    _int("window_us"),
)

host_samples = _samples(
    "host_samples",
    _int("mem_available_bytes", nullable=False),
    _int("mem_total_bytes", nullable=False),
    _int("swap_used_bytes", nullable=False),
    _int("cpu_busy_us", nullable=False),
    _int("window_us"),
)

events = Table(
    "events",
    metadata,
    _key("run"),
    _key("ord"),
    _int("t", nullable=False),
    Column("type", Text, nullable=False),
    Column("session", Text),
    Column("call", Text),
    Column("line", Blob, nullable=False),
    _index("events_session", "run", "session", "ord", where="session IS NOT NULL"),
    _index("events_loss", "run", "ord", where="type = 'loss'"),
    # For the playhead's marks and steps (tidegate.store.marks), which must not go through all events of a long run.
    _index("events_marks", "run", "type", "ord", "t", where=MARKED),
    sa.Index(
        "events_oom",
        "run",
        "ord",
        "t",
        sqlite_where=sa.text(MAYBE_OOM),
        postgresql_where=sa.text("type = 'mem.event' AND position('\\x226f6f6d'::bytea in line) > 0"),
    ),
    **_CLUSTERED,
)

snapshots = Table(
    "snapshots",
    metadata,
    _key("run"),
    _key("ord"),
    _int("t", nullable=False),
    Column("data", Blob, nullable=False),
    **_CLUSTERED,
)
"""The folded state after record ``ord``: ``t`` is the greatest time by then, ``data`` names the parts."""

parts = Table(
    "parts",
    metadata,
    _key("run"),
    _key("ord"),
    _key("name", Text),
    Column("data", Blob, nullable=False),
    **_CLUSTERED,
)
"""Pieces of snapshots; one that did not change since the snapshot before is not written again."""

imports = Table(
    "imports",
    metadata,
    _key("run"),
    Column("format", Text, nullable=False),
    Column("file", Text, nullable=False),
    Column("report", Text, nullable=False),
    **_CLUSTERED,
)
"""Where an imported run came from: name of the format, name of the file, and as JSON what was found wrong in it."""

rollups = Table(
    "rollups",
    metadata,
    _key("run"),
    _key("kind", Text),
    _key("name", Text),
    _key("bucket_us"),
    _key("block"),
    Column("stats", Blob, nullable=False),
    Column("total", Blob, nullable=False),
    Column("layers", Blob, nullable=False),
    Column("shares", Blob, nullable=False),
    sqlite_strict=True,
)
"""Pictures of sessions (and hosts) at the resolution of a bucket, many buckets to a block; see store/blocks.py."""

rollup_states = Table(
    "rollup_states",
    metadata,
    _key("run"),
    _key("kind", Text),
    _key("name", Text),
    _int("until_us", nullable=False),
    Column("data", Blob, nullable=False),
    **_CLUSTERED,
)
"""How far the rollups of a run, session or host go, and what is needed to go on."""

DERIVED: Final = (subjects, sessions, calls, mem, sched, psi, host_samples, events)
"""Tables that ``tidegate reindex`` empties and fills again from the chunks."""
