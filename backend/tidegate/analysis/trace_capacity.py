"""How much memory many agents need at once, estimated from recorded traces: their bursts do not fall together.

Traces are drawn and laid over each other at random offsets; the peak of their sum is what a host must have, the sum of
their peaks what it would have to reserve. Seeded, so that the same traces give the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .columns import F8
from .traces import Trace

_STEP_US: Final = 1_000_000
DRAWS: Final = 200
MAX_TRACE_US: Final = 7 * 86_400 * _STEP_US
"""A longer trace is left out: it is several runs, or has a clock that jumped."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """For ``agents`` at once: the mean sum of their peaks, and the peaks of their sum over all draws, in bytes."""

    agents: int
    sum_of_peaks_bytes: float
    peaks_bytes: F8

    @property
    def gain(self) -> float:
        """How many times more is reserved than needed at the worst moment of the mean draw."""
        return self.sum_of_peaks_bytes / float(self.peaks_bytes.mean())


def capacity(traces: Sequence[Trace], agents: int, *, seed: int, draws: int = DRAWS) -> Capacity | None:
    """Draw ``agents`` of the traces with replacement, ``draws`` times; None where no trace has samples
    or is at most :data:`MAX_TRACE_US` long.

    Each is laid at a random offset into a window of twice the longest one's length, by steps of a second in which the
    highest sample counts.
    """
    steps = [_by_second(trace) for trace in traces if _usable(trace)]
    if not steps or agents < 1:
        return None
    generator = np.random.default_rng(seed)
    longest = max(len(step) for step in steps)
    peaks = np.empty(draws)
    sums = np.empty(draws)
    for draw in range(draws):
        total = np.zeros(2 * longest)
        reserved = 0.0
        for index in generator.integers(len(steps), size=agents):
            step = steps[int(index)]
            offset = int(generator.integers(2 * longest - len(step) + 1))
            total[offset : offset + len(step)] += step
            reserved += float(step.max())
        peaks[draw], sums[draw] = total.max(), reserved
    return Capacity(agents, float(sums.mean()), peaks)


def _usable(trace: Trace) -> bool:
    return len(trace.t_us) > 0 and int(trace.t_us[-1] - trace.t_us[0]) <= MAX_TRACE_US


def _by_second(trace: Trace) -> F8:
    """The highest sample of each second; where there is none, the one before holds."""
    second = (trace.t_us - trace.t_us[0]) // _STEP_US
    starts = np.flatnonzero(np.diff(second, prepend=-1))
    highest = np.maximum.reduceat(trace.used_bytes, starts)
    index = np.searchsorted(second[starts], np.arange(int(second[-1]) + 1), side="right") - 1
    values: F8 = highest[index].astype(np.float64)
    return values
