"""What the agent's hooks call a call: its tool, its id, and how surely the two are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_collectors.records import CallMatch

from .limits import cut, short_id

if TYPE_CHECKING:
    from .state import State


def call_match(state: State, record: CallMatch) -> None:
    """A call is the agent's tool call of that id. Said again, the last word counts; a call that left stays away."""
    session = state.session_of(record)
    name = record.call
    if session is None or name is None:
        return
    if session.calls.get(name) is None and session.calls.get(short_id(name)) is None:
        return
    call = state.call_of(session, record)
    if call is None:
        return
    call.agent_tool, call.agent_call_id = cut(record.agent_tool) or None, cut(record.agent_call_id) or None
    call.match_confidence, call.match_how = record.confidence, cut(record.how) or None
    call.match_position = record.position
    call.agent_failed = record.failed
    if record.result_chars is not None:
        call.result_chars = record.result_chars
