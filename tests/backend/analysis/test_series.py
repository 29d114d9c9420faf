"""The chart series of a session and a host: no burst is lost, nothing is drawn that was not."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import records as make
from tidegate.analysis.columns import (
    CallSpan,
    HostColumns,
    MemColumns,
    PsiColumns,
    SchedColumns,
)
from tidegate.analysis.decimate import edges
from tidegate.analysis.encoding import F8Json
from tidegate.analysis.inputs import SessionInput
from tidegate.analysis.intervals import Span, silences
from tidegate.analysis.picture import host_picture, session_picture
from tidegate.analysis.series import SessionSeries, draw_host, draw_session


def drawn(data: SessionInput, *, from_us: int, to_us: int, px: int, gaps: Sequence[Span] = ()) -> SessionSeries:
    picture = session_picture(data, from_us=from_us)
    return draw_session(picture, gaps, edges(from_us, to_us, px), from_us=from_us, to_us=to_us, px=px)


def array(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def mem(*rows: tuple[int, int, int, int], calls: Sequence[str] = ()) -> MemColumns:
    """Rows of (t_us, subject, used, peak or -1)."""
    t, subject, used, peak = zip(*rows, strict=True) if rows else ((), (), (), ())
    return MemColumns(array(t), array(subject), array(used), array(peak), list(calls))


def at(series: SessionSeries, t_us: int) -> dict[str, float]:
    """What the chart shows at a time: the last point up to then."""
    index = int(np.searchsorted(series.mem_t_us, t_us, side="right")) - 1
    assert index >= 0, "nothing is drawn that early"
    shown = {name: float(values[index]) for name, values in series.calls_bytes.items()}
    return {"runtime": float(series.runtime_bytes[index]), **shown}


def decoded(value: F8Json) -> list[float]:
    assert value["dtype"] == "f8"
    return [float(number) for number in np.frombuffer(base64.b64decode(value["bdata"]), dtype="<f8")]


def test_layers_hold_between_samples_and_calls_hold_nothing_after_their_end() -> None:
    data = SessionInput(
        mem=mem((0, 0, 100, 100), (1000, 0, 120, 120), (2000, 1, 50, 50), (4000, 0, 110, 120), calls=["c"]),
        calls=[CallSpan("c", "tests", 1500, 3000, 50)],
    )
    series = drawn(data, from_us=0, to_us=5000, px=50)
    assert at(series, 500) == {"runtime": 100, "tests": 0}
    assert at(series, 1999) == {"runtime": 120, "tests": 0}
    assert at(series, 2500) == {"runtime": 120, "tests": 50}
    assert at(series, 3000) == {"runtime": 120, "tests": 0}
    assert at(series, 4999) == {"runtime": 110, "tests": 0}
    assert series.resolution_us == 100


def test_a_peak_that_no_sample_shows_stands_at_the_later_sample() -> None:
    data = SessionInput(mem=mem((0, 0, 100, 100), (1000, 0, 100, 900), (2000, 0, 100, 900)))
    series = drawn(data, from_us=0, to_us=3000, px=30)
    peaks = series.mem_t_us[series.runtime_bytes == 900]
    assert peaks.tolist() == [1000]  # once, and not at the sample after
    assert series.runtime_bytes.min() == 100


def test_a_call_too_short_for_a_sample_is_drawn_with_its_peak() -> None:
    data = SessionInput(mem=mem((0, 0, 10, -1), (9000, 0, 10, -1)), calls=[CallSpan("c", "git", 4000, 4050, 777)])
    series = drawn(data, from_us=0, to_us=10_000, px=7)
    assert series.mem_t_us[series.calls_bytes["git"] == 777].tolist() == [4050]
    assert at(series, 9999) == {"runtime": 10, "git": 0}


def test_calls_that_trade_memory_in_one_tick_make_no_false_peak() -> None:
    data = SessionInput(
        mem=mem((0, 1, 500, -1), (0, 2, 0, -1), (100, 2, 500, -1), (100, 1, 0, -1), calls=["a", "b"]),
        calls=[CallSpan("a", "git", 0, None), CallSpan("b", "read", 0, None)],
    )
    series = drawn(data, from_us=0, to_us=200, px=20)
    total = series.runtime_bytes + sum(series.calls_bytes.values())
    assert total.max() == 500


def test_a_lesser_burst_of_one_layer_is_kept_beside_the_greater_one_of_another() -> None:
    data = SessionInput(
        mem=mem((0, 1, 0, -1), (10, 1, 300, -1), (20, 1, 0, -1), (30, 2, 900, -1), (40, 2, 0, -1), calls=["a", "b"]),
        calls=[CallSpan("a", "git", 0, None), CallSpan("b", "tests", 25, None)],
    )
    series = drawn(data, from_us=0, to_us=1000, px=1)
    assert series.calls_bytes["git"].max() == 300
    assert series.calls_bytes["tests"].max() == 900
    assert (series.calls_bytes["git"] + series.calls_bytes["tests"]).max() == 900


def test_what_is_left_behind_is_drawn_as_long_as_it_is_sampled() -> None:
    data = SessionInput(
        mem=mem((0, 1, 80, -1), (2_000_000, 1, 30, -1), calls=["c"]), calls=[CallSpan("c", "other", 0, 1_000_000)]
    )
    series = drawn(data, from_us=0, to_us=5_000_000, px=500)
    shown = [at(series, t)["other"] for t in (500_000, 1_500_000, 2_500_000, 3_500_000)]
    assert shown == [80, 0, 30, 0]


def test_the_left_edge_is_held_by_the_sample_before_it() -> None:
    data = SessionInput(mem=mem((0, 0, 70, 400), (9000, 0, 80, 400)), calls=[])
    series = drawn(data, from_us=5000, to_us=10_000, px=10)
    assert at(series, 5000) == {"runtime": 70}
    assert series.runtime_bytes.max() == 80  # the peak of 400 was before


def test_after_its_end_a_session_holds_nothing() -> None:
    data = SessionInput(mem=mem((0, 0, 70, -1)), ended_us=500)
    series = drawn(data, from_us=0, to_us=1000, px=10)
    assert (at(series, 499)["runtime"], at(series, 500)["runtime"]) == (70, 0)


def test_where_only_the_session_is_sampled_the_runtime_is_the_rest() -> None:
    data = SessionInput(
        mem=mem((0, -1, 100, 150), (10, 1, 40, -1), (10, -1, 145, 150), calls=["c"]),
        calls=[CallSpan("c", "git", 5, None)],
    )
    series = drawn(data, from_us=0, to_us=20, px=20)
    assert at(series, 15) == {"runtime": 105, "git": 40}


def test_in_a_gap_nothing_is_known() -> None:
    ticks = [(i * 100_000, 0, 50, -1) for i in range(20)]
    data = SessionInput(mem=mem(*ticks, (9_000_000, 0, 60, -1)))
    gaps = [*silences(data.sample_times_us), (9_500_000, 9_700_000)]
    series = drawn(data, from_us=0, to_us=10_000_000, px=100, gaps=gaps)
    assert series.gaps == [(1_900_000, 9_000_000), (9_500_000, 9_700_000)]
    assert np.isnan(at(series, 5_000_000)["runtime"])
    assert at(series, 9_000_000)["runtime"] == 60
    calm = drawn(data, from_us=0, to_us=10_000_000, px=100)
    assert calm.gaps == []
    assert at(calm, 5_000_000)["runtime"] == 50


def test_without_samples_there_is_nothing() -> None:
    series = drawn(SessionInput(), from_us=0, to_us=1, px=1)
    assert len(series.mem_t_us) == len(series.wait_t_us) == len(series.pressure_t_us) == 0
    assert decoded(series.to_json()["memory"]["t_ms"]) == []


ROWS = st.lists(
    st.tuples(st.integers(0, 999), st.integers(0, 4), st.integers(0, 1000), st.integers(-1, 2000)), max_size=60
)
CALLS = [CallSpan(f"c{i}", category, i * 100, i * 150 or None) for i, category in enumerate(["git", "git", "read"])]


@settings(deadline=None)
@given(ROWS, st.integers(1, 40))
def test_the_picture_agrees_with_the_samples_at_any_resolution(rows: list[tuple[int, int, int, int]], px: int) -> None:
    rows = sorted({(t, subject): (t, subject, used, peak) for t, subject, used, peak in rows}.values())
    data = SessionInput(mem=mem(*rows, calls=["c0", "c1", "c2", "elsewhere"]), calls=CALLS)
    fine = drawn(data, from_us=0, to_us=1000, px=1000)
    coarse = drawn(data, from_us=0, to_us=1000, px=px)
    assert (np.diff(coarse.mem_t_us) > 0).all()
    for name in ("runtime", *fine.calls_bytes):
        a = fine.runtime_bytes if name == "runtime" else fine.calls_bytes[name]
        b = coarse.runtime_bytes if name == "runtime" else coarse.calls_bytes[name]
        assert (a >= 0).all()
        if len(a):
            assert a.max() == b.max(), name  # no extreme is lost
    if len(fine.mem_t_us):
        total_fine = fine.runtime_bytes + sum(fine.calls_bytes.values())
        total_coarse = coarse.runtime_bytes + sum(coarse.calls_bytes.values())
        assert total_fine.max() == total_coarse.max()
    # Each sampled value of the runtime is reached in its column.
    for t, subject, used, _ in rows:
        if subject == 0:
            column = (coarse.mem_t_us >= t - 1000 // px - 1) & (coarse.mem_t_us <= t + 1000 // px + 1)
            assert coarse.runtime_bytes[column].max() >= used


def sched(*rows: tuple[int, int, int, int]) -> SchedColumns:
    t, subject, wait, window = zip(*rows, strict=True)
    return SchedColumns(array(t), array(subject), array([0] * len(rows)), array(wait), array(window))


def test_waiting_is_summed_over_subjects_and_keeps_its_extreme() -> None:
    data = SessionInput(sched=sched((100, 0, 10, 100), (100, 1, 70, 100), (200, 0, 5, 100), (200, 1, -1, 100)))
    series = drawn(data, from_us=0, to_us=200, px=2)
    assert series.wait_percent.tolist() == [80, 5]  # the second sample of subject 1 is unknown
    assert drawn(data, from_us=0, to_us=200, px=1).wait_percent.tolist() == [80]
    fine = drawn(data, from_us=0, to_us=400, px=40)
    assert fine.wait_t_us.max() < 210  # after the last sample nothing is known
    assert fine.wait_percent[fine.wait_t_us > 110].tolist() == [5.0] * 9


def test_the_sessions_own_samples_replace_those_of_its_subjects() -> None:
    data = SessionInput(sched=sched((100, -1, 30, 100), (100, 0, 10, 100), (100, 1, 70, 100)))
    assert drawn(data, from_us=0, to_us=200, px=1).wait_percent.tolist() == [30]


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 300)), min_size=1, max_size=50), st.integers(1, 60))
def test_the_greatest_wait_is_shown_at_any_resolution(steps: list[tuple[int, int]], px: int) -> None:
    t = np.cumsum([step for step, _ in steps])
    rows = [(int(end), 0, wait, step) for end, (step, wait) in zip(t, steps, strict=True)]
    series = drawn(SessionInput(sched=sched(*rows)), from_us=0, to_us=int(t[-1]) + 1, px=px)
    assert series.wait_percent.max() == pytest.approx(max(100.0 * wait / step for step, wait in steps), abs=1e-5)


def test_pressure_in_percent() -> None:
    psi = PsiColumns(array([100]), array([-1]), array([20]), array([50]), array([-1]), array([100]))
    series = drawn(SessionInput(psi=psi), from_us=0, to_us=200, px=4)
    assert series.pressure["memory_percent"].tolist() == [20, 20]
    assert series.pressure["cpu_percent"].tolist() == [50, 50]
    assert np.isnan(series.pressure["io_percent"]).all()
    assert series.pressure_t_us.tolist() == [25, 75]


def test_the_json_shape() -> None:
    data = SessionInput(mem=mem((0, 0, 1, -1), (0, 1, 2, -1), calls=["c"]), calls=[CallSpan("c", "git", 0, None)])
    shape: dict[str, Any] = drawn(data, from_us=0, to_us=10_000, px=2).to_json()
    assert set(shape) == {"from_us", "to_us", "px", "resolution_us", "memory", "wait", "pressure", "gaps"}
    assert decoded(shape["memory"]["t_ms"]) == [0.0, 5.0]
    assert decoded(shape["memory"]["calls"]["git"]) == [2.0, 2.0]
    assert set(shape["pressure"]) == {"t_ms", "memory_percent", "cpu_percent", "io_percent"}


def test_the_host_and_its_sessions() -> None:
    host = HostColumns(
        array([0, 1000, 2000]), array([100] * 3), array([60, 20, 70]), array([0, 4000, 0]), array([1000] * 3)
    )
    data = SessionInput(mem=mem((0, 0, 5, -1), (1000, 0, 30, -1), (1500, 0, 5, -1)))
    totals = {"s": session_picture(data, from_us=0).total}
    shape = draw_host(host_picture(host), totals, edges(0, 3000, 3), cpus=4)
    assert decoded(shape["t_ms"]) == [0, 1, 2]
    assert decoded(shape["used_bytes"]) == [40, 80, 30]
    assert decoded(shape["available_bytes"]) == [60, 20, 70]
    assert decoded(shape["sessions"]["s"]) == [5, 30, 5]
    assert decoded(shape["cpu_percent"])[:2] == [100, 0]  # the busy window ends where the second column begins


@pytest.mark.parametrize("px", [1, 3, 4000])
def test_a_burst_of_one_sample_in_a_hundred_thousand_is_drawn(px: int) -> None:
    count = 100_000
    used = np.full(count, 50, dtype=np.int64)
    used[77_777] = 10**9
    t_us = np.arange(count, dtype=np.int64) * 100_000 + make.T0
    zeros = np.zeros(count, dtype=np.int64)
    data = SessionInput(mem=MemColumns(t_us, zeros, used, zeros - 1, []))
    series = drawn(data, from_us=int(t_us[0]), to_us=int(t_us[-1]) + 1, px=px)
    assert series.runtime_bytes.max() == 10**9
    assert series.mem_t_us[series.runtime_bytes.argmax()] == t_us[77_777]
    assert len(series.mem_t_us) <= px


def test_subjects_with_windows_of_different_length_add_up_where_they_overlap() -> None:
    # The runtime did not change and was sampled once a second, the call ten times a second.
    rows = [(1_000_000, 0, 100_000, 1_000_000), (900_000, 1, 50_000, 100_000), (1_000_000, 1, 0, 100_000)]
    data = SessionInput(sched=sched(*sorted(rows)))
    series = drawn(data, from_us=0, to_us=1_000_000, px=10)
    assert series.wait_percent.tolist() == pytest.approx([10] * 8 + [60, 10])


def test_what_a_call_keeps_is_drawn_from_its_end_on() -> None:
    data = SessionInput(
        mem=mem((0, 0, 1, -1), (0, 1, 80, 80), calls=["c"]),
        calls=[CallSpan("c", "other", 0, 500_000, 80, 30)],
    )
    series = drawn(data, from_us=0, to_us=3_000_000, px=300)
    assert [at(series, t)["other"] for t in (499_999, 500_000, 1_600_000, 1_800_000)] == [80, 30, 30, 0]
