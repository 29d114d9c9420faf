"""Columns cover a span exactly, and the greatest value of each is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.analysis.decimate import edges, first_of_greatest


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
