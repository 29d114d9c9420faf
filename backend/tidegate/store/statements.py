"""The statements that write derived rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from tidegate.store import schema
from tidegate.store.rows import Rows


def _insert(table: Any, rows: int = 1) -> str:
    names = [column.name for column in table.columns]
    marks = ", ".join([f"({', '.join('?' * len(names))})"] * rows)
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {marks}"  # noqa: S608 - names of our own schema


def _upsert(table: Any, groups: dict[str, Sequence[str]], first: Sequence[str] = ()) -> str:
    """An insert that, on a row that is there, replaces each group of columns whose ``<group>_ord`` is given."""
    keys = [column.name for column in table.primary_key.columns]
    sets = []
    for marker, names in groups.items():
        sets += [
            f"{name} = CASE WHEN excluded.{marker} IS NULL THEN {table.name}.{name} ELSE excluded.{name} END"
            for name in names
        ]
    sets += [f"{name} = COALESCE({table.name}.{name}, excluded.{name})" for name in first]
    return f"{_insert(table)} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {', '.join(sets)}"


SESSION_START: Final = ("start_ord", "host", "agent", "title", "priority", "budget_bytes")
SESSION_END: Final = ("end_ord", "ended_us", "end_reason", "exit_code", "signal")
CALL_START: Final = ("start_ord", "tool", "category", "command")
CALL_END: Final = (
    "end_ord", "ended_us", "exit_code", "signal", "oom", "lost", "duration_us", "peak_bytes", "spike_bytes",
    "kept_bytes", "cpu_us", "wait_us",
)  # fmt: skip


def _insert_outcome() -> str:
    """An insert that finds the decision by its sender and seq, whatever batch it came in."""
    names = [column.name for column in schema.kv_outcomes.columns if column.name != "decision_ord"]
    marks = ", ".join(f"?{n}" for n in range(1, len(names) + 1))
    at = {name: f"?{n}" for n, name in enumerate(names, 1)}
    found = (
        f"COALESCE((SELECT MAX(d.ord) FROM kv_decisions d WHERE d.run = {at['run']} AND d.src = {at['src']} "  # noqa: S608
        f"AND d.seq = {at['decision_seq']} AND d.ord < {at['ord']}), 0)"
    )
    return f"INSERT INTO kv_outcomes ({', '.join(names)}, decision_ord) VALUES ({marks}, {found})"  # noqa: S608


SQL: Final = {
    "subjects": _insert(schema.subjects),
    "mem": _insert(schema.mem),
    "sched": _insert(schema.sched),
    "psi": _insert(schema.psi),
    "host_samples": _insert(schema.host_samples),
    "engine_samples": _insert(schema.engine_samples),
    "events": _insert(schema.events),
    "engine_events": _insert(schema.engine_events),
    "kv_decisions": _insert(schema.kv_decisions),
    "kv_outcomes": _insert_outcome(),
    "sessions": _upsert(schema.sessions, {"start_ord": SESSION_START, "end_ord": SESSION_END}, ("started_us",)),
    "calls": _upsert(schema.calls, {"start_ord": CALL_START, "end_ord": CALL_END}, ("started_us",)),
    "sources": (
        _insert(schema.sources) + " ON CONFLICT (run, src) DO UPDATE SET last_seq = CASE WHEN excluded.last_seq > "
        "sources.last_seq THEN excluded.last_seq ELSE sources.last_seq END, last_t = excluded.last_t, "
        "records = sources.records + excluded.records"
    ),
}
"""Prebuilt statements, by table."""

ROWS_A_STATEMENT: Final = (64, 16, 4)
"""Rows that one insert takes, as many as there are. At each statement's end the interpreter goes to other threads, and
on a busy one it takes milliseconds to come back."""

_MANY: Final = {
    table.name: {rows: _insert(table, rows) for rows in ROWS_A_STATEMENT}
    for table in (
        schema.subjects,
        schema.mem,
        schema.sched,
        schema.psi,
        schema.host_samples,
        schema.engine_samples,
        schema.events,
        schema.kv_decisions,
    )
}

_SORTED: Final = frozenset({"mem", "sched", "psi", "host_samples", "engine_samples", "engine_events"})


def insert_rows(database: sqlite3.Connection, rows: Rows) -> None:
    """Insert derived rows; the transaction is the caller's."""
    for name, values in rows.by_table.items():
        # In the order of the key: neighbours go into the same page.
        ordered = sorted(values) if name in _SORTED else values
        at = 0
        for step, sql in _MANY.get(name, {}).items():
            end = at + (len(ordered) - at) // step * step
            if end > at:
                flat = (list(chain.from_iterable(ordered[i : i + step])) for i in range(at, end, step))
                database.executemany(sql, flat)
                at = end
        if at < len(ordered):
            database.executemany(SQL[name], ordered[at:])
