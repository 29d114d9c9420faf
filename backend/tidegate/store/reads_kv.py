"""Decisions about KV blocks, and what came of them, read from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.fold.limits import short_id
from tidegate.store.columns import SampleReads
from tidegate.store.rows import MAX_INT, decode_stored
from tidegate_collectors.records import KvDecision

MAX_NAMES: Final = 200
"""Tools, or engines, of a run that are listed."""


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """What came of a decision; see :class:`~tidegate_collectors.records.KvOutcome`."""

    ord: int
    t_us: int
    action: str | None
    returned: bool
    gap_us: int
    evicted: bool
    served_from: str
    cached_device_tokens: int | None
    cached_host_tokens: int | None
    recomputed_tokens: int | None
    retrieval_us: int | None
    hindsight_best: str | None
    regret_s: float | None


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision as lists show it; see :class:`~tidegate_collectors.records.KvDecision`.

    Names of engines, tools and rules are shortened as those of the fold are. ``outcome``: the last one.
    """

    ord: int
    src: str
    seq: int
    t_us: int
    session: str | None
    turn: str | None
    engine: str
    boundary: str
    action: str
    enforced: bool
    blocks: int | None
    tool: str | None
    margin_s: float | None
    ttl_s: float | None
    rule: str
    overridden_by: str | None
    outcome: OutcomeRow | None


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Which decisions are wanted; None: any. ``regret_min_s``: those whose outcome is known to have cost so much."""

    engine: str | None = None
    session: str | None = None
    action: str | None = None
    boundary: str | None = None
    tool: str | None = None
    enforced: bool | None = None
    overridden: bool | None = None
    regret_min_s: float | None = None


_COLUMNS: Final = (
    "d.ord, d.src, d.seq, d.t, d.session, d.turn, d.engine, d.boundary, d.action, d.enforced, d.blocks, d.tool, "
    "d.margin_s, d.ttl_s, d.rule, d.overridden_by, o.ord, o.t, o.action, o.returned, o.gap_us, o.evicted, "
    "o.served_from, o.cached_device_tokens, o.cached_host_tokens, o.recomputed_tokens, o.retrieval_us, "
    "o.hindsight_best, o.regret_s"
)
_ENFORCED_AT: Final = 9
_OUTCOME_AT: Final = 16
_LAST: Final = (
    "o.ord = (SELECT MAX(l.ord) FROM kv_outcomes l WHERE l.run = d.run AND l.decision_ord = d.ord AND l.ord <= :to_ord)"
)
_WITH_OUTCOME: Final = f"LEFT JOIN kv_outcomes o ON o.run = d.run AND o.decision_ord = d.ord AND {_LAST}"
# SQLite knows nothing of how many rows there are of which kind, so each way to them is chosen here.
_BY_REGRET: Final = (
    "kv_outcomes o INDEXED BY kv_outcomes_regret CROSS JOIN kv_decisions d ON d.run = o.run AND d.ord = o.decision_ord"
)
_NEXT_NAME: Final = (
    "WITH RECURSIVE names(name) AS ("
    "SELECT MIN({column}) FROM {table} WHERE run = :run{more} UNION ALL "
    "SELECT (SELECT MIN({column}) FROM {table} WHERE run = :run{more} AND {column} > names.name) FROM names "
    "WHERE names.name IS NOT NULL LIMIT :most) SELECT name FROM names WHERE name IS NOT NULL"
)
_OF_TOOLS: Final = _NEXT_NAME.format(
    column="tool", table="kv_decisions INDEXED BY kv_decisions_tool", more=" AND tool IS NOT NULL"
)
_TOOLS: Final = (
    f"{_OF_TOOLS} AND (SELECT MIN(f.ord) FROM kv_decisions f "  # noqa: S608
    "INDEXED BY kv_decisions_tool WHERE f.run = :run AND f.tool IS NOT NULL AND f.tool = name) <= :to_ord"
)
_ENGINES: Final = (
    _NEXT_NAME.format(column="engine", table="kv_decisions INDEXED BY kv_decisions_engine", more=""),
    _NEXT_NAME.format(column="engine", table="engine_samples", more=""),
)


class DecisionReads(SampleReads):
    """Reads of decisions. ``to_ord``: ordinal of the last record that counts; None: the last of the run."""

    async def kv_decisions(
        self,
        run: str,
        wanted: DecisionFilter = DecisionFilter(),
        *,
        before_ord: int | None = None,
        to_ord: int | None = None,
        limit: int = 100,
    ) -> tuple[list[DecisionRow], int | None]:
        """A page of decisions, the newest first, and the ``before_ord`` of the next page, None behind the last one."""
        last = MAX_INT if to_ord is None else to_ord
        bound: dict[str, Any] = {
            "run": await self.number_of(run),
            "to_ord": last,
            "before": min(MAX_INT if before_ord is None else before_ord, last + 1, MAX_INT),
            "limit": limit + 1,
        }
        source, order, conditions = _way(wanted)
        for name in ("engine", "session", "action", "boundary", "tool"):
            value = getattr(wanted, name)
            if value is not None:
                conditions.append(f"d.{name} = :{name}")
                bound[name] = value if name == "session" else short_id(value)
        if wanted.enforced is not None:
            conditions.append("d.enforced = :enforced")
            bound["enforced"] = int(wanted.enforced)
        if wanted.overridden is not None:
            conditions.append(f"d.overridden_by IS {'NOT ' if wanted.overridden else ''}NULL")
        if wanted.regret_min_s is not None:
            conditions.append("o.regret_s >= :regret")
            bound["regret"] = wanted.regret_min_s
        rows = await self.driver_all(
            f"SELECT {_COLUMNS} FROM {source} WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants
            f"ORDER BY {order} DESC LIMIT :limit",
            bound,
        )
        found = [_decision(row) for row in rows[:limit]]
        return found, found[-1].ord if found and len(rows) > limit else None

    async def kv_decision(
        self, run: str, ord_: int, *, to_ord: int | None = None
    ) -> tuple[DecisionRow, KvDecision] | None:
        """One decision with its whole record; None when that record is none, or comes later."""
        no = await self.number_of(run)
        last = MAX_INT if to_ord is None else to_ord
        if not 0 < ord_ <= last:
            return None
        rows = await self.driver_all(
            f"SELECT {_COLUMNS} FROM kv_decisions d {_WITH_OUTCOME} WHERE d.run = :run AND d.ord = :ord",  # noqa: S608
            {"run": no, "ord": ord_, "to_ord": last},
        )
        lines = await self.driver_all("SELECT line FROM events WHERE run = ? AND ord = ?", (no, ord_))
        if not rows or not lines:
            return None
        record = decode_stored(lines[0][0])
        return (_decision(rows[0]), record) if isinstance(record, KvDecision) else None

    async def session_decisions(
        self, run: str, session: str, from_us: int, to_us: int, *, to_ord: int | None = None, limit: int = 5000
    ) -> tuple[list[DecisionRow], bool]:
        """The newest decisions about a session in ``[from_us, to_us]``, the oldest first; whether some are left out."""
        rows = await self.driver_all(
            f"SELECT {_COLUMNS} FROM kv_decisions d INDEXED BY kv_decisions_session {_WITH_OUTCOME} "  # noqa: S608
            "WHERE d.run = :run AND d.session = :session AND d.t BETWEEN :from_us AND :to_us AND d.ord <= :to_ord "
            "ORDER BY d.ord DESC LIMIT :limit",
            {
                "run": await self.number_of(run), "session": session, "from_us": from_us, "to_us": to_us,
                "to_ord": MAX_INT if to_ord is None else to_ord, "limit": limit + 1,
            },
        )  # fmt: skip
        return [_decision(row) for row in reversed(rows[:limit])], len(rows) > limit

    async def kv_tools(self, run: str, *, to_ord: int | None = None) -> list[str]:
        """Tools that decisions name, by name; at most :data:`MAX_NAMES`."""
        last = MAX_INT if to_ord is None else to_ord
        key = {"run": await self.number_of(run), "most": MAX_NAMES, "to_ord": last}
        return [row[0] for row in await self.driver_all(_TOOLS, key)]

    async def kv_engines(self, run: str) -> list[str]:
        """Engines that samples or decisions are of, by name; at most :data:`MAX_NAMES` of either."""
        key = {"run": await self.number_of(run), "most": MAX_NAMES}
        return sorted({row[0] for sql in _ENGINES for row in await self.driver_all(sql, key)})


def _way(wanted: DecisionFilter) -> tuple[str, str, list[str]]:
    """Where to begin, what gives the order there, and the conditions of a page."""
    by_regret = wanted.regret_min_s is not None and wanted.regret_min_s > 0
    index = (
        "kv_decisions_session"
        if wanted.session is not None
        else "kv_decisions_overridden"
        if wanted.overridden
        else "kv_decisions_tool"
        if wanted.tool is not None and not by_regret
        else "kv_decisions_action"
        if wanted.action is not None and not by_regret
        else "kv_decisions_engine"
        if wanted.engine is not None and not by_regret
        else None
    )
    if by_regret and index is None:
        conditions = ["o.run = :run", "o.decision_ord < :before", "o.ord <= :to_ord", "o.regret_s > 0", _LAST]
        return _BY_REGRET, "o.decision_ord", conditions
    by_index = "" if index is None else f" INDEXED BY {index}"
    return f"kv_decisions d{by_index} {_WITH_OUTCOME}", "d.ord", ["d.run = :run", "d.ord < :before"]


def _decision(row: Sequence[Any]) -> DecisionRow:
    outcome = None
    if row[_OUTCOME_AT] is not None:
        ord_, t_us, action, returned, gap_us, evicted, *rest = row[_OUTCOME_AT:]
        outcome = OutcomeRow(ord_, t_us, action, bool(returned), gap_us, bool(evicted), *rest)
    values = list(row[:_OUTCOME_AT])
    values[_ENFORCED_AT] = bool(values[_ENFORCED_AT])
    values.append(outcome)
    return DecisionRow(*values)
