"""Lanes for a whole set of intervals at once; the fold gives the same lanes one by one."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.fold.lanes import Lanes


def lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """A lane (from 0) for each span so that no two in one lane overlap; as few lanes as possible.

    Args:
        spans: half-open intervals in any order.

    Returns:
        one lane a span, in the order given.
    """
    allocator = Lanes(limit=len(spans) + 1)
    result = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda i: spans[i]):
        start_us, end_us = spans[index]
        result[index] = allocator.take(start_us)
        allocator.release(result[index], end_us)
    return result
