"""Intervals of time: union, gaps, what overlaps what. Half-open, microseconds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tidegate.fold.coverage import Coverage

Span = tuple[int, int]
"""from_us, to_us"""

MIN_GAP_US = 2_000_000
"""A shorter silence is no gap: a sampler that was late is not a sampler that was away."""

GAP_FACTOR = 5
"""A gap is at least this many usual distances between two samples."""


def union(spans: Iterable[Span]) -> list[Span]:
    """Disjoint spans that cover the same time, in order; touching ones become one, empty ones vanish."""
    spans = list(spans)
    coverage = Coverage(limit=len(spans) + 2)
    for start_us, end_us in spans:
        coverage.add(start_us, end_us)
    return coverage.spans()


def covered_us(spans: Iterable[Span]) -> int:
    """Length of the union."""
    return sum(end - start for start, end in union(spans))


def clip(spans: Iterable[Span], from_us: int, to_us: int) -> list[Span]:
    """The parts of the spans that lie in ``[from_us, to_us)``."""
    clipped = ((max(start, from_us), min(end, to_us)) for start, end in spans)
    return [(start, end) for start, end in clipped if start < end]


def silences(t_us: NDArray[np.int64], *, until_us: int | None = None, usual_us: float | None = None) -> list[Span]:
    """Where samples are missing: distances far above the usual one.

    Args:
        t_us: times of the samples, in order.
        until_us: time up to which samples were to be expected.
        usual_us: the usual distance; by default the median of those given.
    """
    if len(t_us) == 0:
        return []
    distances = np.diff(t_us)
    threshold = gap_threshold_us(usual_distance_us(t_us) or 0.0 if usual_us is None else usual_us)
    gaps = [(int(t_us[i]), int(t_us[i + 1])) for i in np.flatnonzero(distances > threshold)]
    if until_us is not None and until_us - int(t_us[-1]) > threshold:
        gaps.append((int(t_us[-1]), until_us))
    return gaps


def usual_distance_us(t_us: NDArray[np.int64]) -> float | None:
    """Median distance of samples; those of one tick share their time. None for a single one."""
    distances = np.diff(t_us)
    apart = distances[distances > 0]
    return float(np.median(apart)) if len(apart) else None


def gap_threshold_us(usual_us: float) -> float:
    """A silence longer than this is a gap."""
    return max(MIN_GAP_US, GAP_FACTOR * usual_us)
