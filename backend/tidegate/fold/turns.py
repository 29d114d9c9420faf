"""Records of turns: sums for the session, and the newest turns one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_collectors.records import TurnTool

from .engine import TurnTotals
from .limits import short_id
from .model import Session
from .turn import AnyTurnRecord, Turn, turn_of

if TYPE_CHECKING:
    from .state import State

_SUMMED = (
    "prompt_tokens", "cached_device_tokens", "cached_host_tokens", "recomputed_tokens", "output_tokens", "preemptions",
)  # fmt: skip


def turn_record(state: State, record: AnyTurnRecord) -> None:
    """A turn begins, is answered or ends; the gateway and the engine may both tell of it."""
    session = state.session_of(record)
    if session is None:
        return
    seen(session, record.t)
    inference = session.inference
    if record.turn is None and record.req is None:
        return
    turns, totals = inference.turns, inference.totals
    known = turns.get(short_id(record.turn or record.req or ""))
    before = _figures(known)
    turn, new, other = turn_of(turns, record)
    if new:
        totals.total += 1
    if other is not None:
        totals.total -= 1
        _add(totals, _figures(other), -1)
    _add(totals, before, -1)
    _add(totals, _figures(turn), 1)
    if turn.ttft_us is not None:
        inference.ttft_us = turn.ttft_us


def turn_tool(state: State, record: TurnTool) -> None:
    """A tool that an answer asks for; the calls of the kernel plane are joined to it when somebody looks."""
    session = state.session_of(record)
    if session is not None:
        seen(session, record.t)


def seen(session: Session, t_us: int) -> None:
    """The inference side speaks of a session: one that no collector announced begins with it, and goes on."""
    if session.announced:
        return
    if session.started_us is None:
        session.started_us = t_us
    if session.phase != "running" and t_us > (session.ended_us or 0):
        session.phase = "running"
        session.ended_us = session.end_reason = None


def _figures(turn: Turn | None) -> tuple[int, ...]:
    if turn is None:
        return (0,) * (len(_SUMMED) + 3)
    return (
        *(getattr(turn, name) or 0 for name in _SUMMED),
        int(turn.failed),
        int(turn.engine),
        int(turn.gateway),
    )


def _add(totals: TurnTotals, figures: tuple[int, ...], sign: int) -> None:
    for name, figure in zip((*_SUMMED, "errors", "engine", "gateway"), figures, strict=True):
        if figure:
            setattr(totals, name, getattr(totals, name) + sign * figure)
