"""Sessions: begin, end, are announced again, get lost, and ids are used again."""

from __future__ import annotations

from typing import Any

from tests.support import records as make
from tests.support.records import MB, at
from tidegate.fold import State, fold, sessions, views
from tidegate.fold.limits import Limits
from tidegate.fold.shapes import SessionView
from tidegate_collectors.records import Loss, MemEvent, RunEnd, RunMeta


def session_of(*stream: Any, name: str = "s") -> SessionView:
    state = fold(State(), make.numbered(*stream))
    return views.session_view(state.sessions[name])


def test_a_session_from_start_to_end() -> None:
    view = session_of(
        make.session_start(0, title="fix it", priority="high", budget_bytes=5 * MB, pid=7),
        make.mem(0.1, 180),
        make.call_start(0.15),
        make.mem(0.2, 181),
        make.mem(0.2, 40, call="c1"),
        make.call_end(1, duration_us=850_000, peak_bytes=400 * MB, left_behind=1),
        make.session_end(2, exit_code=3, reason="error"),
    )
    assert (view.title, view.priority, view.budget_bytes) == ("fix it", "high", 5 * MB)
    assert (view.state, view.end_reason, view.exit_code) == ("ended", "error", 3)
    assert (view.started_us, view.ended_us, view.last_t_us) == (at(0), at(2), at(2))
    assert (view.runtime_bytes, view.calls_bytes, view.calls_total, view.calls_running) == (0, 0, 1, 0)
    assert view.tool_time_us == 850_000
    assert view.left_behind == 1
    assert view.current is None


def test_a_running_call_is_the_current_one() -> None:
    view = session_of(
        make.session_start(0),
        make.call_start(1, "c1"),
        make.call_start(2, "c2", tool="git", category="git", command="git diff"),
        make.mem(3, 12, call="c2"),
    )
    assert view.current is not None
    assert (view.current.id, view.current.command, view.current.bytes) == ("c2", "git diff", 12 * MB)
    assert view.calls_running == 2


def test_overlapping_calls_count_once_in_tool_time() -> None:
    view = session_of(
        make.session_start(0),
        make.call_start(1, "c1"),
        make.call_start(2, "c2"),
        make.call_end(4, "c1"),
        make.call_end(5, "c2"),
        make.call_start(7, "c3"),
        make.mem(8, 1),
    )
    assert view.tool_time_us == 5_000_000  # 1..5 and 7..8, still running


def test_a_peak_between_two_samples_is_known_from_the_kernel() -> None:
    without_session_samples = session_of(make.session_start(0), make.mem(1, 100, 100), make.mem(2, 100, 900))
    assert without_session_samples.peak_bytes == 900 * MB
    with_them = session_of(
        make.session_start(0),
        make.mem(1, 100, 150),
        make.mem(1, 50, 800, call="c1"),
        make.mem(1, 150, 870, subject="session"),
    )
    assert with_them.peak_bytes == 870 * MB


def test_calls_that_trade_memory_within_a_tick_make_no_false_peak() -> None:
    view = session_of(
        make.session_start(0),
        make.mem(1, 500, call="c1"),
        make.mem(1, 0, call="c2"),
        make.mem(2, 500, call="c2"),  # for a moment both hold 500 in the records, but never did on the host
        make.mem(2, 0, call="c1"),
        make.mem(3, 0, call="c1"),
    )
    assert view.peak_bytes == 500 * MB


def test_the_runtime_is_what_calls_do_not_hold_where_only_the_session_is_sampled() -> None:
    view = session_of(make.session_start(0), make.mem(1, 40, call="c1"), make.mem(1, 240, subject="session"))
    assert (view.runtime_bytes, view.calls_bytes) == (200 * MB, 40 * MB)


def test_bursts_and_oom_kills_are_counted() -> None:
    view = session_of(
        make.session_start(0),
        make.call_start(1),
        make.burst(1.1, 100, 120, call="c1"),
        make.burst(1.2, 100, 320),
        MemEvent(v=1, t=at(1.3), session="s", call="c1", oom_kill=1),
        make.call_end(2, oom=True),  # the same victim, told again at the end
        make.call_start(3, "c2"),
        make.call_end(4, "c2", oom=True),
    )
    assert (view.bursts, view.bursts_in_calls, view.ooms) == (2, 1, 2)
    assert view.peak_bytes == 440 * MB  # 120 of the call and 320 of the runtime at one time


def test_times_of_a_session_are_the_sum_of_runtime_and_calls() -> None:
    stream = [
        make.session_start(0),
        make.call_start(0.05),
        make.sched(0.1, 1000, 100),
        make.sched(0.1, 5000, 300, call="c1"),
        make.call_end(0.15, cpu_us=9000, runq_wait_us=300, stall_us=70),  # 4000 more since its last sample
        make.psi(0.2, 40, subject="runtime"),
    ]
    view = session_of(*stream)
    assert (view.cpu_us, view.wait_us, view.stall_us) == (10_000, 400, 110)
    whole = session_of(*stream, make.sched(0.2, 77, 7, subject="session"), make.psi(0.2, 5))
    assert (whole.cpu_us, whole.wait_us, whole.stall_us) == (77, 7, 5)  # where the whole is sampled, that counts


def test_unknown_stays_unknown() -> None:
    view = session_of(make.session_start(0))
    unknown = (view.runtime_bytes, view.calls_bytes, view.peak_bytes, view.cpu_us, view.wait_us, view.stall_us)
    assert unknown == (None,) * 6


def test_samples_of_a_session_that_was_never_announced_make_it_known() -> None:
    view = session_of(make.mem(1, 10))
    assert (view.state, view.started_us, view.runtime_bytes) == ("running", None, 10 * MB)
    later = session_of(make.mem(1, 10), make.session_start(0, title="late"))
    assert (later.started_us, later.title, later.runtime_bytes) == (at(0), "late", 10 * MB)


def test_a_repeated_announcement_changes_nothing() -> None:
    once = [make.session_start(0, pid=5), make.call_start(1), make.mem(2, 10, call="c1")]
    assert session_of(*once) == session_of(*once, *once[:2])


def test_an_id_that_is_used_again_is_a_new_session() -> None:
    first = [make.session_start(0, pid=5), make.call_start(1), make.call_end(2), make.mem(2.5, 90)]
    for end in ([make.session_end(3)], []):  # also when the end was missed: another process has the id
        view = session_of(*first, *end, make.session_start(4, pid=6))
        assert (view.started_us, view.state, view.calls_total, view.runtime_bytes) == (at(4), "running", 0, None)


def test_a_late_end_does_not_end_the_session_that_has_the_id_now() -> None:
    view = session_of(
        make.session_start(0, pid=5), make.session_end(1), make.session_start(2, pid=6), make.session_end(1.5)
    )
    assert view.state == "running"


def test_a_session_whose_collector_stopped_is_lost_not_ended() -> None:
    view = session_of(make.session_start(0), make.call_start(1), make.session_end(3, lost=True))
    assert (view.state, view.ended_us, view.end_reason, view.calls_running) == ("lost", None, None, 0)


def test_sessions_are_lost_with_the_end_of_the_run() -> None:
    state = fold(
        State(),
        make.numbered(
            RunMeta(v=1, t=at(0), run="r1", title="t", source="recorded"),
            make.session_start(0),
            make.call_start(1),
            make.mem(2, 30, call="c1"),
            RunEnd(v=1, t=at(3)),
        ),
    )
    view = views.session_view(state.sessions["s"])
    assert (view.state, view.ended_us, view.calls_running, view.calls_bytes) == ("lost", None, 0, 0)
    assert views.call_views(state.sessions["s"])[0].state == "lost"
    assert (views.run_view(state).id, views.run_view(state).ended_us) == ("r1", at(3))


def test_sessions_are_lost_when_their_collector_starts_anew_until_it_speaks_of_them() -> None:
    stream = [make.session_start(0), make.call_start(1), make.session_start(1, "engine-made", src="gateway-1")]
    new: dict[str, Any] = {"src": "kernel-0002"}
    state = fold(State(), make.numbered(*stream, make.host(5, 100, **new)))
    assert state.sessions["s"].phase == "lost"
    assert state.sessions["engine-made"].phase == "running"
    again = fold(state, make.numbered(make.session_start(0, **new), make.call_start(1, **new), first=10))
    view = views.session_view(again.sessions["s"])
    assert (view.state, view.calls_running, view.calls_total) == ("running", 1, 1)


def test_a_collector_that_is_gone_loses_its_sessions_and_calls_until_it_comes_back() -> None:
    def gone(s: float, src: str) -> Loss:
        return Loss(v=1, t=at(s), where="link", count=0, of=src)

    stream = [make.session_start(0), make.call_start(1), make.mem(2, 10, call="c1")]
    src = make.numbered(*stream)[0][1].src
    state = fold(State(), make.numbered(*stream, gone(3, "kernel-of-another")))
    assert state.sessions["s"].phase == "running"
    fold(state, make.numbered(gone(4, src), first=10))
    view, (call,) = views.session_view(state.sessions["s"]), views.call_views(state.sessions["s"])
    assert (view.state, view.calls_running, view.ended_us) == ("lost", 0, None)
    assert (call.state, call.ended_us, call.duration_us) == ("lost", None, None)
    fold(state, make.numbered(make.mem(5, 10, call="c1"), first=20))
    view, (call,) = views.session_view(state.sessions["s"]), views.call_views(state.sessions["s"])
    assert (view.state, view.calls_running, call.state) == ("running", 1, "running")


def test_a_collector_of_another_host_does_not_lose_them() -> None:
    state = fold(State(), make.numbered(make.session_start(0), make.host(5, 1, src="kernel-0002", host="other")))
    assert state.sessions["s"].phase == "running"


def test_losses_are_added_up_by_place() -> None:
    state = fold(
        State(),
        make.numbered(
            Loss(v=1, t=at(1), where="link", count=3, of="samples"),
            Loss(v=1, t=at(2), where="link", count=4, of="samples"),
            Loss(v=1, t=at(1), where="bpf_ring", count=9, of="events"),
        ),
    )
    lost = views.lost_view(state)
    assert lost.total == 16
    assert [(place.where, place.count, place.last_t_us) for place in lost.by] == [
        ("bpf_ring", 9, at(1)),
        ("link", 7, at(2)),
    ]


def test_long_names_are_shortened_and_stay_apart() -> None:
    names = ["n" * 5000 + end for end in ("a", "b")]
    state = fold(State(), make.numbered(*(make.session_start(0, name, title="t" * 9999) for name in names)))
    assert len(state.sessions) == 2
    for session in state.sessions.values():
        assert len(session.id) <= 256
        assert len(session.title) <= 2048


def test_lost_sessions_make_room_before_running_ones() -> None:
    state = State(Limits(sessions=3))
    fold(
        state,
        make.numbered(*(make.session_start(n, session=name) for n, name in enumerate(("run", "lost-1", "lost-2")))),
    )
    for name in ("lost-1", "lost-2"):
        sessions.lose(state, state.sessions[name])
    fold(state, make.numbered(make.session_start(9, session="new"), first=10))
    assert list(state.sessions) == ["run", "lost-2", "new"]


def test_a_session_had_at_least_what_its_calls_had() -> None:
    """The kernel's last word on the session may be older than the end of a short call."""
    view = session_of(
        make.session_start(0), make.mem(1, 30, subject="session", peak_bytes=40_000_000), make.call_start(1.1),
        make.call_end(1.2, peak_bytes=900_000_000),
    )  # fmt: skip
    assert view.peak_bytes == 900_000_000


def test_tool_time_is_no_longer_than_the_session() -> None:
    view = session_of(make.session_start(0), make.call_start(1), make.session_end(4), make.call_end(20))
    assert view.tool_time_us == 4_000_000


def test_the_sparkline_ends_with_what_is_there_now() -> None:
    state = fold(
        State(),
        make.numbered(
            make.session_start(0), make.call_start(1), make.mem(2, 30, call="c1"), make.session_end(3),
            make.call_end(4, peak_bytes=900_000_000, kept_bytes=0),
        ),
    )  # fmt: skip
    points = views.spark_points(state.sessions["s"])
    assert max(calls for _, _, calls in points) == 900_000_000
    assert points[-1][1:] == (0, 0), "nothing of it is left, and no record will come to say so"
