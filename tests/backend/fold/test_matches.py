"""What the agent's hooks call a call."""

from __future__ import annotations

from typing import Any

from tests.support import records as make
from tests.support.records import HOSTILE, at
from tidegate.fold import Limits, State, fold, views
from tidegate.fold.shapes import CallView
from tidegate_collectors.records import CallMatch, Record


def match(seconds: float, call: str | None = "c1", **fields: Any) -> Record:
    said: dict[str, Any] = {
        "agent_tool": "Bash", "agent_call_id": "toolu_1", "confidence": "exact", "how": "command text", "position": 1,
        **fields,
    }  # fmt: skip
    return CallMatch(v=1, t=at(seconds), session="s", call=call, **said)


def state_of(*stream: Any, limits: Limits | None = None) -> State:
    return fold(State(limits), make.numbered(*stream))


def view_of(state: State, call: str = "c1") -> CallView:
    found = state.sessions["s"].calls.get(call)
    assert found is not None
    return views.call_view(found)


def test_a_call_without_hooks_says_nothing_of_them() -> None:
    view = view_of(state_of(make.session_start(0), make.call_start(1)))
    assert (view.agent_tool, view.agent_call_id, view.match_confidence, view.match_how) == (None, None, None, None)
    assert (view.match_position, view.result_chars, view.agent_failed) == (0, None, False)


def test_the_last_word_counts_also_after_the_end() -> None:
    state = state_of(
        make.session_start(0),
        make.call_start(1),
        match(1.1, confidence="likely", how="time only"),
        make.call_end(2),
        match(2.2, result_chars=12, failed=True),
    )
    view = view_of(state)
    assert (view.agent_tool, view.agent_call_id, view.match_confidence) == ("Bash", "toolu_1", "exact")
    assert (view.match_how, view.match_position, view.result_chars, view.agent_failed) == ("command text", 1, 12, True)
    assert (view.state, view.tool) == ("ended", "pytest"), "the call itself stays what the kernel saw"


def test_a_call_of_a_tool_without_a_process() -> None:
    state = state_of(
        make.session_start(0),
        make.call_start(1, tool="Read", category="read", boundary="hook", pid=None),
        match(1, agent_tool="Read", confidence="none", how="it runs within the agent", position=0),
        make.call_end(1.5, duration_us=500_000, result_chars=9, peak_bytes=None, exit_code=None),
    )
    view = view_of(state)
    assert (view.boundary, view.duration_us, view.result_chars, view.peak_bytes) == ("hook", 500_000, 9, None)
    assert views.session_view(state.sessions["s"]).tool_time_us == 500_000


def test_a_match_makes_no_call_and_is_told_to_the_pages() -> None:
    state = state_of(make.session_start(0), make.call_start(1))
    state.changes()
    fold(state, make.numbered(match(1.2, call="gone"), match(1.3, call=None), first=3))
    assert list(state.sessions["s"].calls) == ["c1"]
    assert state.changes().calls == set()
    fold(state, make.numbered(match(1.4), first=5))
    assert state.changes().calls == {("s", "c1")}


def test_hostile_names_are_cut() -> None:
    for text in HOSTILE:
        view = view_of(
            state_of(make.session_start(0), make.call_start(1), match(2, agent_tool=text, agent_call_id=text, how=text))
        )
        assert all(len(value or "") <= 2048 for value in (view.agent_tool, view.agent_call_id, view.match_how))
