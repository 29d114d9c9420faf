"""Memory of a session as layers: the runtime, and the calls by category; each a step function of time.

Between two samples the earlier one holds. A call holds nothing after its end but what processes it left behind keep,
as long as they are sampled. Where the kernel's own peak rose further than the samples show, the layer has an
*extreme* at the later sample: memory that was there and went between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .columns import F8, I8, RUNTIME, SESSION, UNKNOWN, CallSpan, MemColumns

HOLD_US = 1_200_000
"""How long the last sample of a call holds that ended before it, or whose end was not seen.

Unchanged memory is sampled once a second, so that long at most nothing is heard of processes left behind.
"""

RUNTIME_NAME = "runtime"


@dataclass(frozen=True, slots=True)
class Layer:
    """Steps of one layer at distinct times in order: the level from there on, and the extreme reached there."""

    name: str
    t_us: I8
    level: F8
    extreme: F8

    def at(self, t_us: I8) -> F8:
        """Value at each time; the extreme where the time is that of a step, 0 before the first step."""
        if len(self.t_us) == 0:
            return np.zeros(len(t_us))
        index = np.searchsorted(self.t_us, t_us, side="right") - 1
        safe = np.maximum(index, 0)
        values = np.where(self.t_us[safe] == t_us, self.extreme[safe], self.level[safe])
        return np.where(index < 0, 0.0, values)


@dataclass(frozen=True, slots=True)
class _Rows:
    t_us: I8
    subject: I8
    used: I8
    peak: I8

    def __getitem__(self, rows: I8 | NDArray[np.bool_]) -> _Rows:
        return _Rows(self.t_us[rows], self.subject[rows], self.used[rows], self.peak[rows])

    def plus(self, more: list[tuple[int, int, int, int]]) -> _Rows:
        if not more:
            return self
        t, subject, used, peak = np.array(sorted(more), dtype=np.int64).T
        # Behind the samples of the same time: an end that a sample shares its time with comes after it.
        places = np.searchsorted(self.t_us, t, side="right")
        return _Rows(
            np.insert(self.t_us, places, t),
            np.insert(self.subject, places, subject),
            np.insert(self.used, places, used),
            np.insert(self.peak, places, peak),
        )


def memory_layers(
    mem: MemColumns,
    calls: Sequence[CallSpan],
    *,
    from_us: int,
    ended_us: int | None = None,
    highest: Mapping[str, int] | None = None,
) -> tuple[list[Layer], Layer]:
    """The layers of a session, the runtime first, and their total.

    Of a part of the samples comes the same as of all of them, for the time between the last ones before the part and
    the first ones behind it.

    Args:
        mem: samples in order of time; of each subject, the last before the part and the first behind it included.
        calls: the session's calls; samples of others count as category ``other``.
        from_us: since when the session was observed; a call that began earlier has its first peak before the samples.
        ended_us: end of the session, None while it runs.
        highest: by call, the most that samples have shown which are not in ``mem`` because they were earlier.
    """
    rows = _Rows(mem.t_us, mem.subject, mem.used_bytes, mem.peak_bytes)
    if len(rows.t_us) > 1 and bool((np.diff(rows.t_us) < 0).any()):
        rows = rows[np.argsort(rows.t_us, kind="stable")]
    spans = _by_subject(mem.calls, calls)
    of_session = rows.subject == SESSION
    whole = rows[of_session]
    parts = rows[~of_session] if len(whole.t_us) else rows
    parts = parts.plus(_end_rows(parts, spans, highest or {}, from_us=from_us))
    runtime = np.flatnonzero(parts.subject == RUNTIME)
    # Until the runtime is sampled itself, and not only if it never is: else what comes later would change the past.
    underived = whole[whole.t_us < parts.t_us[runtime[0]]] if len(runtime) else whole
    if len(underived.t_us):
        parts = parts.plus(_derived_runtime(underived, parts, spans, from_us=from_us))
    if ended_us is not None and bool((parts.subject == RUNTIME).any()):
        parts = parts[(parts.subject != RUNTIME) | (parts.t_us < ended_us)].plus([(ended_us, RUNTIME, 0, UNKNOWN)])
    return _layers(parts, spans, from_us=from_us)


def _by_subject(ids: Sequence[str], calls: Sequence[CallSpan]) -> list[CallSpan]:
    """The calls in the order of their subjects: first those with samples, then the others."""
    known = {call.id: call for call in calls}
    sampled = [known.get(name) or CallSpan(name, "other", None, None) for name in ids]
    seen = set(ids)
    return sampled + [call for call in calls if call.id not in seen]


def _end_rows(
    rows: _Rows, spans: list[CallSpan], earlier: Mapping[str, int], *, from_us: int
) -> list[tuple[int, int, int, int]]:
    """Rows that give memory back at the end of calls, with the peak that no sample has shown."""
    count = len(spans) + 1
    highest = np.zeros(count, dtype=np.int64)
    if earlier:
        highest[1:] = [earlier.get(span.id, 0) for span in spans]
    last = np.full(count, -1, dtype=np.int64)
    np.maximum.at(highest, rows.subject, np.maximum(rows.used, rows.peak))
    last[rows.subject] = rows.t_us  # in order of time, so the last one stays
    more: list[tuple[int, int, int, int]] = []
    for subject, span in enumerate(spans, start=1):
        last_us = int(last[subject])
        if span.ended_us is not None and not span.lost:
            unseen = span.peak_bytes is not None and span.peak_bytes > highest[subject] and span.ended_us >= from_us
            kept = span.kept_bytes or 0
            more.append((span.ended_us, subject, kept, span.peak_bytes or 0 if unseen else UNKNOWN))
            if kept or last_us > span.ended_us:
                more.append((max(last_us, span.ended_us) + HOLD_US, subject, 0, UNKNOWN))
        elif span.lost and last_us >= 0:
            more.append((last_us + HOLD_US, subject, 0, UNKNOWN))
    return more


def _derived_runtime(
    whole: _Rows, parts: _Rows, spans: list[CallSpan], *, from_us: int
) -> list[tuple[int, int, int, int]]:
    """Where only the session as a whole was sampled, the runtime is what its calls do not hold."""
    _, calls = _layers(parts, spans, from_us=from_us)
    step = np.searchsorted(calls.t_us, whole.t_us, side="right")
    held = np.concatenate(([0.0], calls.level))[step].astype(np.int64)
    used = np.maximum(whole.used - held, 0)
    peak = np.where(whole.peak == UNKNOWN, UNKNOWN, np.maximum(whole.peak - held, 0))
    return [
        (int(t), RUNTIME, int(value), int(highest)) for t, value, highest in zip(whole.t_us, used, peak, strict=True)
    ]


def _layers(rows: _Rows, spans: list[CallSpan], *, from_us: int) -> tuple[list[Layer], Layer]:
    names = [RUNTIME_NAME, *dict.fromkeys(span.category for span in spans)]
    code_of = {name: code for code, name in enumerate(names)}
    codes = np.array([0, *(code_of[span.category] for span in spans)], dtype=np.int16)
    delta, excess = _steps(rows, spans, from_us=from_us)
    code = codes[rows.subject]
    layers = [
        _layer(name, rows.t_us, delta, excess, np.flatnonzero(code == number)) for number, name in enumerate(names)
    ]
    layers = [layer for layer in layers if len(layer.t_us) or layer.name == RUNTIME_NAME]
    return layers, _layer("total", rows.t_us, delta, excess, None)


def _steps(rows: _Rows, spans: list[CallSpan], *, from_us: int) -> tuple[I8, I8]:
    """For each row in order of time: change of its subject's level, and how far its extreme lies above the level."""
    # Few subjects: 16 bits make the stable sort a radix sort, many times faster on a million rows.
    key = rows.subject.astype(np.int16) if len(spans) < 32_000 else rows.subject
    order = np.argsort(key, kind="stable")
    ordered = rows[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = ordered.subject[1:] != ordered.subject[:-1]
    before = np.roll(ordered.used, 1)
    before[first] = 0
    # The last that is known of the subject: that a call's end says nothing of it makes an old peak no new one.
    place = np.arange(len(order))
    known = np.maximum.accumulate(np.where((ordered.peak >= 0) | first, place, 0))
    peak_before = np.roll(np.maximum(ordered.peak[known], 0), 1)
    fresh = np.zeros(len(spans) + 1, dtype=bool)
    fresh[1:] = [span.started_us is not None and span.started_us >= from_us for span in spans]
    peak_before[first] = np.where(fresh[ordered.subject[first]], 0, ordered.peak[first])
    excess = np.where(ordered.peak > peak_before, np.maximum(ordered.peak - ordered.used, 0), 0)
    delta = np.empty(len(order), dtype=np.int64)
    delta[order] = ordered.used - before
    excess_by_time = np.empty(len(order), dtype=np.int64)
    excess_by_time[order] = excess
    return delta, excess_by_time


def _layer(name: str, t_us: I8, delta: I8, excess: I8, rows: I8 | None) -> Layer:
    if rows is not None:
        t_us, delta, excess = t_us[rows], delta[rows], excess[rows]
    if len(t_us) == 0:
        empty = np.empty(0)
        return Layer(name, t_us, empty, empty)
    # Rows of one time are one step: between them the sum is of no moment that ever was.
    begins = np.ones(len(t_us), dtype=bool)
    begins[1:] = t_us[1:] != t_us[:-1]
    starts = np.flatnonzero(begins)
    level = np.cumsum(delta)[np.append(starts[1:], len(t_us)) - 1].astype(np.float64)
    # Subjects need not have been at their highest together: only the greatest excess is known to have been there.
    return Layer(name, t_us[starts], level, level + np.maximum.reduceat(excess, starts))
