"""Union of intervals, lanes and the sparkline against slow and obvious versions."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tidegate.fold.coverage import Coverage
from tidegate.fold.lanes import Lanes
from tidegate.fold.spark import Spark

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=25)


def covered(spans: list[tuple[int, int]]) -> int:
    return len({moment for start, end in spans for moment in range(start, end)})


@given(SPANS, st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_coverage_is_the_union(spans: list[tuple[int, int]], more: tuple[int, int]) -> None:
    coverage = Coverage()
    for start, end in spans:
        coverage.add(start, end)
    assert coverage.total_us() == covered(spans)
    assert coverage.total_with_us(*more) == covered([*spans, more])
    kept = coverage.spans()
    assert all(a[1] < b[0] for a, b in itertools.pairwise(kept))  # touching ones have become one


@given(st.lists(st.integers(1, 5), min_size=1, max_size=200))
def test_coverage_is_bounded_and_exact_for_intervals_in_order(gaps: list[int]) -> None:
    coverage = Coverage(limit=8)
    position = 0
    for gap in gaps:
        coverage.add(position, position + 1)
        position += 1 + gap
    assert coverage.total_us() == len(gaps)
    assert len(coverage.spans()) <= 8


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=30))
def test_no_two_overlapping_intervals_share_a_lane(items: list[tuple[int, int]]) -> None:
    spans = sorted((start, start + length) for start, length in items)
    lanes = Lanes()
    given_lanes: list[int] = []
    for start, end in spans:
        lane = lanes.take(start)
        lanes.release(lane, end)
        given_lanes.append(lane)
    for i, (start, end) in enumerate(spans):
        for j in range(i):
            if given_lanes[i] == given_lanes[j]:
                assert spans[j][1] <= start or spans[j][0] >= end
    most = max((sum(s <= t < e for s, e in spans) for t in range(61)), default=0)
    assert max(given_lanes, default=-1) + 1 == most  # and no more lanes than needed


def test_beyond_the_limit_lanes_are_shared() -> None:
    lanes = Lanes(limit=3)
    assert [lanes.take(0) for _ in range(5)] == [0, 1, 2, 2, 2]


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=300))
def test_a_sparkline_keeps_the_highest_point_and_its_bounds(samples: list[tuple[int, int, int]]) -> None:
    samples.sort(key=lambda sample: sample[0])
    spark = Spark(length_us=10_000, limit=20)
    for sample in samples:
        spark.add(*sample)
    points = spark.points()
    assert 1 <= len(points) <= 20
    assert all(point in samples for point in points)
    assert [point[0] for point in points] == sorted({point[0] for point in points})
    newest = points[-1][0]
    recent = [sample for sample in samples if sample[0] >= newest - 9_000]
    assert max(p[1] + p[2] for p in points) >= max(s[1] + s[2] for s in recent)
