"""The tables, as SQLAlchemy Core sees them. The migrations make them; a test keeps both equal.

``chunks`` holds the truth: the lines as they came. All other tables are derived from it and can be rebuilt
(:mod:`tidegate.store.reindex`). ``ord`` is a record's ordinal within its run, from 1.

Nothing here is beyond PostgreSQL: 64-bit integers, text, bytes; ``WITHOUT ROWID`` and ``STRICT`` are options of the
SQLite dialect only. Samples are clustered by (run, subject, t), because that is how charts ask for them; ``ord`` makes
the key unique when a clock stands still.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import Column, Table, Text

from tidegate.store import schema_engine, schema_parts
from tidegate.store.schema_parts import CLUSTERED, Blob, Int, index, int_, key, samples

metadata: Final = schema_parts.metadata

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
    int_("started_us", nullable=False),
    int_("ended_us"),
    int_("clean", nullable=False),
    int_("last_ord", nullable=False),
    int_("last_t"),
    sqlite_strict=True,
)

chunks = Table(
    "chunks",
    metadata,
    key("run"),
    key("no"),
    int_("first_ord", nullable=False),
    int_("n", nullable=False),
    int_("first_t", nullable=False),
    int_("last_t", nullable=False),
    int_("raw_bytes", nullable=False),
    Column("codec", Text, nullable=False),
    Column("data", Blob, nullable=False),
    sqlite_strict=True,
)

sources = Table(
    "sources",
    metadata,
    key("run"),
    key("src", Text),
    int_("last_seq", nullable=False),
    int_("last_t", nullable=False),
    int_("records", nullable=False),
    **CLUSTERED,
)

subjects = Table(
    "subjects",
    metadata,
    key("run"),
    key("no"),
    Column("kind", Text, nullable=False),
    Column("session", Text),
    Column("call", Text),
    Column("host", Text, nullable=False),
    index("subjects_session", "run", "session", where="session IS NOT NULL"),
    **CLUSTERED,
)

sessions = Table(
    "sessions",
    metadata,
    key("run"),
    key("id", Text),
    int_("first_ord", nullable=False),
    int_("first_us", nullable=False),
    int_("start_ord"),
    int_("started_us"),
    Column("host", Text),
    Column("agent", Text),
    Column("title", Text),
    Column("priority", Text),
    int_("budget_bytes"),
    int_("end_ord"),
    int_("ended_us"),
    Column("end_reason", Text),
    int_("exit_code"),
    int_("signal"),
    **CLUSTERED,
)

calls = Table(
    "calls",
    metadata,
    key("run"),
    key("session", Text),
    key("id", Text),
    int_("start_ord"),
    int_("started_us"),
    Column("tool", Text),
    Column("category", Text),
    Column("command", Text),
    int_("end_ord"),
    int_("ended_us"),
    int_("exit_code"),
    int_("signal"),
    int_("oom"),
    int_("lost"),
    int_("duration_us"),
    int_("peak_bytes"),
    int_("spike_bytes"),
    int_("kept_bytes"),
    int_("cpu_us"),
    int_("wait_us"),
    sa.Index("calls_ended", "run", "session", "ended_us"),
    **CLUSTERED,
)

mem = samples(
    "mem",
    int_("anon_bytes", nullable=False),
    int_("shmem_bytes"),
    int_("file_bytes"),
    int_("swap_bytes"),
    int_("peak_bytes"),
    int_("charged_bytes"),
)

sched = samples(
    "sched",
    int_("oncpu_us", nullable=False),
    int_("wait_us"),
    int_("wait_max_us"),
    int_("window_us"),
)

psi = samples(
    "psi",
    int_("memory_some_us"),
    int_("memory_full_us"),
    int_("cpu_some_us"),
    int_("io_some_us"),
    int_("io_full_us"),
    int_("window_us"),
)

host_samples = samples(
    "host_samples",
    int_("mem_available_bytes", nullable=False),
    int_("mem_total_bytes", nullable=False),
    int_("swap_used_bytes", nullable=False),
    int_("cpu_busy_us", nullable=False),
    int_("window_us"),
)

events = Table(
    "events",
    metadata,
    key("run"),
    key("ord"),
    int_("t", nullable=False),
    Column("type", Text, nullable=False),
    Column("session", Text),
    Column("call", Text),
    Column("line", Blob, nullable=False),
    index("events_session", "run", "session", "ord", where="session IS NOT NULL"),
    index("events_loss", "run", "ord", where="type = 'loss'"),
    # For the playhead's marks and steps (tidegate.store.marks), which must not go through all events of a long run.
    index("events_marks", "run", "type", "ord", "t", where=MARKED),
    sa.Index(
        "events_oom",
        "run",
        "ord",
        "t",
        sqlite_where=sa.text(MAYBE_OOM),
        postgresql_where=sa.text("type = 'mem.event' AND position('\\x226f6f6d'::bytea in line) > 0"),
    ),
    **CLUSTERED,
)

engine_samples: Final = schema_engine.engine_samples
engine_events: Final = schema_engine.engine_events
kv_decisions: Final = schema_engine.kv_decisions
kv_outcomes: Final = schema_engine.kv_outcomes

snapshots = Table(
    "snapshots",
    metadata,
    key("run"),
    key("ord"),
    int_("t", nullable=False),
    Column("data", Blob, nullable=False),
    **CLUSTERED,
)
"""The folded state after record ``ord``: ``t`` is the greatest time by then, ``data`` names the parts."""

parts = Table(
    "parts",
    metadata,
    key("run"),
    key("ord"),
    key("name", Text),
    Column("data", Blob, nullable=False),
    **CLUSTERED,
)
"""Pieces of snapshots; one that did not change since the snapshot before is not written again."""

imports = Table(
    "imports",
    metadata,
    key("run"),
    Column("format", Text, nullable=False),
    Column("file", Text, nullable=False),
    Column("report", Text, nullable=False),
    **CLUSTERED,
)
"""Where an imported run came from: name of the format, name of the file, and as JSON what was found wrong in it."""

rollups = Table(
    "rollups",
    metadata,
    key("run"),
    key("kind", Text),
    key("name", Text),
    key("bucket_us"),
    key("block"),
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
    key("run"),
    key("kind", Text),
    key("name", Text),
    int_("until_us", nullable=False),
    Column("data", Blob, nullable=False),
    **CLUSTERED,
)
"""How far the rollups of a run, session or host go, and what is needed to go on."""

DERIVED: Final = (
    subjects, sessions, calls, mem, sched, psi, host_samples, engine_samples, events,
    engine_events, kv_decisions, kv_outcomes,
)  # fmt: skip
"""Tables that ``tidegate reindex`` empties and fills again from the chunks."""
