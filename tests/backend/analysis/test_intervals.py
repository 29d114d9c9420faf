"""Unions, gaps and lanes of whole sets of intervals."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidegate.analysis.intervals import clip, covered_us, silences, union
from tidegate.analysis.lanes import lanes

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=25)


@given(SPANS, st.integers(0, 60), st.integers(0, 60))
def test_union_and_clip(spans: list[tuple[int, int]], low: int, high: int) -> None:
    moments = {moment for start, end in spans for moment in range(start, end)}
    assert covered_us(spans) == len(moments)
    assert all(a[1] < b[0] for a, b in pairwise(union(spans)))
    assert covered_us(clip(spans, low, high)) == len([m for m in moments if low <= m < high])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=25))
def test_lanes_of_a_set(items: list[tuple[int, int]]) -> None:
    spans = [(start, start + length) for start, length in items]
    given_lanes = lanes(spans)
    for i, a in enumerate(spans):
        for j, b in enumerate(spans[:i]):
            if given_lanes[i] == given_lanes[j]:
                assert not (a[0] < b[1] and b[0] < a[1])


def test_a_silence_far_above_the_usual_distance_is_a_gap() -> None:
    t_us = np.array([i * 100_000 for i in range(50)] + [12_000_000, 12_000_000, 12_100_000], dtype=np.int64)
    assert silences(t_us) == [(4_900_000, 12_000_000)]
    assert silences(t_us, until_us=20_000_000) == [(4_900_000, 12_000_000), (12_100_000, 20_000_000)]


def test_slow_sampling_is_no_gap() -> None:
    slow = np.arange(0, 60_000_000, 3_000_000, dtype=np.int64)
    assert silences(slow, until_us=66_000_000) == []
    assert silences(np.empty(0, dtype=np.int64), until_us=66_000_000) == []
