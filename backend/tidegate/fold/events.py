"""Which records people read as events, and their shape for the browser."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from tidegate_collectors import records
from tidegate_collectors.records import Record

from .limits import cut_deep, short_id

_ENVELOPE: Final = frozenset(Record.__struct_fields__) | {"type"}

_EVENTS: Final[tuple[type[Record], ...]] = (
    records.RunMeta, records.RunEnd, records.SessionStart, records.SessionEnd, records.CallStart, records.CallEnd,
    records.MemBurst, records.MemEvent, records.Action, records.Feedback, records.PolicyChange, records.PolicyAck,
    records.EngineStart, records.EngineEnd, records.EngineMode, records.KvDecision, records.CtxCompact, records.Loss,
    records.Note,
)  # fmt: skip

EVENT_TYPES: Final[frozenset[type[Record]]] = frozenset(_EVENTS)
"""Records of the event feed: rare enough to read, and telling without their neighbours."""

EVENT_TYPE_NAMES: Final[frozenset[str]] = frozenset(name for name, cls in records.TYPES.items() if cls in EVENT_TYPES)
"""Their ``type`` names, for a query of the store."""


class EventView(Struct, frozen=True):
    """One event as the browser gets it. ``body`` holds the record's own fields, long texts cut."""

    ord: int
    t_us: int
    type: str
    session: str | None
    call: str | None
    body: dict[str, Any]


def type_name(record: Record) -> str:
    """The record's ``type``."""
    return _NAMES[type(record)]


def event_body(type_: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A record's own fields as an event has them, long texts cut; what makes a decision heavy is left out."""
    hidden = _HIDDEN.get(type_, _ENVELOPE)
    return {name: cut_deep(value) for name, value in fields.items() if name not in hidden}


def event_view(ord_: int, record: Record) -> EventView:
    """The record as an event; ``ord_`` is its ordinal in the run."""
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return EventView(
        ord=ord_,
        t_us=record.t,
        type=_NAMES[type(record)],
        session=None if record.session is None else short_id(record.session),
        call=None if record.call is None else short_id(record.call),
        body=event_body(_NAMES[type(record)], fields),
    )


_HIDDEN: Final[dict[str, frozenset[str]]] = {"kv.decision": _ENVELOPE | {"inputs", "costs"}}

_NAMES: Final[dict[type[Record], str]] = {cls: name for name, cls in records.TYPES.items()}
