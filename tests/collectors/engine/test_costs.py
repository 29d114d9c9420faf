"""The estimates behind a decision."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_collectors.engine.costs import (
    MAX_PINS,
    PoolView,
    after,
    expected_beyond_s,
    free_value_s,
    hold_s,
    p_evict,
    p_host,
    pin_lengths,
    pin_options,
    reach_s,
    share_by,
)

GAPS = [(1.0, 0.25), (2.0, 0.5), (4.0, 0.75), (8.0, 1.0)]


def rebuild(tokens: float) -> float:
    return tokens * 1e-3


def test_the_share_is_that_of_the_last_point_reached() -> None:
    assert [share_by(GAPS, seconds) for seconds in (0.5, 1.0, 3.0, 100.0)] == [0.0, 0.25, 0.5, 1.0]
    assert share_by([], 5.0) == 0.0


def test_what_is_left_after_some_time_has_passed() -> None:
    assert after(GAPS, 2.0) == [(2.0, 0.5), (6.0, 1.0)]
    assert after(GAPS, 0.0) == GAPS
    assert after(GAPS, 9.0) == []


def test_eviction_is_certain_in_a_short_pool_and_impossible_in_an_idle_one() -> None:
    assert p_evict(GAPS, PoolView(alloc_tokens_per_s=10)) == 1.0
    assert p_evict(GAPS, PoolView(free_tokens=100)) == 0.0
    pool = PoolView(free_tokens=10, ahead_tokens=20, alloc_tokens_per_s=10)
    assert (reach_s(pool), p_evict(GAPS, pool)) == (3.0, 0.5)


def test_a_copy_is_there_as_long_as_writing_has_not_reached_it() -> None:
    assert p_host(GAPS, free_tokens=0, ahead_tokens=0, write_tokens_per_s=0.0) == 1.0
    assert p_host(GAPS, free_tokens=10, ahead_tokens=30, write_tokens_per_s=10.0) == 0.75


def test_expected_time_beyond() -> None:
    # min(tau, 4) - 1, where positive: 0, 1, 3, 3 with a quarter each.
    assert expected_beyond_s(GAPS, 4.0, 1.0) == pytest.approx(7 / 4)
    assert expected_beyond_s([(1.0, 0.5)], 3.0, 0.0) == pytest.approx(0.5 * 1 + 0.5 * 3)


def test_a_pin_that_is_over_before_allocation_comes_costs_nothing() -> None:
    pool = PoolView(free_tokens=100, alloc_tokens_per_s=10, others_tokens=0, running_tokens=50)

    assert hold_s(GAPS, pool, 100, 10.0, rebuild) == 0.0
    assert hold_s(GAPS, pool, 100, 11.0, rebuild) == pytest.approx(0.0)  # all are back by then
    slow = [(1.0, 0.5), (20.0, 1.0)]
    assert hold_s(slow, pool, 100, 15.0, rebuild) == pytest.approx(0.5 * 0.050)


def test_a_pin_costs_what_goes_instead_or_who_waits() -> None:
    slow = [(1.0, 0.5), (20.0, 1.0)]
    others = PoolView(free_tokens=10, alloc_tokens_per_s=10, others_tokens=400, others_return=0.5)
    waits = PoolView(free_tokens=10, alloc_tokens_per_s=10, waiting=3, demand_tokens=100)

    assert hold_s(slow, others, 200, 5.0, rebuild) == pytest.approx(0.5 * 0.5 * 0.2)
    assert hold_s(slow, waits, 200, 5.0, rebuild) == pytest.approx(3 * 0.5 * 4.0)


def test_free_blocks_are_worth_the_wait_that_they_end() -> None:
    assert free_value_s(PoolView(free_tokens=100), 50) == 0.0
    assert free_value_s(PoolView(free_tokens=500, waiting=2, demand_tokens=200, queue_s=1.0), 50) == 0.0
    assert free_value_s(PoolView(free_tokens=100, waiting=2, demand_tokens=200, queue_s=1.0), 50) == pytest.approx(0.25)


gaps = st.lists(st.floats(0.01, 50), min_size=1, max_size=60, unique=True).map(
    lambda values: [(value, (index + 1) / len(values)) for index, value in enumerate(sorted(values))]
)
pools = st.builds(
    PoolView, free_tokens=st.integers(0, 1000), ahead_tokens=st.integers(0, 1000), others_tokens=st.integers(0, 1000),
    alloc_tokens_per_s=st.floats(0, 1000), waiting=st.integers(0, 10), demand_tokens=st.floats(0, 500),
    queue_s=st.floats(0, 10), others_return=st.floats(0, 1), running_tokens=st.floats(0, 500),
)  # fmt: skip


@settings(deadline=None)
@given(gaps, pools, st.integers(0, 1000), st.floats(0.1, 60))
def test_estimates_are_bounded_and_grow_with_the_pin(
    times: list[tuple[float, float]], pool: PoolView, tokens: int, most: float
) -> None:
    options = pin_options(pin_lengths(times, most), times, pool, tokens, rebuild)

    assert 0.0 <= p_evict(times, pool) <= 1.0
    assert len(options) <= MAX_PINS and all(option.ttl_s <= most for option in options)
    assert [o.ttl_s for o in options] == sorted({o.ttl_s for o in options})
    assert all(0.0 <= o.lapse <= 1.0 and o.hold_s >= 0.0 for o in options)
    assert [o.lapse for o in options] == sorted((o.lapse for o in options), reverse=True)
    assert [o.hold_s for o in options] == sorted(o.hold_s for o in options)
