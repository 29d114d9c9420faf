"""Where a session's KV blocks are over time: a step function out of its transitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from tidegate.analysis.decimate import edges, first_of_greatest

KV_STATES: Final = ("device_active", "device_cached", "device_pinned", "device_and_host", "host", "gone")
"""States of a block, in the order in which they are stacked."""

ON_DEVICE: Final = KV_STATES[:4]

_NOTHING: Final[tuple[Sequence[int], int | None]] = ((0,) * len(KV_STATES), 0)
_MOST: Final = 1 << 53
"""Larger counts are drawn as this; JavaScript reads no larger one exactly."""


@dataclass(frozen=True, slots=True)
class Residency:
    """What a session has on one engine from ``t_us`` on: blocks by state, and of them shared ones; None: unknown."""

    t_us: int
    engine: str
    blocks: Mapping[str, int]
    shared: int | None = None


@dataclass(frozen=True, slots=True)
class Emptied:
    """The engine ended, or began anew: nothing is there any more."""

    t_us: int
    engine: str


Step: TypeAlias = Residency | Emptied


@dataclass(frozen=True, slots=True)
class BlockSteps:
    """Blocks by state; what stands at a point holds until the next one.

    Attributes:
        t_us: microseconds UTC, ascending.
        states: by each of :data:`KV_STATES`.
        shared: blocks on the device that other sessions have too; None: unknown.
    """

    t_us: list[int] = field(default_factory=list)
    states: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in KV_STATES})
    shared: list[int | None] = field(default_factory=list)


def block_steps(steps: Iterable[Step], from_us: int, to_us: int, px: int) -> BlockSteps:
    """The chart of a session's blocks over ``[from_us, to_us)``.

    Where there are more than ``2 px`` points, each of ``px`` columns keeps its last one, and those at which most and
    fewest blocks are on the device.

    Args:
        steps: in order of time; those before ``from_us`` give what holds at its beginning.
        from_us: start.
        to_us: end.
        px: columns.
    """
    by_engine: dict[str, tuple[Sequence[int], int | None]] = {}
    points: list[tuple[int, tuple[int, ...], int | None]] = []
    for step in steps:
        if step.t_us > to_us:
            break
        if isinstance(step, Emptied):
            if step.engine not in by_engine:
                continue
            by_engine[step.engine] = _NOTHING
        else:
            counts = [min(max(step.blocks.get(name, 0), 0), _MOST) for name in KV_STATES]
            shared = None if step.shared is None else min(max(step.shared, 0), _MOST)
            by_engine[step.engine] = (counts, shared)
        # A session that was moved may have blocks on several engines.
        totals = tuple(map(sum, zip(*(counts for counts, _ in by_engine.values()), strict=True)))
        known = [shared for _, shared in by_engine.values() if shared is not None]
        point = (max(step.t_us, from_us), totals, sum(known) if known else None)
        if points and points[-1][0] == point[0]:
            points[-1] = point
        else:
            points.append(point)
    kept = _kept(
        [t for t, _, _ in points], [sum(totals[: len(ON_DEVICE)]) for _, totals, _ in points], from_us, to_us, px
    )
    chosen = [points[index] for index in kept]
    return BlockSteps(
        t_us=[t for t, _, _ in chosen],
        states={name: [totals[n] for _, totals, _ in chosen] for n, name in enumerate(KV_STATES)},
        shared=[shared for _, _, shared in chosen],
    )


def _kept(times: Sequence[int], on_device: Sequence[int], from_us: int, to_us: int, px: int) -> list[int]:
    if len(times) <= 2 * px:
        return list(range(len(times)))
    column = np.searchsorted(edges(from_us, to_us, px), np.array(times, dtype=np.int64), side="right")
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    most = np.array(on_device, dtype=np.float64)
    lasts = np.append(starts[1:], len(times)) - 1
    picks = (lasts, first_of_greatest(most, starts), first_of_greatest(-most, starts))
    found: list[int] = np.unique(np.concatenate(picks)).tolist()
    return found
