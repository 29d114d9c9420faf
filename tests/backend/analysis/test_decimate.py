"""Decimation loses no extreme."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.analysis.decimate import edges, first_of_greatest, min_max

VALUES = st.floats(-1e12, 1e12) | st.just(float("nan"))
SAMPLES = st.lists(st.tuples(st.integers(0, 5000), VALUES), max_size=400)


def columns_of(samples: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    samples = sorted(samples, key=lambda sample: sample[0])
    t_us = np.array([t for t, _ in samples], dtype=np.int64)
    return t_us, np.array([value for _, value in samples], dtype=np.float64)


@given(SAMPLES, st.integers(1, 50))
def test_each_column_keeps_its_extremes(samples: list[tuple[int, float]], px: int) -> None:
    t_us, values = columns_of(samples)
    kept_t, kept = min_max(t_us, values, px, from_us=0, to_us=5001)
    assert len(kept) == len(kept_t) <= 2 * px
    assert (np.diff(kept_t) >= 0).all()
    original = {(t, v) for t, v in zip(t_us.tolist(), values.tolist(), strict=True)}
    assert all(pair in original for pair in zip(kept_t.tolist(), kept.tolist(), strict=True))
    borders = edges(0, 5001, px)
    known = ~np.isnan(values)
    for low, high in itertools.pairwise(borders):
        inside = values[(t_us >= low) & (t_us < high) & known]
        inside_kept = kept[(kept_t >= low) & (kept_t < high)]
        if len(inside):
            assert inside_kept.max() == inside.max()
            assert inside_kept.min() == inside.min()
        else:
            assert len(inside_kept) == 0


@given(SAMPLES, st.integers(1, 50))
def test_the_range_is_that_of_the_samples_by_default(samples: list[tuple[int, float]], px: int) -> None:
    t_us, values = columns_of(samples)
    kept_t, kept = min_max(t_us, values, px)
    known = values[~np.isnan(values)]
    assert len(kept) == len(kept_t) <= 2 * px
    if len(known):
        assert (kept.max(), kept.min()) == (known.max(), known.min())
    else:
        assert len(kept) == 0


def test_what_lies_outside_the_range_is_left_out() -> None:
    t_us = np.arange(100, dtype=np.int64)
    kept_t, _ = min_max(t_us, t_us.astype(np.float64), 5, from_us=10, to_us=20)
    assert (kept_t.min(), kept_t.max()) == (10, 19)


@given(st.integers(-(2**50), 2**50), st.integers(-5, 10**12), st.integers(1, 300))
def test_columns_cover_the_range_exactly(from_us: int, length: int, px: int) -> None:
    borders = edges(from_us, from_us + length, px)
    assert borders[0] == from_us
    assert borders[-1] == from_us + max(length, 1)
    assert (np.diff(borders) >= 1).all()
    assert len(borders) - 1 <= px
    assert np.diff(borders).max() - np.diff(borders).min() <= 1


@pytest.mark.parametrize(("values", "starts", "expected"), [([3, 9, 9, 1, 7], [0, 3], [1, 4]), ([1], [0], [0])])
def test_the_first_of_equal_values_is_taken(values: list[float], starts: list[int], expected: list[int]) -> None:
    assert first_of_greatest(np.array(values, dtype=np.float64), np.array(starts)).tolist() == expected
