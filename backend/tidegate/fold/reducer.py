"""The step of the fold: one record into the state.

Tolerant to anything a decoder lets through: ends without starts, samples of unknown sessions, records of several
senders out of order, repeated announcements. Nothing here raises on a valid record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from tidegate_collectors import records
from tidegate_collectors.records import AnyRecord, MemEvent, Record, Unknown

from . import calls, engines, hosts, matches, samples, sessions, turns
from .events import EVENT_TYPES, event_view
from .limits import short_id
from .model import Source
from .state import State


def apply(state: State, ord_: int, record: AnyRecord | Unknown) -> None:
    """Take one record into the state.

    Args:
        state: changed in place.
        ord_: the record's ordinal in the run, from 1.
        record: a decoded record; one of unknown type is counted.
    """
    state.ord = ord_
    if record.t > state.last_t_us:
        state.last_t_us = record.t
    tracker = state.tracker
    source = state.sources.get(record.src)
    if source is None:
        source = _new_source(state, record)
    if source is not None:
        if record.t > source.last_t_us:
            source.last_t_us = record.t
        if record.seq > source.last_seq:
            source.last_seq = record.seq
    if tracker is not None:
        tracker.sources = True
    kind = type(record)
    handler = _HANDLERS.get(kind)
    if handler is None:
        state.note_unknown(record.type if isinstance(record, Unknown) else "")
        return
    handler(state, record)
    if kind in EVENT_TYPES:
        _note_event(state, ord_, record)  # type: ignore[arg-type]  # an Unknown has no handler


def fold(state: State, numbered: Iterable[tuple[int, AnyRecord | Unknown]]) -> State:
    """Take records into the state, in their order; in which batches they come makes no difference.

    Returns:
        the state that was given.
    """
    for ord_, record in numbered:
        apply(state, ord_, record)
    return state


def _new_source(state: State, record: AnyRecord | Unknown) -> Source | None:
    src = short_id(record.src)
    known = state.sources.get(src)
    if known is not None or len(state.sources) >= state.limits.names:
        return known
    host = short_id(getattr(record, "host", ""))
    source = state.sources[src] = Source(src=src, host=host, last_t_us=record.t, last_seq=record.seq)
    sessions.new_source(state, src, host)
    return source


def _note_event(state: State, ord_: int, record: Record) -> None:
    if isinstance(record, MemEvent) and not (record.oom or record.oom_kill):
        return  # a limit that was touched is a figure of the charts; as a line of the feed it would drown the others
    event = event_view(ord_, record)
    state.events.append(event)
    if state.tracker is not None:
        state.tracker.event(event)


def _of_a_session(state: State, record: Record) -> None:
    """Anything said about a session shows that it is there."""
    state.session_of(record)


def _aside(state: State, record: Record) -> None:
    """Said about a session that may be known."""
    state.session_of_known(record)


# The table is typed loosely: each handler takes the struct it is filed under.
_HANDLERS: Final[dict[type, Callable[[State, Any], None]]] = {
    **dict.fromkeys(records.TYPES.values(), _of_a_session),
    records.RunMeta: sessions.run_meta,
    records.RunEnd: sessions.run_end,
    records.Capability: hosts.capability,
    records.SessionStart: sessions.session_start,
    records.SessionEnd: sessions.session_end,
    records.CallStart: calls.call_start,
    records.CallEnd: calls.call_end,
    records.CallMatch: matches.call_match,
    records.ProcExec: calls.proc_exec,
    records.ProcExit: calls.proc_exit,
    records.MemSample: samples.mem_sample,
    records.MemBurst: samples.mem_burst,
    records.MemEvent: samples.mem_event,
    records.PsiSample: samples.psi_sample,
    records.SchedSample: samples.sched_sample,
    records.HostSample: hosts.host_sample,
    records.Loss: hosts.loss,
    records.TurnStart: turns.turn_record,
    records.TurnFirstToken: turns.turn_record,
    records.TurnEnd: turns.turn_record,
    records.TurnTool: turns.turn_tool,
    records.EngineStart: engines.engine_start,
    records.EngineEnd: engines.engine_end,
    records.EngineMode: engines.engine_mode,
    records.EngineSample: engines.engine_sample,
    records.KvCalibration: engines.calibration,
    records.KvDecision: engines.decision,
    records.KvTransition: engines.transition,
    records.KvTransfer: engines.transfer,
    records.KvOutcome: engines.outcome,
    records.Action: _aside,
    records.Feedback: _aside,
    records.PolicyChange: _aside,
    records.PolicyAck: _aside,
    records.Note: _aside,
}
