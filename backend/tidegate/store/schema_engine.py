"""The tables of the engine plane."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import Column, Table, Text

from tidegate.store.schema_parts import CLUSTERED, Real, index, int_, key, metadata

ENGINE_COLUMNS: Final = (
    "running", "waiting", "blocks_total", "blocks_active", "blocks_cached", "blocks_pinned", "blocks_free",
    "blocks_used", "sessions", "host_used_bytes", "host_total_bytes", "prefix_queries_tokens", "prefix_hits_tokens",
    "external_queries_tokens", "external_hits_tokens", "recomputed_tokens", "preemptions", "prompt_tokens",
    "output_tokens", "steps", "step_us", "own_us",
)  # fmt: skip
"""Numbers of an engine's sample, as its record has them."""

engine_samples = Table(
    "engine_samples",
    metadata,
    key("run"),
    key("engine", Text),
    key("t"),
    key("ord"),
    *map(int_, ENGINE_COLUMNS),
    Column("waiting_by_reason", Text),
    Column("missing", Text),
    **CLUSTERED,
)
"""Samples of engines, by the engine's name; the last two columns are JSON, NULL where there is nothing to say."""

engine_events = Table(
    "engine_events",
    metadata,
    key("run"),
    key("session", Text),
    key("type", Text),
    key("t"),
    key("ord"),
    **CLUSTERED,
)
"""Where the events are that charts of turns, KV blocks and engines are made of; ``session`` is empty for those of no
session. A table, for as an index of the events it would cost each of them a look, and most are no such."""

kv_decisions = Table(
    "kv_decisions",
    metadata,
    key("run"),
    key("ord"),
    int_("t", nullable=False),
    Column("src", Text, nullable=False),
    int_("seq", nullable=False),
    Column("session", Text),
    Column("turn", Text),
    Column("engine", Text, nullable=False),
    Column("boundary", Text, nullable=False),
    Column("action", Text, nullable=False),
    int_("enforced", nullable=False),
    int_("blocks"),
    Column("tool", Text),
    Column("margin_s", Real),
    Column("ttl_s", Real),
    Column("rule", Text, nullable=False),
    Column("overridden_by", Text),
    sa.Index("kv_decisions_seq", "run", "src", "seq", "ord"),
    sa.Index("kv_decisions_engine", "run", "engine", "ord"),
    sa.Index("kv_decisions_action", "run", "action", "ord"),
    index("kv_decisions_session", "run", "session", "ord", "t", where="session IS NOT NULL"),
    index("kv_decisions_tool", "run", "tool", "ord", where="tool IS NOT NULL"),
    index("kv_decisions_overridden", "run", "ord", where="overridden_by IS NOT NULL"),
    **CLUSTERED,
)
"""What a list of decisions shows; inputs and costs of one stay in its line."""

kv_outcomes = Table(
    "kv_outcomes",
    metadata,
    key("run"),
    key("decision_ord"),
    key("ord"),
    int_("t", nullable=False),
    Column("src", Text, nullable=False),
    int_("decision_seq", nullable=False),
    Column("session", Text),
    Column("engine", Text, nullable=False),
    Column("action", Text),
    int_("returned", nullable=False),
    int_("gap_us", nullable=False),
    int_("evicted", nullable=False),
    Column("served_from", Text, nullable=False),
    int_("cached_device_tokens"),
    int_("cached_host_tokens"),
    int_("recomputed_tokens"),
    int_("retrieval_us"),
    Column("hindsight_best", Text),
    Column("regret_s", Real),
    index("kv_outcomes_regret", "run", "decision_ord", "ord", "regret_s", where="regret_s > 0"),
    **CLUSTERED,
)
"""What came of decisions. ``decision_ord``: the newest decision before it of that ``src`` and ``seq``, 0 where there is
none. The last outcome of a decision counts."""
