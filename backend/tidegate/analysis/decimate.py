"""The columns of a chart, and the greatest value of each."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]


def edges(from_us: int, to_us: int, px: int) -> I8:
    """Borders of ``px`` columns over ``[from_us, to_us)``: ``px + 1`` microsecond times, first and last exact.

    Columns are half-open and at least a microsecond wide, so there may be fewer than asked for.
    """
    length = max(to_us - from_us, 1)
    columns = max(1, min(px, length))
    # Integers throughout: times since 1970 in microseconds use up all the digits a float has.
    return from_us + np.arange(columns + 1, dtype=np.int64) * length // columns


BUCKETS_US: Final = (60_000_000, 10_000_000, 1_000_000)
"""Resolutions of the rollups, the coarsest first."""


def columns(from_us: int, to_us: int, px: int, *, stretch: float = 4 / 3) -> tuple[int, I8]:
    """At most ``px`` columns that cover ``[from_us, to_us)``, made of whole buckets of a rollup where it has such.

    Args:
        from_us: start.
        to_us: end, not in it.
        px: most columns, at least 1.
        stretch: how much wider than needed a column may be for the sake of fewer buckets.

    Returns:
        the bucket, 0 for the samples themselves, and the borders. Columns of buckets are of equal width, begin at
        multiples of it, so that scrolling leaves them where they are, and may reach over the span's ends.
    """
    length = max(to_us - from_us, 1)
    ideal = length / max(px - 1, 1)
    for bucket in BUCKETS_US:
        width = -(-math.ceil(ideal) // bucket) * bucket
        if width <= stretch * ideal:
            first = from_us // width * width
            count = max(1, -(-(to_us - first) // width))
            return bucket, first + np.arange(count + 1, dtype=np.int64) * width
    return 0, edges(from_us, to_us, px)


def first_of_greatest(values: F8, starts: I8) -> I8:
    """Index of the first greatest value of each segment; a segment reaches from one start to the next or the end.

    ``starts`` is strictly increasing.
    """
    if len(starts) == 0:
        return np.empty(0, dtype=np.int64)
    greatest = np.maximum.reduceat(values, starts)
    lengths = np.diff(starts, append=len(values))
    hits = np.flatnonzero(values[starts[0] :] == np.repeat(greatest, lengths)) + starts[0]
    found: I8 = hits[np.searchsorted(hits, starts)]
    return found
