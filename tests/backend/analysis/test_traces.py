"""Figures of a trace that was made up: a second apart, idle at 200 MB."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.analysis.columns import F8
from tidegate.analysis.running_average import rebuild
from tidegate.analysis.trace_bursts import burst_events, samples_above
from tidegate.analysis.trace_capacity import MAX_TRACE_US, capacity
from tidegate.analysis.trace_retries import repeated_tests, shell_runs
from tidegate.analysis.traces import (
    MB,
    Trace,
    TraceCall,
    change_rates,
    cores,
    idle_bytes,
    in_calls,
    mean_bytes,
    peak_bytes,
    peak_over_mean,
    spikes,
    tool_share,
    traces_of,
)
from tidegate_collectors.records import AnyRecord, CallEnd, CallStart, MemSample, SchedSample

SECOND = 1_000_000


def call(id_: str, start_s: float, end_s: float | None, *, tool: str = "Bash", **more: str) -> TraceCall:
    ended_us = None if end_s is None else round(end_s * SECOND)
    command = more.get("command")
    return TraceCall(id_, tool, more.get("category", "other"), command, round(start_s * SECOND), ended_us)


def made(memory_mb: Sequence[float], calls: list[TraceCall] | None = None, t_s: list[float] | None = None) -> Trace:
    t_us = np.array([round(t * SECOND) for t in t_s or range(len(memory_mb))], dtype=np.int64)
    none = np.empty(0, dtype=np.int64)
    used = np.array([round(value * MB) for value in memory_mb], dtype=np.int64)
    return Trace("s", t_us, used, none, none, none, tuple(sorted(calls or [], key=lambda one: one.started_us)))


def test_records_become_traces_by_session() -> None:
    records: list[AnyRecord] = [
        MemSample(t=2, session="a", subject="session", anon_bytes=5, shmem_bytes=2),
        MemSample(t=1, session="a", subject="session", anon_bytes=3),
        MemSample(t=1, session="a", subject="runtime", anon_bytes=99),
        SchedSample(t=2, session="a", subject="session", oncpu_us=50, window_us=100),
        SchedSample(t=2, session="a", subject="call", call="c", oncpu_us=1, window_us=100),
        CallStart(t=1, session="b", call="y", tool="Read", category="read"),
        CallStart(t=0, session="b", call="x", tool="Bash", category="git", command="git diff"),
        CallEnd(t=4, session="b", call="x"),
        CallEnd(t=4, session="b", call="y", lost=True),
    ]
    found = traces_of(records)

    assert list(found) == ["a", "b"]
    assert found["a"].t_us.tolist() == [1, 2]
    assert found["a"].used_bytes.tolist() == [3, 7]
    assert cores(found["a"]).tolist() == [0.5]
    assert [(one.id, one.ended_us) for one in found["b"].calls] == [("x", 4), ("y", None)]
    assert (peak_bytes(found["b"]), mean_bytes(found["b"]), peak_over_mean(found["b"])) == (None, None, None)


def test_peak_mean_and_idle_layer() -> None:
    trace = made([200, 1000, 200, 210], [call("c", 0.5, 1.5)])

    assert peak_bytes(trace) == 1000 * MB
    assert peak_over_mean(trace) == pytest.approx(1000 / 402.5)
    assert idle_bytes(trace) == 200 * MB
    assert in_calls(trace, trace.t_us).tolist() == [False, True, False, False]
    assert idle_bytes(made([1], [call("c", 0, 5)])) is None


def test_tools_that_overlap_take_their_time_once() -> None:
    trace = made([1], [call("a", 1, 4), call("b", 2, 6), call("c", 9, 20), call("open", 3, None)])

    assert tool_share(trace, 0, 10 * SECOND) == pytest.approx(0.6)
    assert tool_share(trace, 5, 5) is None


def test_bursts_are_events_with_a_length() -> None:
    memory = [200, 200, 350, 400, 250, 200, 310, 200, 200, 320]
    trace = made(memory, [call("a", 3, 3.5)])
    events = burst_events(trace)

    assert [(event.from_us // SECOND, event.to_us // SECOND, event.samples) for event in events] == [
        (2, 4, 2), (6, 7, 1), (9, 9, 1)
    ]  # fmt: skip
    assert [event.peak_bytes // MB for event in events] == [400, 310, 320]
    assert [event.in_call for event in events] == [True, False, False]
    assert samples_above(trace, 300 * MB) == (4, 1)


def test_a_spike_is_told_from_the_last_sample_before_the_call() -> None:
    calls = [call("up", 0.5, 2.5), call("down", 4.2, 5.5), call("short", 3.95, 4.02), call("between", 6.1, 6.9)]
    trace = made([200, 500, 400, 300, 250, 240, 240], calls)

    assert spikes(trace) == {"up": 300 * MB, "down": -10 * MB}
    assert spikes(trace, min_us=0) == {"up": 300 * MB, "down": -10 * MB, "short": -50 * MB}


def test_a_call_before_the_first_sample_has_no_spike() -> None:
    assert spikes(made([200, 300], [call("c", -1, 1.5)])) == {}


def test_rates_leave_gaps_out() -> None:
    trace = made([100, 200, 200, 900], t_s=[0, 0.5, 1.5, 4])

    assert change_rates(trace).tolist() == [200 * MB, 0]


def test_loose_retries_are_three_shell_calls_in_a_row() -> None:
    calls = [
        call("a", 0, 1), call("b", 1, 2), call("read", 2, 2.5, tool="Read"),
        call("c", 3, 4), call("d", 4, 5), call("e", 4.5, 5.5),
    ]  # fmt: skip
    trace = made([200, 200, 200, 210, 300, 300, 260, 250], calls)
    (group,) = shell_runs(trace)

    assert [one.id for one in group.calls] == ["c", "d", "e"]
    assert group.covered_us == round(2.5 * SECOND)
    assert group.kept_bytes == 50 * MB  # 260 at 6 s less 210 at 3 s


def test_strict_retries_are_the_same_test_command() -> None:
    def test(id_: str, start_s: float, command: str = "python -m pytest") -> TraceCall:
        return call(id_, start_s, start_s + 0.5, category="tests", command=command)

    calls = [test("a", 0), call("git", 1, 2, category="git", command="git diff"), test("b", 3), test("other", 4, "tox")]
    assert repeated_tests(made([1], calls)) == []
    (group,) = repeated_tests(made([1], [*calls, test("c", 5)]))
    assert [one.id for one in group.calls] == ["a", "b", "c"]
    assert group.kept_bytes is None


@given(
    load=st.lists(st.floats(0, 24), min_size=3, max_size=200),
    age_s=st.floats(0.1, 5),
    spacing_s=st.floats(0.1, 2),
)
def test_cpu_time_never_falls_beyond_the_rounding(load: list[float], age_s: float, spacing_s: float) -> None:
    """Whatever the load was and however old the container."""
    epoch_s, percent, _ = _averages(np.array(load), age_s, spacing_s)
    average = rebuild(epoch_s, percent)

    assert (average.falls, average.steps) == (0, len(load) - 1)
    assert average.age_s >= age_s - 0.05
    assert bool((np.diff(average.used_s) >= 0).all())


def _averages(load: F8, age_s: float, spacing_s: float = 1.0) -> tuple[F8, F8, F8]:
    """Times, running averages and CPU times of a container under a load, in cores."""
    epoch_s: F8 = 1.79e9 + np.arange(len(load), dtype=np.float64) * spacing_s
    since_s = epoch_s - epoch_s[0]
    used_s: F8 = np.concatenate(([load[0] * age_s], load[1:] * np.diff(epoch_s))).cumsum()
    percent: F8 = np.round(100 * used_s / (since_s + age_s), 2)
    return epoch_s, percent, used_s


def test_an_idle_second_tells_the_age_and_with_it_the_load() -> None:
    load = np.array([1.2, 0.0, 0.5, 2.0, 0.0, 0.0, 8.0, 0.1, 0.0, 4.0])
    epoch_s, percent, _ = _averages(load, 0.4)
    average = rebuild(epoch_s, percent)

    assert average.falls == 0
    assert average.age_s == pytest.approx(0.4)
    assert np.diff(average.used_s) == pytest.approx(load[1:], abs=0.002)


def test_without_samples_there_is_no_cpu() -> None:
    average = rebuild(np.empty(0), np.empty(0))

    assert (average.steps, len(average.used_s)) == (0, 0)


def test_capacity_is_the_peak_of_the_sum_and_the_same_for_the_same_seed() -> None:
    burst = made([100.0] * 50 + [1000] + [100.0] * 50)
    first = capacity([burst], 20, seed=42)
    again = capacity([burst], 20, seed=42)

    assert first is not None and again is not None
    assert first.sum_of_peaks_bytes == 20 * 1000 * MB
    assert len(first.peaks_bytes) == 200
    assert (first.peaks_bytes == again.peaks_bytes).all()
    # At least one burst and the bases under it, at most all bursts at once.
    assert bool(((first.peaks_bytes >= 1000 * MB) & (first.peaks_bytes <= 20 * 1000 * MB)).all())
    assert 3 < first.gain < 20


def test_capacity_of_a_flat_load_is_what_it_holds() -> None:
    one = capacity([made([100.0] * 10)], 1, seed=1, draws=5)

    assert one is not None
    assert one.peaks_bytes.tolist() == [100 * MB] * 5
    assert one.gain == 1


def test_capacity_needs_a_trace_that_can_be_one() -> None:
    assert capacity([made([])], 4, seed=1) is None
    assert capacity([made([1, 1], t_s=[0, MAX_TRACE_US / SECOND + 1])], 4, seed=1) is None
    assert capacity([made([1])], 0, seed=1) is None
