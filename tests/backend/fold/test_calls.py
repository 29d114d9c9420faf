"""Calls and their processes."""

from __future__ import annotations

from typing import Any

from tests.support import records as make
from tests.support.records import MB, at
from tidegate.fold import Limits, State, fold, views
from tidegate.fold.model import Call
from tidegate.fold.neighbours import neighbours
from tidegate.fold.shapes import CallView
from tidegate_collectors.records import ProcExec, ProcExit, Record


def state_of(*stream: Any) -> State:
    return fold(State(), make.numbered(*stream))


def call_of(*stream: Any, call: str = "c1") -> CallView:
    return views.call_view(state_of(*stream).sessions["s"].calls[call])


def exec_(seconds: float, pid: int, comm: str = "sh", call: str | None = "c1") -> Record:
    return ProcExec(v=1, t=at(seconds), session="s", call=call, pid=pid, ppid=1, comm=comm)


def exit_(seconds: float, pid: int, call: str | None = "c1", **fields: Any) -> Record:
    return ProcExit(v=1, t=at(seconds), session="s", call=call, pid=pid, **fields)


def test_all_figures_of_an_ended_call() -> None:
    figures: dict[str, Any] = {
        "exit_code": None, "signal": 9, "oom": True, "duration_us": 1_500_000, "spike_bytes": 2, "kept_bytes": 3,
        "charged_peak_bytes": 4, "rise_bytes_per_s": 5, "cpu_us": 6, "stall_us": 8, "processes": 9, "left_behind": 1,
        "bursts": 11,
    }  # fmt: skip
    view = call_of(
        make.session_start(0),
        make.call_start(1, hint="memory:1g", hint_bytes=1 << 30, cgroup_id=77, pid=5, boundary="wrapper", command="x"),
        make.call_end(2.5, runq_wait_us=7, peak_bytes=10, **figures),
    )
    for name, value in figures.items():
        assert getattr(view, name) == value, name
    assert (view.wait_us, view.peak_bytes, view.state, view.bytes) == (7, 10, "ended", 3)  # what it kept
    assert (view.hint, view.hint_bytes, view.cgroup_id, view.pid) == ("memory:1g", 1 << 30, 77, 5)
    assert (view.boundary, view.command, view.tool, view.category) == ("wrapper", "x", "pytest", "tests")
    assert (view.started_us, view.ended_us, view.ordinal, view.lane) == (at(1), at(2.5), 1, 0)


def test_a_running_call_shows_what_its_samples_say() -> None:
    view = call_of(
        make.session_start(0),
        make.call_start(1),
        make.mem(1.1, 50, 200, call="c1"),
        make.sched(1.1, 900, 30, call="c1"),
        make.sched(1.2, 100, 20, call="c1"),
        make.burst(1.3, 300, 350, call="c1"),
    )
    assert (view.state, view.bytes, view.peak_bytes) == ("running", 350 * MB, 350 * MB)
    assert (view.cpu_us, view.wait_us, view.bursts) == (1000, 50, 1)
    assert view.rise_bytes_per_s == 3000 * MB
    assert (view.duration_us, view.ended_us) == (None, None)


def test_an_end_without_a_start_is_a_call_all_the_same() -> None:
    view = call_of(make.call_end(5, duration_us=2_000_000))
    assert (view.started_us, view.duration_us, view.state, view.tool) == (at(3), 2_000_000, "ended", "")


def test_a_start_that_comes_after_the_end_fills_in_what_is_missing() -> None:
    state = state_of(make.session_start(0), make.call_end(5, peak_bytes=9), make.call_start(3, category="git"))
    session = state.sessions["s"]
    view = views.call_view(session.calls["c1"])
    assert (view.state, view.started_us, view.duration_us, view.category) == ("ended", at(3), 2_000_000, "git")
    assert views.session_view(session).tool_time_us == 2_000_000
    assert not session.running


def test_a_call_whose_end_was_not_seen_is_lost_and_has_no_duration() -> None:
    state = state_of(make.session_start(0), make.call_start(1), make.call_end(9, lost=True, exit_code=None))
    view = views.call_view(state.sessions["s"].calls["c1"])
    assert (view.state, view.duration_us, view.exit_code) == ("lost", None, None)
    assert views.session_view(state.sessions["s"]).tool_time_us == 0


def test_a_second_end_is_ignored() -> None:
    view = call_of(make.call_start(1), make.call_end(2), make.call_end(3, exit_code=1))
    assert (view.exit_code, view.ended_us) == (0, at(2))


def test_samples_from_before_the_end_do_not_bring_a_call_back() -> None:
    state = state_of(make.call_start(1), make.call_end(2, peak_bytes=9), make.mem(1.9, 50, call="c1"))
    assert state.sessions["s"].calls_bytes == 0


def test_what_is_left_behind_counts_as_long_as_it_is_sampled() -> None:
    state = state_of(make.call_start(1), make.call_end(2, kept_bytes=9), make.mem(2.1, 50, call="c1"))
    assert state.sessions["s"].calls_bytes == 50 * MB
    assert views.session_view(state.sessions["s"]).calls_running == 0


def test_overlapping_calls_lie_in_different_lanes() -> None:
    state = state_of(
        make.call_start(1, "a"), make.call_start(2, "b"), make.call_end(3, "a"), make.call_start(4, "c"),
        make.call_start(5, "d"),
    )  # fmt: skip
    assert [call.lane for call in views.call_views(state.sessions["s"])] == [0, 1, 0, 2]


def test_neighbours_are_found_by_time() -> None:
    state = state_of(
        make.call_start(1, "a"), make.call_end(2, "a"), make.call_start(3, "b"), make.call_start(4, "c"),
        make.call_end(6, "c"), make.call_end(7, "b"), make.call_start(8, "d"),
    )  # fmt: skip
    session = state.sessions["s"]
    around = neighbours(session, session.calls["b"])
    assert around.previous is not None
    assert around.next is not None
    assert (around.previous.id, around.next.id) == ("a", "c")
    assert [call.id for call in around.overlapping] == ["c"]


def processes_of(*stream: Any) -> Call:
    return state_of(make.call_start(0, pid=10), *stream).sessions["s"].calls["c1"]


def test_processes_of_a_call() -> None:
    call = processes_of(
        exec_(0, 10, "bash"),
        exec_(1, 11, "python3"),
        exec_(1.5, 10, "pytest"),  # the same process runs another program
        exit_(2, 11, exit_code=1, hiwater_bytes=99),
        exec_(3, 12, "sleep"),
        exit_(4, 10, exit_code=0),
        make.call_end(4, left_behind=1),
    )
    shown = views.processes_view(call.processes)
    assert [(p.pid, p.comm, p.exit_code, p.left_behind) for p in shown] == [
        (10, "pytest", 0, False),
        (11, "python3", 1, False),
        (12, "sleep", None, True),
    ]
    assert shown[1].hiwater_bytes == 99


def test_a_process_number_that_is_used_again_is_a_new_process() -> None:
    call = processes_of(exec_(1, 11, "a"), exit_(2, 11), exec_(3, 11, "b"))
    assert [(p.comm, p.ended_us) for p in views.processes_view(call.processes)] == [("a", at(2)), ("b", None)]


def test_an_exec_that_comes_after_the_exit_is_the_same_process() -> None:
    call = processes_of(exit_(2, 11), exec_(1, 11, "a"))
    assert [(p.comm, p.started_us, p.ended_us) for p in views.processes_view(call.processes)] == [("a", at(1), at(2))]


def test_many_processes_are_counted_but_not_kept() -> None:
    stream = [make.call_start(0)] + [exec_(1, pid) for pid in range(2, 302)]
    state = fold(State(Limits(processes=100)), make.numbered(*stream))
    call = state.sessions["s"].calls["c1"]
    assert len(views.processes_view(call.processes)) == 100
    assert call.processes.omitted == 200
    assert views.call_view(call).processes == 300


def test_the_oldest_ended_calls_leave_first() -> None:
    stream: list[Any] = [make.call_start(0, "running")]
    for i in range(50):
        stream += [make.call_start(i, f"c{i}"), make.call_end(i + 0.5, f"c{i}")]
    session = fold(State(Limits(calls=10)), make.numbered(*stream)).sessions["s"]
    assert len(session.calls) <= 10
    assert {"running", "c49"} <= session.calls.keys()
    assert views.session_view(session).calls_total == 51


def test_memory_of_processes_left_behind_goes_with_the_last_of_them() -> None:
    stream = [
        make.call_start(0, pid=10),
        exec_(0.5, 11, "daemon"),
        make.call_end(1, kept_bytes=30 * MB),
    ]
    session = state_of(*stream).sessions["s"]
    assert session.calls_bytes == 30 * MB
    session = state_of(*stream, make.mem(1.5, 35, call="c1")).sessions["s"]
    assert session.calls_bytes == 35 * MB
    session = state_of(*stream, make.mem(1.5, 35, call="c1"), exit_(2, 11, left_behind=True)).sessions["s"]
    assert session.calls_bytes == 0


def test_memory_of_processes_left_behind_is_forgotten_when_nobody_samples_it() -> None:
    stream = [make.call_start(0), make.call_end(1, kept_bytes=30 * MB), make.mem(1.5, 35, call="c1")]
    session = state_of(*stream, *(make.mem(2 + i / 10, 5) for i in range(15))).sessions["s"]
    assert session.calls_bytes == 35 * MB
    session = state_of(*stream, *(make.mem(2 + i / 10, 5) for i in range(25))).sessions["s"]
    assert session.calls_bytes == 0
