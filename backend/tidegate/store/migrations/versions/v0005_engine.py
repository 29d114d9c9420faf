"""Tables of the engine plane: samples of engines, decisions and their outcomes, and where its other events are.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import sqlalchemy as sa
from alembic import op

from tidegate.fold.limits import short_id
from tidegate_collectors import records
from tidegate_collectors.records import EngineSample, KvDecision, KvOutcome

revision = "0005"
down_revision: str | None = "0004"
branch_labels = None
depends_on = None

_ROWS_AT_ONCE: Final = 2000
_LARGEST: Final = 2**63 - 1
_CLUSTERED: Final[dict[str, Any]] = {"sqlite_with_rowid": False, "sqlite_strict": True}

_SAMPLES: Final = (
    "running", "waiting", "blocks_total", "blocks_active", "blocks_cached", "blocks_pinned", "blocks_free",
    "blocks_used", "sessions", "host_used_bytes", "host_total_bytes", "prefix_queries_tokens", "prefix_hits_tokens",
    "external_queries_tokens", "external_hits_tokens", "recomputed_tokens", "preemptions", "prompt_tokens",
    "output_tokens", "steps", "step_us", "own_us",
)  # fmt: skip
_DECISIONS: Final = (
    "t", "src", "seq", "session", "turn", "engine", "boundary", "action", "enforced", "blocks", "tool", "margin_s",
    "ttl_s", "rule", "overridden_by",
)  # fmt: skip
_OUTCOMES: Final = (
    "t", "src", "decision_seq", "session", "engine", "action", "returned", "gap_us", "evicted", "served_from",
    "cached_device_tokens", "cached_host_tokens", "recomputed_tokens", "retrieval_us", "hindsight_best", "regret_s",
)  # fmt: skip
_EVENTS: Final = frozenset(
    {"engine.end", "engine.start", "kv.transition", "turn.end", "turn.first_token", "turn.start", "turn.tool"}
)
_DECISION_OF: Final = (
    "COALESCE((SELECT MAX(d.ord) FROM kv_decisions d WHERE d.run = ?1 AND d.src = ?4 AND d.seq = ?5 AND d.ord < ?2), 0)"
)


def _key(name: str, kind: Any = None) -> sa.Column[Any]:
    return sa.Column(name, kind or sa.Integer(), primary_key=True, autoincrement=False, nullable=False)


def _int(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), nullable=nullable)


def _text(name: str, *, nullable: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _real(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.REAL())


def _partial(name: str, table: str, columns: Sequence[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, list(columns), sqlite_where=condition, postgresql_where=condition)


def upgrade() -> None:
    """Add them, and fill them from the events that are there; samples of engines are no events any more."""
    op.create_table(
        "engine_samples",
        _key("run"), _key("engine", sa.Text()), _key("t"), _key("ord"), *map(_int, _SAMPLES),
        _text("waiting_by_reason"), _text("missing"),
        **_CLUSTERED,
    )  # fmt: skip
    op.create_table(
        "engine_events",
        _key("run"), _key("session", sa.Text()), _key("type", sa.Text()), _key("t"), _key("ord"),
        **_CLUSTERED,
    )  # fmt: skip
    op.create_table(
        "kv_decisions",
        _key("run"), _key("ord"), _int("t", nullable=False), _text("src", nullable=False), _int("seq", nullable=False),
        _text("session"), _text("turn"), _text("engine", nullable=False), _text("boundary", nullable=False),
        _text("action", nullable=False), _int("enforced", nullable=False), _int("blocks"), _text("tool"),
        _real("margin_s"), _real("ttl_s"), _text("rule", nullable=False), _text("overridden_by"),
        **_CLUSTERED,
    )  # fmt: skip
    op.create_table(
        "kv_outcomes",
        _key("run"), _key("decision_ord"), _key("ord"), _int("t", nullable=False), _text("src", nullable=False),
        _int("decision_seq", nullable=False), _text("session"), _text("engine", nullable=False), _text("action"),
        _int("returned", nullable=False), _int("gap_us", nullable=False), _int("evicted", nullable=False),
        _text("served_from", nullable=False), _int("cached_device_tokens"), _int("cached_host_tokens"),
        _int("recomputed_tokens"), _int("retrieval_us"), _text("hindsight_best"), _real("regret_s"),
        **_CLUSTERED,
    )  # fmt: skip
    op.create_index("kv_decisions_seq", "kv_decisions", ["run", "src", "seq", "ord"])
    _fill(op.get_bind())
    # After the rows: sorting once is less work than keeping sorted.
    op.create_index("kv_decisions_engine", "kv_decisions", ["run", "engine", "ord"])
    op.create_index("kv_decisions_action", "kv_decisions", ["run", "action", "ord"])
    _partial("kv_decisions_session", "kv_decisions", ("run", "session", "ord", "t"), "session IS NOT NULL")
    _partial("kv_decisions_tool", "kv_decisions", ("run", "tool", "ord"), "tool IS NOT NULL")
    _partial("kv_decisions_overridden", "kv_decisions", ("run", "ord"), "overridden_by IS NOT NULL")
    _partial("kv_outcomes_regret", "kv_outcomes", ("run", "decision_ord", "ord", "regret_s"), "regret_s > 0")


def _fill(connection: sa.Connection) -> None:
    """Go through the events once. A line that cannot be read stays an event, and only that."""
    after = (-1, -1)
    wanted = json.dumps(["engine.sample", "kv.decision", "kv.outcome", *sorted(_EVENTS)])
    while True:
        found = connection.exec_driver_sql(
            "SELECT run, ord, type, line FROM events WHERE (run, ord) > (?, ?) AND "
            "type IN (SELECT value FROM json_each(?)) ORDER BY run, ord LIMIT ?",
            (*after, wanted, _ROWS_AT_ONCE),
        ).all()
        samples: list[tuple[Any, ...]] = []
        decisions: list[tuple[Any, ...]] = []
        outcomes: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        for run, ord_, type_, line in found:
            try:
                record = records.decode(line)
            except records.RecordError:
                continue
            if isinstance(record, EngineSample | KvDecision | KvOutcome):
                record.engine = short_id(record.engine or record.src)
            if isinstance(record, EngineSample):
                counts = {name[:100]: _plain(n) for name, n in list(record.waiting_by_reason.items())[:32]}
                names = [name[:100] for name in record.missing[:32]]
                samples.append(
                    (run, ord_, *_values(record, ("t", "engine", *_SAMPLES)), _json(counts), _json(names))
                )  # fmt: skip
            elif isinstance(record, KvDecision):
                record.rule = short_id(record.rule)
                record.tool = None if record.tool is None else short_id(record.tool)
                record.overridden_by = None if record.overridden_by is None else short_id(record.overridden_by)
                decisions.append((run, ord_, *_values(record, _DECISIONS)))
            elif isinstance(record, KvOutcome):
                outcomes.append((run, ord_, *_values(record, _OUTCOMES)))
            elif type_ in _EVENTS and isinstance(record, records.Record):
                events.append((run, ord_, _plain(record.session or ""), _plain(record.t), type_))
        _insert(connection, "engine_samples", ("t", "engine", *_SAMPLES, "waiting_by_reason", "missing"), samples)
        if samples:
            moved = [row[:2] for row in samples]
            connection.exec_driver_sql("DELETE FROM events WHERE run = ? AND ord = ?", moved)
        _insert(connection, "engine_events", ("session", "t", "type"), events)
        _insert(connection, "kv_decisions", _DECISIONS, decisions)
        _insert(connection, "kv_outcomes", _OUTCOMES, outcomes, {"decision_ord": _DECISION_OF})
        if len(found) < _ROWS_AT_ONCE:
            return
        after = (found[-1][0], found[-1][1])


def _insert(
    connection: sa.Connection,
    table: str,
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    found: dict[str, str] | None = None,
) -> None:
    names = ("run", "ord", *columns)
    values = [f"?{n}" for n in range(1, len(names) + 1)]
    more = found or {}
    sql = f"INSERT INTO {table} ({', '.join((*names, *more))}) VALUES ({', '.join((*values, *more.values()))})"  # noqa: S608
    if rows:
        connection.exec_driver_sql(sql, list(rows))


def _values(record: Any, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(map(_plain, attrgetter(*names)(record)))


def _plain(value: Any) -> Any:
    if isinstance(value, int):
        return max(-_LARGEST, min(_LARGEST, int(value)))
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(value: Any) -> str | None:
    return json.dumps(value, separators=(",", ":")) if value else None
