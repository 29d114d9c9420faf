"""Times of tools, learnt."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_collectors.engine.durations import CONTINUUM_COLD_START, POINTS, Durations, Returns


def test_before_anything_was_seen_the_prior_is_exponential_with_a_mean_of_a_second() -> None:
    prediction = Durations().predict("pytest")

    assert (prediction.source, prediction.n) == ("prior", 0)
    assert prediction.p50_s == pytest.approx(0.693, abs=0.05)
    assert prediction.p90_s == pytest.approx(2.3, abs=0.2)


def test_a_tool_that_was_seen_often_is_known_by_its_own_times() -> None:
    durations = Durations()
    for index in range(200):
        durations.learn("ls", 0.01)
        durations.learn("pytest", 50.0 + index % 11)

    pytest_, ls, other = (durations.predict(tool) for tool in ("pytest", "ls", "never"))
    assert (pytest_.source, pytest_.n) == ("tool", 200)
    assert 54 <= pytest_.p50_s <= 57 and 58 <= pytest_.p90_s <= 60
    assert ls.p90_s == 0.01
    assert other.source == "pooled" and other.p50_s < 50 < other.p90_s


def test_few_samples_leave_the_prior_its_say() -> None:
    durations = Durations()
    durations.learn("make", 100.0)

    assert durations.predict("make").p50_s < 100.0
    assert durations.predict("make").source == "prior"


def test_continuum_takes_one_of_three_by_counts_alone() -> None:
    durations = Durations(samples=1000)
    sources = []
    for index in range(2 * CONTINUUM_COLD_START + 2):
        durations.learn("a" if index % 2 else "b", 7.0)
        sources.append(durations.by_counts("a").source)

    assert sources[CONTINUUM_COLD_START - 1] == "prior" and sources[CONTINUUM_COLD_START] == "pooled"
    assert sources[-1] == "tool"
    assert durations.by_counts("a").points == [(7.0, 1.0)]


def test_what_is_no_time_is_not_learnt() -> None:
    durations = Durations()
    for value in (-1.0, float("nan"), float("inf")):
        durations.learn("a", value)

    assert durations.predict("a") == Durations().predict("a")


def test_old_times_and_old_tools_make_room() -> None:
    durations = Durations(tools=2, samples=10)
    for _ in range(10):
        durations.learn("a", 1.0)
    for _ in range(10):
        durations.learn("a", 9.0)
    durations.learn("b", 1.0)
    durations.learn("c", 1.0)

    assert durations.predict("a").source == "pooled"
    assert Durations(samples=10).predict("x") == Durations().predict("x")


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e6)), max_size=200), st.integers(1, 40))
def test_a_distribution_grows_to_one_and_depends_on_nothing_but_the_samples(
    samples: list[tuple[str, float]], most: int
) -> None:
    first, second = Durations(samples=most), Durations(samples=most)
    for tool, seconds in samples:
        first.learn(tool, seconds)
        second.learn(tool, seconds)

    for tool in "abcd":
        prediction = first.predict(tool)
        assert prediction == second.predict(tool)
        assert 1 <= len(prediction.points) <= POINTS + 1
        assert [t for t, _ in prediction.points] == sorted({t for t, _ in prediction.points})
        assert [s for _, s in prediction.points] == sorted(s for _, s in prediction.points)
        assert prediction.points[-1][1] == 1.0
        assert prediction.p50_s <= prediction.p90_s


def test_returns_begin_with_what_is_expected_and_are_learnt() -> None:
    returns = Returns()
    assert returns.probability("call") == pytest.approx(0.95)
    assert returns.probability("turn_end") == 0.5
    for _ in range(98):
        returns.learn("turn_end", False)
    assert returns.probability("turn_end") == pytest.approx(0.01)
