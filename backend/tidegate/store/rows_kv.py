"""From records of the engine plane to rows of their tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, get_args

from tidegate.fold.limits import short_id
from tidegate.store.schema_engine import ENGINE_COLUMNS
from tidegate_collectors.records import (
    EngineEnd,
    EngineSample,
    EngineStart,
    KvDecision,
    KvOutcome,
    KvTransition,
    TurnEnd,
    TurnFirstToken,
    TurnStart,
    TurnTool,
)

AnyEngineEvent: TypeAlias = TurnStart | TurnFirstToken | TurnEnd | TurnTool | KvTransition | EngineStart | EngineEnd

MAX_NAMES: Final = 32
"""Reasons to wait, and missing metrics, of one sample that are kept in its row; the line has them all."""

_MAX_NAME: Final = 100
_LARGEST: Final = 2**63 - 1
_numbers: Final = attrgetter(*ENGINE_COLUMNS)


def engine_row(run: int, ordinal: int, record: EngineSample) -> tuple[Any, ...]:
    """A row of ``engine_samples``."""
    return (
        run, engine_of(record), record.t, ordinal, *_numbers(record), _json_of_counts(record.waiting_by_reason),
        _json_of_names(record.missing),
    )  # fmt: skip


def decision_row(run: int, ordinal: int, record: KvDecision) -> tuple[Any, ...]:
    """A row of ``kv_decisions``."""
    return (
        run, ordinal, record.t, record.src, record.seq, record.session, record.turn, engine_of(record), record.boundary,
        record.action, int(record.enforced), record.blocks, _short(record.tool),
        _finite(record.margin_s), _finite(record.ttl_s), short_id(record.rule), _short(record.overridden_by),
    )  # fmt: skip


def outcome_row(run: int, ordinal: int, record: KvOutcome) -> tuple[Any, ...]:
    """A row of ``kv_outcomes``, but for the ordinal of the decision, which its statement finds."""
    return (
        run, ordinal, record.t, record.src, record.decision_seq, record.session, engine_of(record), record.action,
        int(record.returned), record.gap_us, int(record.evicted), record.served_from, record.cached_device_tokens,
        record.cached_host_tokens, record.recomputed_tokens, record.retrieval_us, record.hindsight_best,
        _finite(record.regret_s),
    )  # fmt: skip


def event_row(run: int, ordinal: int, record: AnyEngineEvent) -> tuple[Any, ...]:
    """A row of ``engine_events``."""
    return (run, record.session or "", record.__struct_config__.tag, record.t, ordinal)


def engine_name(engine: object, src: str) -> str:
    """The name that the fold gives the engine of a record; one without a name goes by its sender's."""
    return short_id(engine if isinstance(engine, str) and engine else src)


def engine_of(record: EngineSample | KvDecision | KvTransition | KvOutcome | EngineStart | EngineEnd) -> str:
    """:func:`engine_name` of a record."""
    return engine_name(record.engine, record.src)


def _short(name: str | None) -> str | None:
    return None if name is None else short_id(name)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _json_of_counts(counts: Mapping[str, int]) -> str | None:
    # Plain ASCII whatever the names are: what cannot be written as UTF-8 is escaped.
    kept = {name[:_MAX_NAME]: min(max(n, -_LARGEST), _LARGEST) for name, n in list(counts.items())[:MAX_NAMES]}
    return json.dumps(kept, separators=(",", ":")) if kept else None


def _json_of_names(names: Sequence[str]) -> str | None:
    kept = [name[:_MAX_NAME] for name in names[:MAX_NAMES]]
    return json.dumps(kept, separators=(",", ":")) if kept else None


ROWS_OF_EVENTS: Final[dict[type, tuple[str, Callable[[int, int, Any], tuple[Any, ...]]]]] = {
    KvDecision: ("kv_decisions", decision_row),
    KvOutcome: ("kv_outcomes", outcome_row),
    **dict.fromkeys(get_args(AnyEngineEvent), ("engine_events", event_row)),
}
"""Events that have a row in one more table: which, and how it is made."""
