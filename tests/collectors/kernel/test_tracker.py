"""The tracker, fed with sequences of events: what it says of sessions, calls and processes left behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.tracker_rig import C1, ROOT, Rig, call, execd, exited, fork
from tidegate_collectors import hints
from tidegate_collectors.kernel.observer import Event, EventKind, SubjectStats
from tidegate_collectors.kernel.tracker import LAUNCHER_GRACE_US
from tidegate_collectors.kernel.tracker_events import HOLD_US
from tidegate_collectors.kernel.tracker_model import (
    UNKNOWN_STATUS,
    CallFigures,
    MovePid,
    PlaceCall,
    TrackCall,
    TrackerError,
)
from tidegate_collectors.records import (
    CallEnd,
    CallStart,
    MemBurst,
    MemEvent,
    ProcExec,
    ProcExit,
    SessionEnd,
    SessionStart,
)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_session_starts_with_what_was_registered(rig: Rig) -> None:
    (start,) = rig.of(SessionStart)
    assert (start.session, start.t, start.pid, start.agent) == ("s", 1000, ROOT, "agent")
    assert (start.priority, start.budget_bytes, start.cgroup) == ("low", 5 << 20, "s")


def test_a_program_that_the_runtime_starts_is_a_call_from_its_fork_to_its_exit(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "pytest", "-q"))
    rig.figures = CallFigures(
        SubjectStats(
            anon_bytes=5,
            peak_bytes=700,
            oncpu_us=40,
            wait_us=3,
            forks=4,
            window_max_bytes=100,
            start_session_bytes=1000,
            max_session_bytes=1650,
            bursts=2,
        ),
        charged_peak_bytes=900,
        stall_us=12,
    )
    rig.feed(exited(9000, C1, 11, 3 << 8))
    (start,) = rig.of(CallStart)
    assert (start.t, start.call, start.pid, start.tool, start.command) == (2000, "c1", 11, "pytest", "pytest -q")
    assert (start.boundary, start.cgroup_id) == ("fork", 501)
    (end,) = rig.of(CallEnd)
    assert (end.t, end.call, end.exit_code, end.signal, end.duration_us) == (9000, "c1", 3, None, 7000)
    assert (end.peak_bytes, end.spike_bytes, end.kept_bytes, end.charged_peak_bytes) == (700, 650, 0, 900)
    assert (end.cpu_us, end.runq_wait_us, end.stall_us) == (40, 3, 12)
    assert end.rise_bytes_per_s == 100 * 10
    assert (end.processes, end.left_behind, end.bursts, end.oom, end.lost) == (5, 0, 2, False, False)
    assert rig.dropped == ["c1"]


@pytest.mark.parametrize(
    ("status", "exit_code", "signal"),
    [(0, 0, None), (1 << 8, 1, None), (255 << 8, 255, None), (9, None, 9), (11 | 0x80, None, 11), (-1, None, None)],
)
def test_exit_codes_and_signals_are_told_apart(
    rig: Rig, status: int, exit_code: int | None, signal: int | None
) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "x"), exited(2500, C1, 11, status))
    (end,) = rig.of(CallEnd)
    assert (end.exit_code, end.signal) == (exit_code, signal)
    assert [(gone.exit_code, gone.signal) for gone in rig.of(ProcExit)] == [(exit_code, signal)]


def test_processes_of_a_call_belong_to_it_and_are_no_calls(rig: Rig) -> None:
    rig.feed(
        fork(2000, 1, 11),
        call(2000, C1, 11, "bash", "-c", "make"),
        fork(2100, C1, 12, 11),
        execd(2101, C1, 12, "make"),
        fork(2200, C1, 13, 12),
        execd(2201, C1, 13, "cc"),
        exited(2300, C1, 13),
        exited(2400, C1, 12),
        exited(2500, C1, 11),
    )
    assert [start.call for start in rig.of(CallStart)] == ["c1"]
    assert [(item.pid, item.call) for item in rig.of(ProcExec)] == [(11, "c1"), (12, "c1"), (13, "c1")]
    assert rig.of(CallEnd)[0].processes == 3
    assert not any(gone.left_behind for gone in rig.of(ProcExit))


def test_a_process_that_outlives_its_call_is_left_behind(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "sh"), fork(2100, C1, 12, 11), fork(2101, C1, 13, 11))
    rig.figures = CallFigures(SubjectStats(anon_bytes=70, shmem_bytes=7, file_bytes=1000))
    rig.feed(exited(3000, C1, 11))
    (end,) = rig.of(CallEnd)
    assert (end.left_behind, end.kept_bytes) == (2, 77)
    assert rig.dropped == []
    rig.feed(exited(4000, C1, 12))
    assert rig.dropped == []
    rig.feed(exited(5000, C1, 13))
    assert rig.dropped == ["c1"]
    assert [(gone.pid, gone.left_behind, gone.call) for gone in rig.of(ProcExit)] == [
        (11, False, "c1"),
        (12, True, "c1"),
        (13, True, "c1"),
    ]
    assert len(rig.of(CallEnd)) == 1


def test_calls_may_overlap(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"), fork(2100, 1, 12), call(2100, C1 + 1, 12, "b"))
    rig.feed(exited(2200, C1, 11), exited(2300, C1 + 1, 12))
    assert [(end.call, end.duration_us) for end in rig.of(CallEnd)] == [("c1", 200), ("c2", 200)]


def test_forked_children_of_the_runtime_that_never_exec_are_no_calls(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), exited(2100, 1, 11))
    assert rig.of(CallStart) == []
    assert [(gone.pid, gone.call) for gone in rig.of(ProcExit)] == [(11, None)]


def test_the_root_may_exec_and_stays_the_runtime(rig: Rig) -> None:
    rig.feed(execd(2000, 1, ROOT, "bash"), execd(2001, 1, ROOT, "node"))
    assert rig.of(CallStart) == []
    assert [(item.comm, item.call) for item in rig.of(ProcExec)] == [("bash", None), ("node", None)]


def test_the_first_exec_of_a_call_is_told_once_and_later_ones_each(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "env"), execd(2001, C1, 11, "env"), execd(2002, C1, 11, "python"))
    assert [item.comm for item in rig.of(ProcExec)] == ["env", "python"]


@pytest.mark.parametrize(
    ("status", "reason", "exit_code", "signal"),
    [(0, "finished", 0, None), (2 << 8, "error", 2, None), (15, "killed", None, 15)],
)
def test_a_session_ends_with_its_root(
    rig: Rig, status: int, reason: str, exit_code: int | None, signal: int | None
) -> None:
    rig.feed(exited(8000, 1, ROOT, status))
    (end,) = rig.of(SessionEnd)
    assert (end.t, end.reason, end.exit_code, end.signal) == (8000, reason, exit_code, signal)
    assert rig.dropped == ["s"]
    assert rig.tracker.sessions == []


def test_only_the_named_victim_ended_by_oom(rig: Rig) -> None:
    rig.feed(Event(EventKind.OOM, 3000, 1, ROOT), exited(3001, 1, ROOT, 9))
    assert rig.of(SessionEnd)[0].reason == "oom"
    assert [(event.oom_kill, event.pid) for event in rig.of(MemEvent)] == [(1, ROOT)]


def test_a_call_says_that_the_oom_killer_chose_it_and_137_alone_does_not(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"), exited(2100, C1, 11, 137 << 8))
    rig.feed(fork(3000, 1, 12), call(3000, C1 + 1, 12, "b"), Event(EventKind.OOM, 3050, C1 + 1, 12))
    rig.feed(exited(3100, C1 + 1, 12, 9))
    assert [end.oom for end in rig.of(CallEnd)] == [False, True]


@pytest.mark.parametrize("figures", [CallFigures(oom_kills=1), CallFigures(SubjectStats(ooms=1))])
def test_the_controllers_count_of_kills_is_believed_too(rig: Rig, figures: CallFigures) -> None:
    rig.figures = figures
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"), exited(2100, C1, 11, 9))
    assert rig.of(CallEnd)[0].oom


def test_calls_and_children_outlive_the_session(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "server"), fork(2500, 1, 12), exited(3000, 1, ROOT))
    assert len(rig.of(SessionEnd)) == 1
    with pytest.raises(TrackerError, match="left processes behind"):
        rig.start("s", 99)
    rig.feed(exited(4000, 1, 12))
    assert [gone.left_behind for gone in rig.of(ProcExit) if gone.pid == 12] == [True]
    assert rig.tracker.sessions != []
    rig.feed(exited(5000, C1, 11))
    assert rig.of(CallEnd)[0].t == 5000
    assert rig.dropped == ["c1", "s"]
    rig.start("s", 99)  # the id is free again


def test_bursts_belong_to_whom_they_happened(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"))
    rig.feed(Event(EventKind.BURST, 2100, C1, 11, a=70, b=90), Event(EventKind.BURST, 2200, 1, ROOT, a=80, b=95))
    bursts = rig.of(MemBurst)
    assert [(burst.call, burst.grown_bytes, burst.total_bytes, burst.pid) for burst in bursts] == [
        ("c1", 70, 90, 11),
        (None, 80, 95, ROOT),
    ]
    assert bursts[0].window_us == 100_000
    rig.feed(exited(2300, C1, 11))
    assert rig.of(CallEnd)[0].bursts == 1


def test_a_call_without_a_group_says_so(rig: Rig) -> None:
    rig.cgroups = False
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"), exited(2001, C1, 11))
    assert rig.of(CallStart)[0].cgroup_id is None
    assert rig.of(CallEnd)[0].stall_us is None


def test_children_forked_before_the_move_are_moved_after_it(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11, cgroup=400), call(2000, C1, 11, "sh"))
    rig.feed(fork(2001, C1, 12, 11, cgroup=400), fork(2002, C1, 13, 11, cgroup=501))
    assert [move.pid for move in rig.commands if isinstance(move, MovePid)] == [12]


# --- explicit boundaries -------------------------------------------------------------------------------------------


def test_a_wrapper_is_announced_when_it_says_what_it_runs(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "/usr/bin/python3", "/opt/bin/tidegate", "exec", "--", "x"))
    assert rig.of(CallStart) == []
    made, outputs = rig.tracker.request_call(
        11, t_us=2500, argv=["pytest"], tool="tests", hint=hints.parse("memory:300m")
    )
    rig.carry_out(outputs)
    rig.feed(execd(2600, C1, 11, "pytest"))
    (start,) = rig.of(CallStart)
    assert made.id == start.call == "c1"
    assert (start.t, start.tool, start.command, start.boundary) == (2000, "tests", "pytest", "wrapper")
    assert (start.hint, start.hint_bytes) == ("memory:300m", 300 << 20)
    assert [item.comm for item in rig.of(ProcExec)] == ["python3", "pytest"]


def test_a_wrapper_that_says_nothing_is_announced_in_the_end(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "tidegate", "exec", "x"))
    rig.carry_out(rig.tracker.due(2000 + HOLD_US - 1))
    assert rig.of(CallStart) == []
    rig.carry_out(rig.tracker.due(2000 + HOLD_US))
    assert rig.of(CallStart)[0].boundary == "fork"
    made, outputs = rig.tracker.request_call(11, t_us=9_000_000, argv=["pytest"])
    assert (made.id, outputs) == ("c1", [])


def test_a_wrapper_that_dies_first_is_told_before_its_end(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "tidegate", "exec", "x"), exited(2100, C1, 11, 127 << 8))
    kinds = [type(record) for record in rig.records if isinstance(record, CallStart | CallEnd)]
    assert kinds == [CallStart, CallEnd]


@pytest.mark.parametrize(
    ("argv", "held"),
    [
        (["tidegate", "exec", "x"], True),
        (["/usr/bin/env", "tidegate", "exec"], True),
        (["python", "-m", "tidegate", "exec"], True),
        (["tidegate", "run", "exec"], False),
        (["git", "exec"], False),
        (["sh", "-c", "tidegate exec x"], False),
    ],
)
def test_wrappers_are_known_by_their_words(rig: Rig, argv: Sequence[str], held: bool) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, *argv))
    assert (rig.of(CallStart) == []) == held


def test_a_process_inside_a_call_can_begin_a_call_of_its_own(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "sh"), fork(2100, C1, 12, 11))
    made, outputs = rig.tracker.request_call(12, t_us=2200, argv=["pytest"])
    rig.carry_out(outputs)
    assert made.id == "c2"
    (track,) = [command for command in rig.commands if isinstance(command, TrackCall)]
    assert (track.pid, track.subject, track.runtime_subject) == (12, made.subject, 1)
    rig.feed(exited(2300, made.subject, 12), exited(2400, C1, 11))
    assert [(end.call, end.left_behind) for end in rig.of(CallEnd)] == [("c2", 0), ("c1", 0)]


def test_an_end_that_carries_the_subject_before_the_boundary_is_understood(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11))
    made, outputs = rig.tracker.request_call(11, t_us=2100, argv=["x"])
    rig.carry_out(outputs)
    rig.feed(exited(2200, 1, 11))
    assert rig.of(CallEnd)[0].call == made.id


@pytest.mark.parametrize(("pid", "reason"), [(ROOT, "is the root"), (4711, "belongs to no session")])
def test_calls_of_others_and_of_the_root_are_refused(rig: Rig, pid: int, reason: str) -> None:
    with pytest.raises(TrackerError, match=reason):
        rig.tracker.request_call(pid, t_us=1, argv=["x"])


def test_ids_in_use_and_nested_sessions_are_refused(rig: Rig) -> None:
    with pytest.raises(TrackerError, match="session s is running; choose another"):
        rig.start("s", 99)
    rig.feed(fork(2000, 1, 11))
    with pytest.raises(TrackerError, match="part of session s already"):
        rig.start("t", 11)


def test_a_process_whose_fork_was_not_told_is_taken_in_by_its_parent(rig: Rig) -> None:
    rig.tracker.take_in(11, ROOT, "x", 1500)
    rig.feed(fork(1400, 1, 11))  # the late event changes nothing
    owned = rig.tracker.owner(11)
    assert owned is not None
    assert owned[0].id == "s"


# --- what gets lost ------------------------------------------------------------------------------------------------


def test_a_call_whose_first_event_was_lost_begins_with_the_first_that_came(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), execd(2500, C1, 11, "cc"), exited(3000, C1, 11))
    (start,) = rig.of(CallStart)
    assert (start.t, start.tool, start.pid) == (2500, "cc", 11)
    assert rig.of(CallEnd)[0].processes == 1
    rig.feed(exited(4000, 1, ROOT))
    assert rig.tracker.sessions == []


def test_lost_ends_are_made_up_for(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"))
    rig.carry_out(rig.tracker.lost_exit(11, 5000))
    (end,) = rig.of(CallEnd)
    assert (end.t, end.exit_code, end.signal) == (5000, None, None)
    rig.carry_out(rig.tracker.lost_exit(11, 6000))
    assert len(rig.of(CallEnd)) == 1


def test_a_pid_that_comes_again_ends_the_process_that_had_it(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"), fork(9000, 1, 11), call(9000, C1 + 1, 11, "b"))
    assert [(end.call, end.t) for end in rig.of(CallEnd)] == [("c1", 9000)]
    assert [start.call for start in rig.of(CallStart)] == ["c1", "c2"]


def test_a_call_takes_a_fork_whose_time_was_converted_otherwise(rig: Rig) -> None:
    """GIVEN the clock's offset moved between the two events THEN the process is still the same one."""
    rig.feed(fork(2000, 1, 11), call(1997, C1, 11, "a"))
    assert rig.of(ProcExit) == []
    assert rig.of(CallStart)[0].t == 1997


def test_events_of_strangers_are_counted_and_change_nothing(rig: Rig) -> None:
    before = len(rig.records)
    rig.feed(fork(2000, 77, 11, 999), exited(2000, 77, 11), call(1, C1, 5, "x", runtime=77))
    rig.feed(Event(EventKind.BURST, 1, 77, 5), Event(EventKind.LATENCY, 1, 1, ROOT, a=9))
    assert len(rig.records) == before
    assert rig.tracker.strays == 4


# --- the launcher's word -------------------------------------------------------------------------------------------


def test_without_a_status_the_launcher_says_how_it_ended(rig: Rig) -> None:
    rig.feed(exited(5000, 1, ROOT, UNKNOWN_STATUS))
    assert rig.of(SessionEnd) == []
    rig.carry_out(rig.tracker.launcher_ended("s", 9, 4 << 8, 5100))
    (end,) = rig.of(SessionEnd)
    assert (end.t, end.exit_code, end.reason) == (5000, 4, "error")
    assert rig.dropped == ["s"]


def test_the_launcher_may_speak_first(rig: Rig) -> None:
    rig.carry_out(rig.tracker.launcher_ended("s", 9, 4 << 8, 5000))
    rig.feed(exited(5100, 1, ROOT, UNKNOWN_STATUS))
    assert rig.of(SessionEnd)[0].exit_code == 4


def test_the_event_is_believed_before_the_launcher(rig: Rig) -> None:
    rig.carry_out(rig.tracker.launcher_ended("s", 9, 4 << 8, 5000))
    rig.feed(exited(5100, 1, ROOT, 9))
    assert rig.of(SessionEnd)[0].signal == 9


def test_neither_waits_for_the_other_for_ever(rig: Rig) -> None:
    rig.feed(exited(5000, 1, ROOT, UNKNOWN_STATUS))
    rig.carry_out(rig.tracker.due(5000 + LAUNCHER_GRACE_US))
    assert (rig.of(SessionEnd)[0].exit_code, rig.of(SessionEnd)[0].signal) == (None, None)
    other = Rig()
    other.carry_out(other.tracker.launcher_ended("s", 9, 0, 5000))
    other.carry_out(other.tracker.due(5000 + LAUNCHER_GRACE_US - 1))
    assert other.of(SessionEnd) == []
    other.carry_out(other.tracker.due(5000 + LAUNCHER_GRACE_US))
    assert other.of(SessionEnd)[0].exit_code == 0


def test_only_the_launcher_may_say_it(rig: Rig) -> None:
    with pytest.raises(TrackerError, match="did not launch"):
        rig.tracker.launcher_ended("s", 10, 0, 5000)
    assert rig.tracker.launcher_ended("unknown", 10, 0, 5000) == []


# --- runs and the end of the collector -----------------------------------------------------------------------------


def test_what_is_open_is_announced_again(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"), fork(2100, 1, 12), call(2100, C1 + 1, 12, "b"))
    rig.feed(fork(2200, C1, 13, 11), exited(2300, C1, 11))  # c1 has ended, a process of it lives
    again = rig.tracker.announce()
    assert [(type(record), record.call, record.t) for record in again] == [
        (SessionStart, None, 1000),
        (CallStart, "c2", 2100),
    ]
    assert again[1] == rig.of(CallStart)[1]


def test_a_session_that_ended_is_not_announced_but_its_running_call_is(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"), exited(3000, 1, ROOT))
    assert [type(record) for record in rig.tracker.announce()] == [CallStart]


def test_a_collector_that_stops_says_that_ends_will_not_be_seen(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"), fork(2100, 1, 12), call(2100, C1 + 1, 12, "tidegate", "exec"))
    outputs: list[Any] = rig.tracker.shutdown(7000)
    ends = [output for output in outputs if isinstance(output, CallEnd)]
    assert [(end.call, end.lost, end.exit_code, end.peak_bytes) for end in ends] == [("c1", True, None, None)]
    (session,) = [output for output in outputs if isinstance(output, SessionEnd)]
    assert (session.session, session.t, session.lost) == ("s", 7000, True)


def test_numbers_of_calls_go_on_where_an_earlier_session_stopped() -> None:
    rig = Rig(first_call=41)
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"), fork(2100, 1, 12), call(2100, C1 + 1, 12, "b"))
    assert [start.call for start in rig.of(CallStart)] == ["c41", "c42"]
    assert rig.tracker.sessions[0].next_call == 43


def test_a_repeated_call_event_is_one_call(rig: Rig) -> None:
    rig.feed(fork(2000, 1, 11), call(2000, C1, 11, "a"), call(2000, C1, 11, "a"))
    assert len([command for command in rig.commands if isinstance(command, PlaceCall)]) == 1


def test_thousands_of_calls_at_once_cost_no_more_each() -> None:
    """An event must not cost what there is of calls: a fork storm would stop the collector for seconds."""
    count, rig = 4000, Rig()
    began = time.process_time()
    for n in range(count):
        rig.feed(fork(2000 + n, 1, 100 + n), call(2000 + n, C1 + n, 100 + n, "sleep"))
    rig.feed(*(exited(9000 + n, C1 + n, 100 + n) for n in range(count)))
    assert time.process_time() - began < 1.5, "0.3 s are usual, 6 s were"
    assert len(rig.dropped) == len(rig.of(CallEnd)) == count
    assert rig.tracker.pids() == [ROOT]
