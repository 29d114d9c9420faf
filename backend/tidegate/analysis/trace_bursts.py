"""Bursts of a trace as events: stretches of samples far above the idle layer, and whether a tool call was in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .traces import MB, Trace, idle_bytes, in_calls

ABOVE_IDLE_BYTES: Final = 100 * MB
"""Memory this far above the idle layer is a burst."""


@dataclass(frozen=True, slots=True)
class BurstEvent:
    """One stretch above the threshold, from its first sample to the first that is below it again (or the last of all).

    ``in_call``: a call ran at some time in it.
    """

    from_us: int
    to_us: int
    peak_bytes: int
    samples: int
    in_call: bool


def burst_events(trace: Trace, *, above_bytes: float = ABOVE_IDLE_BYTES) -> list[BurstEvent]:
    """The bursts in order of time; none where there is no sample outside of calls to tell the idle layer by."""
    idle = idle_bytes(trace)
    if idle is None:
        return []
    above = trace.used_bytes > idle + above_bytes
    edges = np.diff(np.concatenate(([0], above.astype(np.int8), [0])))
    spans = trace.spans()
    events: list[BurstEvent] = []
    for first, after in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
        from_us = int(trace.t_us[first])
        to_us = int(trace.t_us[min(after, len(trace.t_us) - 1)])
        touched = any(start <= to_us and end >= from_us for start, end in spans)
        peak = int(trace.used_bytes[first:after].max())
        events.append(BurstEvent(from_us, to_us, peak, after - first, touched))
    return events


def samples_above(trace: Trace, threshold_bytes: float) -> tuple[int, int]:
    """How many samples lie above a fixed threshold, and how many of them lie in calls."""
    above = trace.used_bytes > threshold_bytes
    return int(above.sum()), int((above & in_calls(trace, trace.t_us)).sum())
