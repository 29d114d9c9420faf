"""A session as a trace of samples and calls, and the plain figures of one: peak, idle layer, shares, change rates.

Made for sessions whose memory is known as a whole only (imports); the definitions are those of AgentCgroup's paper with
its defects mended: bytes are exact, time in tools is the union of the calls, bursts are events and not samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidegate_collectors.records import AnyRecord, CallEnd, CallStart, MemSample, SchedSample, Unknown

from .columns import F8, I8
from .intervals import Span, covered_us, union

MB: Final = 1_000_000
"""All thresholds are decimal, as the traces are."""

MAX_STEP_US: Final = 2_000_000
"""Neighbours further apart say nothing of a rate: a sample is missing between them."""

MIN_SPIKE_US: Final = 100_000
"""A shorter call has no spike: sampling at a second cannot see it."""


@dataclass(frozen=True, slots=True)
class TraceCall:
    """A tool call; ``ended_us`` None where its end was not seen."""

    id: str
    tool: str
    category: str
    command: str | None
    started_us: int
    ended_us: int | None


@dataclass(frozen=True, slots=True)
class Trace:
    """A session: samples of its memory, its CPU time by window, its calls in order of their start.

    Attributes:
        t_us, used_bytes: samples of memory in order of time.
        cpu_t_us, oncpu_us, window_us: CPU time within the window that ends at ``cpu_t_us``.
        calls: all calls, in order of their start.
    """

    session: str
    t_us: I8
    used_bytes: I8
    cpu_t_us: I8
    oncpu_us: I8
    window_us: I8
    calls: tuple[TraceCall, ...]

    def spans(self) -> list[Span]:
        """The calls' intervals, those of known length."""
        return [(call.started_us, call.ended_us) for call in self.calls if call.ended_us is not None]


def traces_of(records: Iterable[AnyRecord | Unknown]) -> dict[str, Trace]:
    """The traces of all sessions among the records, by session id."""
    memory: dict[str, list[tuple[int, int]]] = {}
    cpu: dict[str, list[tuple[int, int, int]]] = {}
    begun: dict[str, dict[str, CallStart]] = {}
    ended: dict[tuple[str, str], int] = {}
    for record in records:
        if isinstance(record, Unknown) or record.session is None:
            continue
        name = record.session
        if isinstance(record, MemSample) and record.subject == "session":
            memory.setdefault(name, []).append((record.t, record.anon_bytes + (record.shmem_bytes or 0)))
        elif isinstance(record, SchedSample) and record.subject == "session" and record.window_us:
            cpu.setdefault(name, []).append((record.t, record.oncpu_us, record.window_us))
        elif isinstance(record, CallStart) and record.call is not None:
            begun.setdefault(name, {}).setdefault(record.call, record)
        elif isinstance(record, CallEnd) and record.call is not None and not record.lost:
            ended.setdefault((name, record.call), record.t)
    traces: dict[str, Trace] = {}
    for name in dict.fromkeys((*memory, *cpu, *begun)):
        t_us, used = _columns(memory.get(name, []), 2)
        cpu_t_us, oncpu_us, window_us = _columns(cpu.get(name, []), 3)
        calls = _calls(name, begun.get(name, {}), ended)
        traces[name] = Trace(name, t_us, used, cpu_t_us, oncpu_us, window_us, calls)
    return traces


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> list[I8]:
    table = np.array(sorted(rows), dtype=np.int64).reshape(len(rows), width)
    return [table[:, column].copy() for column in range(width)]


def _calls(session: str, begun: dict[str, CallStart], ended: dict[tuple[str, str], int]) -> tuple[TraceCall, ...]:
    calls = [
        TraceCall(name, record.tool, record.category, record.command, record.t, ended.get((session, name)))
        for name, record in begun.items()
    ]
    return tuple(sorted(calls, key=lambda call: (call.started_us, call.id)))


def peak_bytes(trace: Trace) -> int | None:
    """Most memory in one sample."""
    return int(trace.used_bytes.max()) if len(trace.used_bytes) else None


def mean_bytes(trace: Trace) -> float | None:
    """Mean of the samples."""
    return float(trace.used_bytes.mean()) if len(trace.used_bytes) else None


def peak_over_mean(trace: Trace) -> float | None:
    """Peak to mean; a static limit reserves so many times what is used."""
    mean = mean_bytes(trace)
    return float(trace.used_bytes.max()) / mean if mean else None


def in_calls(trace: Trace, t_us: I8) -> NDArray[np.bool_]:
    """Whether each time lies in a call (their ends belong to them)."""
    spans = union(trace.spans())
    if not spans:
        return np.zeros(len(t_us), dtype=bool)
    starts, ends = np.array(spans, dtype=np.int64).T
    index = np.searchsorted(starts, t_us, side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (t_us <= ends[np.maximum(index, 0)])
    return inside


def idle_bytes(trace: Trace) -> float | None:
    """The idle layer: median of the samples outside of all calls; None when there are none."""
    outside = trace.used_bytes[~in_calls(trace, trace.t_us)]
    return float(np.median(outside)) if len(outside) else None


def tool_share(trace: Trace, from_us: int, to_us: int) -> float | None:
    """Share of the time between two instants in which a tool ran; calls that overlap count once."""
    if to_us <= from_us:
        return None
    spans = [(max(start, from_us), min(end, to_us)) for start, end in trace.spans()]
    return covered_us(spans) / (to_us - from_us)


def change_rates(trace: Trace) -> F8:
    """Absolute change of memory between neighbours, bytes a second; pairs with a gap between them are left out."""
    apart = np.diff(trace.t_us)
    near = (apart > 0) & (apart <= MAX_STEP_US)
    rates: F8 = np.abs(np.diff(trace.used_bytes))[near] / (apart[near] / 1e6)
    return rates


def cores(trace: Trace) -> F8:
    """CPU load in each window, in cores."""
    load: F8 = trace.oncpu_us / trace.window_us
    return load


def spikes(trace: Trace, *, min_us: int = MIN_SPIKE_US) -> dict[str, int]:
    """How far memory rose in each call above the last sample before it (below it: negative), by call id.

    Calls that are shorter than ``min_us``, or in which no sample lies, are missing.
    """
    found: dict[str, int] = {}
    for call in trace.calls:
        if call.ended_us is None or call.ended_us - call.started_us < min_us:
            continue
        first, last = np.searchsorted(trace.t_us, [call.started_us, call.ended_us], side="right")
        if 0 < first < last:
            found[call.id] = int(trace.used_bytes[first:last].max()) - int(trace.used_bytes[first - 1])
    return found
