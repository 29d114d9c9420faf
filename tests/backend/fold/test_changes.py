"""What a frame holds: only what changed, and each new point once."""

from __future__ import annotations

from tests.support import records as make
from tests.support.records import MB, at
from tidegate.fold import Limits, State, fold, views


def test_only_what_changed_is_told() -> None:
    state = State()
    fold(state, make.numbered(make.session_start(0, "a"), make.session_start(0, "b"), make.call_start(1, "c", "a")))
    first = state.changes()
    assert first.sessions == {"a", "b"}
    assert first.calls == {("a", "c")}
    assert [event.type for event in first.events] == ["session.start", "session.start", "call.start"]
    assert not state.changes()
    fold(state, make.numbered(make.mem(2, 5, session="b"), make.host(2, 100), first=4))
    second = state.changes()
    assert (second.sessions, second.calls, second.hosts, second.events) == ({"b"}, set(), {"h"}, [])
    assert second.spark == {"b": [(at(2), 5 * MB, 0)]}


def test_a_tick_is_one_point_however_it_is_cut() -> None:
    tick = [
        make.mem(1, 100),
        make.mem(1, 30, call="c1"),
        make.mem(1, 20, call="c2"),
        make.sched(1, 10, 5000),
        make.sched(1, 10, 20_000, call="c1"),
    ]
    prefix = [make.call_start(0, "c1"), make.call_start(0, "c2", category="git")]
    state = fold(State(), make.numbered(*prefix, *tick, make.mem(2, 100)))
    points = state.changes().series["s"]
    assert points.mem[0] == (at(1), 100 * MB, {"tests": 30 * MB, "git": 20 * MB})
    assert points.wait == [(at(1), 25.0)]

    cut = State()
    told = []
    for number, record in make.numbered(*prefix, *tick, make.mem(2, 100)):
        fold(cut, [(number, record)])
        changes = cut.changes()
        told += changes.series["s"].mem if "s" in changes.series else []
    # The same time may be told more than once, the last time with everything in it.
    assert {point[0]: point for point in told}[at(1)] == points.mem[0]


def test_the_sessions_own_wait_replaces_the_sum_of_its_parts() -> None:
    for order in ((0, 1, 2), (2, 0, 1), (0, 2, 1)):
        samples = [
            make.sched(1, 0, 10_000),
            make.sched(1, 0, 10_000, call="c1"),
            make.sched(1, 0, 15_000, subject="session"),
        ]
        state = fold(State(), make.numbered(*(samples[i] for i in order)))
        assert state.changes().series["s"].wait == [(at(1), 15.0)], order


def test_a_burst_between_samples_and_a_short_call_are_points() -> None:
    state = fold(
        State(),
        make.numbered(
            make.mem(1, 100, 100),
            make.call_start(1.01, category="install"),
            make.call_end(1.05, peak_bytes=700 * MB),  # too short for a sample of its own
            make.mem(1.1, 100, 450),  # the runtime went up to 450 and came back
            make.mem(1.2, 100, 450),
        ),
    )
    points = {point[0]: point for point in state.changes().series["s"].mem}
    assert points[at(1.05)][2] == {"install": 700 * MB}
    assert points[at(1.1)] == (at(1.1), 450 * MB, {})
    assert points[at(1.2)] == (at(1.2), 100 * MB, {})
    assert (at(1.05), 100 * MB, 700 * MB) in views.spark_points(state.sessions["s"])


def test_too_much_to_tell_is_said() -> None:
    state = State(Limits(pending=5))
    fold(state, make.numbered(*(make.mem(i, i) for i in range(20))))
    changes = state.changes()
    assert changes.overflow
    assert len(changes.series["s"].mem) <= 6
    fold(state, make.numbered(make.mem(21, 3), first=21))
    assert not state.changes().overflow


def test_a_session_that_begins_anew_takes_its_old_points_with_it() -> None:
    state = fold(
        State(),
        make.numbered(make.session_start(0, pid=1), make.mem(1, 50), make.session_end(2), make.session_start(3, pid=2)),
    )
    changes = state.changes()
    assert changes.series == {}
    frame = make.plain(views.frame_view(state, changes, now_us=at(4)))
    assert [session["runtime_bytes"] for session in frame["sessions"]] == [None]


def test_nothing_is_tracked_where_nobody_asks() -> None:
    state = fold(State(track=False), make.numbered(make.session_start(0), make.mem(1, 5)))
    assert not state.changes()
    assert state.sessions["s"].runtime_bytes == 5 * MB


def test_waits_are_each_taken_over_their_own_window() -> None:
    samples = [make.sched(1, 0, 100_000, window_us=1_000_000), make.sched(1, 0, 50_000, call="c1")]
    state = fold(State(), make.numbered(*samples))
    assert state.changes().series["s"].wait == [(at(1), 60.0)]
