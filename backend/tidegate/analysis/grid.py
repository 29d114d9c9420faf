"""Step functions and windowed samples on the columns of a chart, the greatest of each column kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .columns import F8, I8
from .decimate import first_of_greatest
from .layers import Layer


def column_greatest(layer: Layer, borders: I8) -> tuple[I8, F8]:
    """When each column has its greatest value, and that value.

    Args:
        layer: a step function.
        borders: as of :func:`~tidegate.analysis.decimate.edges`.

    Returns:
        ``len(borders) - 1`` times (that of a step, or the column's start where an earlier step still holds) and values
        (0 before the first step).
    """
    starts, ends = borders[:-1], borders[1:]
    count = len(layer.t_us)
    if count == 0:
        return starts.copy(), np.zeros(len(starts))
    low = np.searchsorted(layer.t_us, starts, side="left")
    high = np.searchsorted(layer.t_us, ends, side="left")
    times = starts.copy()
    values = np.where(low > 0, layer.level[np.maximum(low - 1, 0)], 0.0)
    filled = np.flatnonzero(high > low)
    if len(filled) == 0:
        return times, values
    best = first_of_greatest(layer.extreme[: high[-1]], low[filled])
    step_at_start = layer.t_us[low[filled]] == starts[filled]
    wins = step_at_start | (layer.extreme[best] > values[filled]) | (low[filled] == 0)
    times[filled[wins]] = layer.t_us[best[wins]]
    values[filled[wins]] = layer.extreme[best[wins]]
    return times, values


def instants(total: Layer, layers: Sequence[Layer], borders: I8) -> I8:
    """The moments to draw: of each column that of its greatest total, and those where a layer alone was higher."""
    times, _ = column_greatest(total, borders)
    moments = [times]
    for layer in layers:
        peak_times, peaks = column_greatest(layer, borders)
        moments.append(peak_times[peaks > layer.at(times)])
    return np.unique(np.concatenate(moments))


@dataclass(frozen=True, slots=True)
class Windows:
    """Share of time in percent, added up over subjects, and how many of them were sampled: two step functions."""

    percent: Layer
    sampled: Layer

    @property
    def both(self) -> tuple[Layer, Layer]:
        """The two."""
        return self.percent, self.sampled

    def greatest(self, borders: I8) -> F8:
        """The greatest of each column, NaN where nothing was sampled; ``borders`` as of ``decimate.edges``."""
        values = column_greatest(self.percent, borders)[1]
        return np.where(column_greatest(self.sampled, borders)[1] > 0.5, values, np.nan)


def windows(t_us: I8, subject: I8, amount_us: I8, window_us: I8) -> Windows:
    """Samples of time within a window as step functions.

    Args:
        t_us: end of each sample's window, in order.
        subject: whose sample it is; windows of one subject follow each other.
        amount_us: time counted in the window; negative for unknown.
        window_us: length of the window; 0 or negative for unknown, which then reaches back to the sample before.
    """
    order = np.lexsort((t_us, subject))
    t_us, subject, amount_us, window_us = t_us[order], subject[order], amount_us[order], window_us[order]
    before = np.roll(t_us, 1)
    first = np.ones(len(t_us), dtype=bool)
    first[1:] = subject[1:] != subject[:-1]
    since = np.where(first, t_us, before)
    window_us = np.where(window_us > 0, window_us, t_us - since)
    known = (amount_us >= 0) & (window_us > 0)
    # A window that reaches behind the sample before would count twice what lies there.
    begins = np.where(first, t_us - window_us, np.maximum(t_us - window_us, since))[known]
    ends, percent = t_us[known], 100.0 * amount_us[known] / window_us[known]
    level = _sum_of_spans("percent", begins, ends, percent)
    return Windows(level, _sum_of_spans("sampled", begins, ends, np.ones(len(ends))))


def _sum_of_spans(name: str, begins: I8, ends: I8, values: F8) -> Layer:
    """The sum over all spans ``[begin, end)`` of their values, as a step function."""
    times, place = np.unique(np.concatenate((begins, ends)), return_inverse=True)
    change = np.zeros(len(times))
    np.add.at(change, place, np.concatenate((values, -values)))
    # Rounded, because a sum of differences does not quite come back to nothing.
    level = np.maximum(np.round(np.cumsum(change), 6), 0.0)
    return Layer(name, times, level, level)
