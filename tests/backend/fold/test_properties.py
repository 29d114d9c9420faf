"""Whatever the records: the fold does not raise, batching makes no difference, views are JSON, the state is bounded."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import records as make
from tidegate.fold import Limits, State, apply, fold, views
from tidegate.fold.neighbours import neighbours
from tidegate_collectors.records import Unknown

SMALL = Limits(
    sessions=3, calls=4, processes=3, events=5, names=4, spark_points=10, spark_us=5_000_000, pending=6, lanes=2
)


def everything(state: State) -> dict[str, Any]:
    """All that can be seen of a state, as plain JSON values."""
    sessions = {}
    for session in state.sessions.values():
        sessions[session.id] = {
            "calls": views.call_views(session),
            "processes": [views.processes_view(call.processes) for call in session.calls.values()],
            "neighbours": [neighbours(session, call) for call in session.calls.values()],
            "runtime": views.processes_view(session.processes),
        }
    plain: dict[str, Any] = make.plain(
        {
            "state": views.state_view(state, now_us=state.last_t_us),
            "sessions": sessions,
            "capabilities": views.capability_views(state),
            "sources": {name: [source.last_t_us, source.last_seq] for name, source in state.sources.items()},
        }
    )
    return plain


@settings(max_examples=80, deadline=None)
@given(make.streams(), st.data())
def test_any_batching_gives_the_same_state(stream: list[Any], data: st.DataObject) -> None:
    numbered = make.numbered(*stream)
    at_once = fold(State(), numbered)

    in_batches = State()
    rest = numbered
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        fold(in_batches, rest[:size])
        in_batches.changes()  # asking what changed changes nothing
        rest = rest[size:]

    assert everything(in_batches) == everything(at_once)


@settings(max_examples=60, deadline=None)
@given(make.streams(), st.integers(0, 40))
def test_a_state_goes_on_from_any_prefix(stream: list[Any], cut: int) -> None:
    numbered = make.numbered(*stream)
    continued = fold(fold(State(track=False), numbered[:cut]), numbered[cut:])
    assert everything(continued) == everything(fold(State(), numbered))


@settings(max_examples=80, deadline=None)
@given(make.streams(max_size=60))
def test_no_stream_raises_and_each_frame_is_json(stream: list[Any]) -> None:
    state = State()
    for ord_, record in make.numbered(*stream):
        apply(state, ord_, record)
        changes = state.changes()
        frame = make.plain(views.frame_view(state, changes, now_us=state.last_t_us))
        assert frame["ord"] == ord_
        assert all(call["session"] in state.sessions for call in frame["calls"])
    assert not state.changes().sessions


@settings(max_examples=60, deadline=None)
@given(make.streams(max_size=80))
def test_a_state_stays_within_its_limits(stream: list[Any]) -> None:
    state = fold(State(SMALL), make.numbered(*stream))
    assert len(state.sessions) <= SMALL.sessions
    assert len(state.events) <= SMALL.events
    for table in (state.hosts, state.sources, state.capabilities, state.unknown_types, state.lost):
        assert len(table) <= SMALL.names + 1  # one more for all others together
    for session in state.sessions.values():
        assert len(session.calls) <= SMALL.calls
        assert len(views.spark_points(session)) <= SMALL.spark_points
        for call in session.calls.values():
            assert len(views.processes_view(call.processes)) <= SMALL.processes
    changes = state.changes()
    assert len(changes.events) <= SMALL.pending
    assert len(changes.calls) <= SMALL.pending
    assert all(len(points.mem) <= SMALL.pending + 1 for points in changes.series.values())


@settings(max_examples=60, deadline=None)
@given(make.streams(max_size=60))
def test_sums_agree_with_their_parts(stream: list[Any]) -> None:
    state = fold(State(), make.numbered(*stream))
    for session in state.sessions.values():
        view = views.session_view(session)
        calls = views.call_views(session)
        assert session.calls_bytes == sum(call.bytes or 0 for call in calls) == sum(session.by_category.values())
        assert view.calls_running == sum(call.state == "running" for call in calls)
        assert (view.current is None) == (view.calls_running == 0)
        assert view.calls_total >= len(calls)
        if view.peak_bytes is not None:
            assert view.peak_bytes >= (view.runtime_bytes or 0) + (view.calls_bytes or 0)
        starts = [call.started_us for call in session.calls.values() if call.started_us is not None]
        longest = state.last_t_us - min(starts) if starts else 0
        assert 0 <= view.tool_time_us <= longest
        lanes = [call.lane for call in session.running.values() if call.lane is not None]
        assert len(lanes) == len(set(lanes))


def test_records_of_an_unknown_type_are_counted() -> None:
    state = fold(State(SMALL), make.numbered(*(Unknown(v=1, t=1, type=f"new.{i % 6}") for i in range(12))))
    assert sum(state.unknown_types.values()) == 12
    assert state.unknown_types["new.0"] == 2
    assert len(state.unknown_types) <= SMALL.names + 1
