"""Charts of an engine: its pool, its requests, and rates out of its counters, on few enough points to draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidegate.analysis.decimate import F8, I8, edges, first_of_greatest
from tidegate.analysis.intervals import MIN_GAP_US, Span, usual_distance_us

GAUGES: Final = (
    "blocks_active", "blocks_cached", "blocks_pinned", "blocks_free", "blocks_used", "running", "waiting",
    "host_used_bytes",
)  # fmt: skip
COUNTERS: Final = (
    "prefix_queries_tokens", "prefix_hits_tokens", "external_hits_tokens", "recomputed_tokens", "preemptions",
    "own_us",
)  # fmt: skip
COLUMNS: Final = GAUGES + COUNTERS
"""What a chart needs of a sample, in the order of the columns behind its time and ordinal; -1 where unknown."""

GAP_FACTOR: Final = 3
"""A gap is more than so many usual distances between two samples."""

MAX_REASONS: Final = 12
"""Reasons to wait that are told apart; all further ones are together in ``other``."""

_BLOCKS: Final = ("active", "cached", "pinned", "free", "used")
_HITS: Final = ("device", "host", "missed")
_OTHER: Final = "other"
_NEVER: Final = np.iinfo(np.int64).min

T = TypeVar("T")

Numbers = list[int | None]
Rates = list[float | None]


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """A chart of an engine over a span. Lists are as long as ``t_us``; None: unknown.

    Rates, and what is counted since, hold for the time since the point before. In a gap stands one point of nothing
    but None.

    Attributes:
        t_us: microseconds UTC, ascending.
        blocks: active, cached, pinned, free, and used: active and pinned together.
        running, waiting: requests.
        hit_tokens_per_s: device, host, missed: prompt tokens by where they were found.
        recomputed_tokens_per_s: tokens computed again that a session had had.
        preemptions: requests thrown out of the running batch.
        waiting_by_reason: requests that wait, by why.
        host_used_bytes: of the host tier.
        own_ratio: share of the time that our plugin took inside the engine.
        gaps: spans without samples.
    """

    t_us: list[int] = field(default_factory=list)
    blocks: dict[str, Numbers] = field(default_factory=lambda: {name: [] for name in _BLOCKS})
    running: Numbers = field(default_factory=list)
    waiting: Numbers = field(default_factory=list)
    hit_tokens_per_s: dict[str, Rates] = field(default_factory=lambda: {name: [] for name in _HITS})
    recomputed_tokens_per_s: Rates = field(default_factory=list)
    preemptions: Numbers = field(default_factory=list)
    waiting_by_reason: dict[str, Numbers] = field(default_factory=dict)
    host_used_bytes: Numbers = field(default_factory=list)
    own_ratio: Rates = field(default_factory=list)
    gaps: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Samples that a chart shows: ``t_us``, ``ord`` and ``gauges`` of each, ``totals`` of the counters by then."""

    t_us: I8
    ord: I8
    gauges: dict[str, I8]
    totals: dict[str, F8]
    gaps: list[Span]
    usual_us: int


def running_total(values: I8) -> F8:
    """A counter that never falls, out of one that begins again from 0 with each restart.

    Args:
        values: what the counter showed, in order of arrival; -1: unknown.

    Returns:
        the sum of all growth since the first known value; NaN where the counter is unknown.
    """
    known = np.flatnonzero(values >= 0)
    totals = np.full(len(values), np.nan)
    if len(known):
        shown = values[known]
        grown = np.diff(shown, prepend=shown[:1])
        totals[known] = np.cumsum(np.where(grown < 0, shown, grown).astype(np.float64))
    return totals


def choose(samples: I8, from_us: int, to_us: int, px: int, *, until_us: int | None = None) -> Chosen:
    """Pick samples for a chart of ``px`` columns: all of them, or of each of ``px / 2`` columns the last one and those
    in which the pool is fullest and emptiest and the queue is longest.

    Args:
        samples: rows of time, ordinal, and :data:`COLUMNS`, in any order.
        from_us: start of the chart.
        to_us: its end.
        px: columns, at least 2.
        until_us: up to when samples were to be expected; None: no matter.
    """
    arrived = samples[np.argsort(samples[:, 1], kind="stable")]
    # A clock that was set back must not look like a restart: counters grow in the order of arrival.
    counters = [running_total(arrived[:, 2 + len(GAUGES) + n]) for n in range(len(COUNTERS))]
    order = np.lexsort((arrived[:, 1], arrived[:, 0]))
    rows = arrived[order]
    t_us = rows[:, 0]
    gauges = {name: rows[:, 2 + n] for n, name in enumerate(GAUGES)}
    gauges["blocks_used"] = _used(gauges)
    usual = usual_distance_us(t_us) or 0.0
    threshold = max(MIN_GAP_US, GAP_FACTOR * usual)
    if len(t_us) > 2 * px:
        threshold = max(threshold, (to_us - from_us) / px)  # what nobody sees
    expected = t_us if until_us is None or not len(t_us) else np.append(t_us, max(until_us, int(t_us[-1])))
    gaps = [(int(expected[i]), int(expected[i + 1])) for i in np.flatnonzero(np.diff(expected) > threshold)]
    kept = _kept(t_us, gauges, gaps, from_us, to_us, px)
    return Chosen(
        t_us=t_us[kept],
        ord=rows[kept, 1],
        gauges={name: values[kept] for name, values in gauges.items()},
        totals={name: totals[order][kept] for name, totals in zip(COUNTERS, counters, strict=True)},
        gaps=gaps,
        usual_us=max(1, int(usual)),
    )


def _used(gauges: Mapping[str, I8]) -> I8:
    used, active, pinned = gauges["blocks_used"], gauges["blocks_active"], gauges["blocks_pinned"]
    half = (1 << 62) - 1  # two clamped numbers would overflow
    both = np.minimum(active, half) + np.clip(pinned, 0, half)
    return np.where((used < 0) & (active >= 0), both, used)


def _kept(t_us: I8, gauges: Mapping[str, I8], gaps: Sequence[Span], from_us: int, to_us: int, px: int) -> I8:
    if len(t_us) <= 2 * px:
        return np.arange(len(t_us), dtype=np.int64)
    column = np.searchsorted(edges(from_us, to_us, max(1, px // 2)), t_us, side="right")
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    used = gauges["blocks_used"].astype(np.float64)
    least = np.where(used < 0, -np.inf, -used)
    around = np.searchsorted(t_us, np.array([t for gap in gaps for t in gap], dtype=np.int64))
    picks = (
        np.append(starts[1:], len(t_us)) - 1,
        first_of_greatest(used, starts),
        first_of_greatest(least, starts),
        first_of_greatest(gauges["waiting"].astype(np.float64), starts),
        around[around < len(t_us)],
    )
    kept: I8 = np.unique(np.concatenate(picks))
    return kept


def draw(chosen: Chosen, reasons: Sequence[Mapping[str, int]]) -> EngineSeries:
    """The chart of chosen samples.

    Args:
        chosen: the samples.
        reasons: of each of them, requests that wait by why; empty where nothing was said.
    """
    t_us = chosen.t_us
    # Behind the last sample before a gap stands a point of nothing.
    begins = np.isin(t_us, np.array([start for start, _ in chosen.gaps], dtype=np.int64))
    hole = begins & (np.append(t_us[1:], _NEVER) != t_us)
    after_hole = np.append(False, hole[:-1]) if len(hole) else hole
    apart_us = np.diff(t_us, prepend=t_us[:1])

    def grown(name: str) -> F8:
        totals = chosen.totals[name]
        since = np.diff(totals, prepend=np.nan)
        since[after_hole] = np.nan
        return np.where(since < 0, 0.0, since)  # a clock that was set back

    def numbers(values: I8) -> Numbers:
        return _with(hole, None, (None if value < 0 else value for value in values.tolist()))

    def rate(since: F8, unit_us: float = 1e6) -> Rates:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(apart_us > 0, since / apart_us * unit_us, np.nan)
        return _with(hole, None, (round(value, 6) if math.isfinite(value) else None for value in values.tolist()))

    device, host = grown("prefix_hits_tokens"), grown("external_hits_tokens")
    missed = np.maximum(grown("prefix_queries_tokens") - device - np.nan_to_num(host), 0.0)
    preemptions = grown("preemptions").tolist()
    by_reason = _by_reason(reasons, chosen.gauges["waiting"])
    return EngineSeries(
        t_us=_times(t_us, hole, chosen.usual_us),
        blocks={name: numbers(chosen.gauges[f"blocks_{name}"]) for name in _BLOCKS},
        running=numbers(chosen.gauges["running"]),
        waiting=numbers(chosen.gauges["waiting"]),
        hit_tokens_per_s={"device": rate(device), "host": rate(host), "missed": rate(missed)},
        recomputed_tokens_per_s=rate(grown("recomputed_tokens")),
        preemptions=_with(hole, None, (int(n) if math.isfinite(n) else None for n in preemptions)),
        waiting_by_reason={name: _with(hole, None, values) for name, values in by_reason.items()},
        host_used_bytes=numbers(chosen.gauges["host_used_bytes"]),
        own_ratio=rate(grown("own_us"), 1.0),
        gaps=list(chosen.gaps),
    )


def _times(t_us: I8, hole: NDArray[np.bool_], usual_us: int) -> list[int]:
    times: list[int] = []
    for t, empty in zip(t_us.tolist(), hole.tolist(), strict=True):
        times += (t, t + usual_us) if empty else (t,)
    return times


def _with(hole: NDArray[np.bool_], nothing: T, values: Iterable[T]) -> list[T]:
    result: list[T] = []
    for value, empty in zip(values, hole.tolist(), strict=True):
        result += (value, nothing) if empty else (value,)
    return result


def _by_reason(reasons: Sequence[Mapping[str, int]], waiting: I8) -> dict[str, Numbers]:
    """Requests by reason. Where a sample names none but says how many wait, each reason has none."""
    sums: dict[str, int] = {}
    for one in reasons:
        for name, count in one.items():
            sums[name] = sums.get(name, 0) + count
    names = sorted(sums, key=lambda name: (-sums[name], name))
    shown = set(names if len(names) <= MAX_REASONS else names[: MAX_REASONS - 1])
    result: dict[str, Numbers] = {name: [] for name in names if name in shown}
    if len(names) > len(shown):
        result.setdefault(_OTHER, [])
    for one, wait in zip(reasons, waiting.tolist(), strict=True):
        counts: dict[str, int] = {}
        for name, count in one.items():
            key = name if name in shown else _OTHER
            counts[key] = counts.get(key, 0) + count
        for name, values in result.items():
            values.append(counts.get(name, 0) if one or wait >= 0 else None)
    return result
