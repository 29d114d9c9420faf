"""What happened around a call."""

from __future__ import annotations

from .model import Call, Session
from .shapes import CallView, Neighbours
from .views import call_view


def neighbours(session: Session, call: Call) -> Neighbours:
    """The calls around ``call``; a call whose start is unknown has none."""
    start = call.started_us
    if start is None:
        return Neighbours(previous=None, next=None, overlapping=[])
    end = _end_us(session, call)
    before: Call | None = None
    after: Call | None = None
    overlapping: list[CallView] = []
    for other in session.calls.values():
        if other is call or other.started_us is None:
            continue
        key = (other.started_us, other.ordinal)
        if key < (start, call.ordinal):
            if before is None or key > (before.started_us or 0, before.ordinal):
                before = other
        elif after is None or key < (after.started_us or 0, after.ordinal):
            after = other
        if other.started_us < end and _end_us(session, other) > start:
            overlapping.append(call_view(other))
    return Neighbours(
        previous=None if before is None else call_view(before),
        next=None if after is None else call_view(after),
        overlapping=overlapping,
    )


def _end_us(session: Session, call: Call) -> int:
    return session.last_t_us if call.ended_us is None else call.ended_us
