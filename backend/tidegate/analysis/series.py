"""The answers of ``/api/sessions/{id}/series`` and ``/api/host/series``: charts at the resolution of the screen.

A chart asks for ``px`` columns. Every extreme is kept: a burst that lasts one sample of a million is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .columns import F8, I8, SESSION, CallSpan, HostColumns, MemColumns, PsiColumns, SchedColumns
from .decimate import edges
from .encoding import f8, milliseconds
from .grid import column_greatest, instants, window_percent
from .intervals import Span, clip, silences, union
from .layers import Layer, memory_layers

MAX_PX = 4000
"""No screen is wider."""


@dataclass(frozen=True, slots=True)
class SessionInput:
    """What the charts of one session are made of.

    Attributes:
        mem, sched, psi: samples of ``[from_us, to_us)``, the last of each subject before it included.
        calls: all calls of the session.
        ended_us: end of the session; None while it runs.
        gaps: spans in which records are known to be lost.
        silent_is_gap: whether missing samples are a gap of their own (not so where nobody samples regularly).
    """

    mem: MemColumns = field(default_factory=MemColumns)
    sched: SchedColumns = field(default_factory=SchedColumns)
    psi: PsiColumns = field(default_factory=PsiColumns)
    calls: Sequence[CallSpan] = ()
    ended_us: int | None = None
    gaps: Sequence[Span] = ()
    silent_is_gap: bool = True


@dataclass(frozen=True, slots=True)
class SessionSeries:
    """Chart series of one session. Times in microseconds; NaN is unknown.

    ``mem_t_us`` is not evenly spaced: each column has the moment of its greatest total, and further ones where a
    single layer was higher than then. Between two moments the earlier holds. ``wait`` and ``pressure`` have one value
    a column that was sampled, at the column's middle.
    """

    from_us: int
    to_us: int
    px: int
    resolution_us: int
    mem_t_us: I8
    runtime_bytes: F8
    calls_bytes: dict[str, F8]
    wait_t_us: I8
    wait_percent: F8
    pressure_t_us: I8
    pressure: dict[str, F8]
    gaps: list[Span]

    def to_json(self) -> dict[str, Any]:
        """The shape of the API."""
        return {
            "from_us": self.from_us,
            "to_us": self.to_us,
            "px": self.px,
            "resolution_us": self.resolution_us,
            "memory": {
                "t_ms": f8(milliseconds(self.mem_t_us)),
                "runtime_bytes": f8(self.runtime_bytes),
                "calls": {name: f8(values) for name, values in self.calls_bytes.items()},
            },
            "wait": {"t_ms": f8(milliseconds(self.wait_t_us)), "percent": f8(self.wait_percent)},
            "pressure": {
                "t_ms": f8(milliseconds(self.pressure_t_us)),
                **{name: f8(values) for name, values in self.pressure.items()},
            },
            "gaps": [list(gap) for gap in self.gaps],
        }


def session_series(data: SessionInput, *, from_us: int, to_us: int, px: int) -> SessionSeries:
    """Chart series of ``[from_us, to_us)`` on at most ``px`` columns (1 to :data:`MAX_PX`)."""
    px = min(max(px, 1), MAX_PX)
    to_us = max(to_us, from_us + 1)
    borders = edges(from_us, to_us, px)
    gaps = _gaps(data, from_us, to_us)
    layers, total = memory_layers(data.mem, data.calls, from_us=from_us, ended_us=data.ended_us)
    times, values = _draw_layers(layers, total, borders, gaps)
    middles = (borders[:-1] + borders[1:]) // 2
    wait = _wait_percent(data.sched, borders)
    waited = ~np.isnan(wait)
    pressure = _pressure(data.psi, borders)
    pressed = ~np.isnan(np.array(list(pressure.values()))).all(axis=0)
    return SessionSeries(
        from_us=from_us,
        to_us=to_us,
        px=px,
        resolution_us=max(1, (to_us - from_us) // (len(borders) - 1)),
        mem_t_us=times,
        runtime_bytes=values[0],
        calls_bytes={layer.name: layer_values for layer, layer_values in zip(layers[1:], values[1:], strict=True)},
        wait_t_us=middles[waited],
        wait_percent=wait[waited],
        pressure_t_us=middles[pressed],
        pressure={name: column[pressed] for name, column in pressure.items()},
        gaps=gaps,
    )


def _gaps(data: SessionInput, from_us: int, to_us: int) -> list[Span]:
    known = list(data.gaps)
    if data.silent_is_gap:
        until = to_us if data.ended_us is None else min(data.ended_us, to_us)
        known += silences(data.mem.t_us, until_us=until)
    return clip(union(known), from_us, to_us)


def _draw_layers(layers: list[Layer], total: Layer, borders: I8, gaps: list[Span]) -> tuple[I8, list[F8]]:
    times = instants(total, layers, borders)
    # Before the first sample nothing is known.
    times = times[times >= total.t_us[0]] if len(total.t_us) else times[:0]
    values = [layer.at(times) for layer in layers]
    unknown = np.zeros(len(times), dtype=bool)
    for gap_from, gap_to in gaps:
        unknown |= (times > gap_from) & (times < gap_to)
    for column in values:
        column[unknown] = np.nan
    return times, values


def _wait_percent(sched: SchedColumns, borders: I8) -> F8:
    """Percent of one core: the session's own samples where there are any, else the sum of its subjects."""
    whole = sched.subject == SESSION
    chosen = whole if bool(whole.any()) else ~whole
    return window_percent(
        sched.t_us[chosen], sched.subject[chosen], sched.wait_us[chosen], sched.window_us[chosen], borders
    )


def _pressure(psi: PsiColumns, borders: I8) -> dict[str, F8]:
    """Percent of time; the session's own samples where there are any, else the greatest of its subjects."""
    whole = psi.subject == SESSION
    chosen = whole if bool(whole.any()) else ~whole
    columns = {
        "memory_percent": psi.memory_some_us,
        "cpu_percent": psi.cpu_some_us,
        "io_percent": psi.io_some_us,
    }
    times, tick = np.unique(psi.t_us[chosen], return_inverse=True)
    windows = np.zeros(len(times), dtype=np.int64)
    np.maximum.at(windows, tick, psi.window_us[chosen])
    result: dict[str, F8] = {}
    for name, amounts in columns.items():
        stalled = np.full(len(times), -1, dtype=np.int64)
        np.maximum.at(stalled, tick, amounts[chosen])
        result[name] = window_percent(times, np.zeros_like(times), stalled, windows, borders)
    return result


def host_series(
    host: HostColumns,
    sessions: Mapping[str, SessionInput],
    *,
    from_us: int,
    to_us: int,
    px: int,
    cpus: int | None,
) -> dict[str, Any]:
    """The answer of ``/api/host/series``: one value a column, the greatest of it (the least of what is available).

    Args:
        host: samples of the host, the last before ``from_us`` included.
        sessions: samples of its sessions by id.
        from_us: start.
        to_us: end, not in it.
        px: number of columns, 1 to :data:`MAX_PX`.
        cpus: logical CPUs; without it the CPU share is unknown.
    """
    borders = edges(from_us, max(to_us, from_us + 1), min(max(px, 1), MAX_PX))
    starts = borders[:-1]
    used_values = (host.mem_total_bytes - host.mem_available_bytes).astype(np.float64)
    used = Layer("used", host.t_us, used_values, used_values)
    free = -host.mem_available_bytes.astype(np.float64)
    # The least available is the greatest of its negative.
    available = Layer("available", host.t_us, free, free)
    busy = window_percent(host.t_us, np.zeros_like(host.t_us), host.cpu_busy_us, host.window_us, borders)
    by_session: dict[str, Any] = {}
    for name, data in sessions.items():
        _, total = memory_layers(data.mem, data.calls, from_us=from_us, ended_us=data.ended_us)
        by_session[name] = f8(column_greatest(total, borders)[1])
    return {
        "t_ms": f8(milliseconds(starts)),
        "used_bytes": f8(_known_from_first(used, borders)),
        "available_bytes": f8(-_known_from_first(available, borders)),
        "sessions": by_session,
        "cpu_percent": f8(busy / cpus if cpus else np.full(len(starts), np.nan)),
    }


def _known_from_first(layer: Layer, borders: I8) -> F8:
    """The greatest of each column; NaN before the first sample, where nothing is known."""
    values = column_greatest(layer, borders)[1]
    if len(layer.t_us) == 0:
        return np.full(len(values), np.nan)
    return np.where(borders[1:] <= layer.t_us[0], np.nan, values)
