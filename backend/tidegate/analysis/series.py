"""The answers of ``/api/sessions/{id}/series`` and ``/api/host/series``: charts at the resolution of the screen.

A chart asks for ``px`` columns. Every extreme is kept: a burst that lasts one sample of a million is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .columns import F8, I8
from .encoding import f8, milliseconds
from .grid import column_greatest, instants
from .intervals import Span, clip, union
from .layers import Layer
from .picture import (
    AVAILABLE,
    BUSY,
    PRESSURE,
    USED,
    WAIT,
    Picture,
    nothing,
)

MAX_PX = 4000
"""No screen is wider."""


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


def draw_session(
    picture: Picture, gaps: Sequence[Span], borders: I8, *, from_us: int, to_us: int, px: int
) -> SessionSeries:
    """The picture on the columns between the borders, which cover ``[from_us, to_us)``."""
    gaps = clip(union(gaps), from_us, to_us)
    times, values = _draw_layers(picture.layers, picture.total, borders, gaps)
    middles = (borders[:-1] + borders[1:]) // 2
    wait = picture.share(WAIT).greatest(borders)
    waited = ~np.isnan(wait)
    pressure = {name: picture.share(name).greatest(borders) for name in PRESSURE}
    pressed = ~np.isnan(np.array(list(pressure.values()))).all(axis=0)
    return SessionSeries(
        from_us=from_us,
        to_us=to_us,
        px=px,
        resolution_us=max(1, int(borders[-1] - borders[0]) // (len(borders) - 1)),
        mem_t_us=times,
        runtime_bytes=values[0],
        calls_bytes={
            layer.name: layer_values for layer, layer_values in zip(picture.layers[1:], values[1:], strict=True)
        },
        wait_t_us=middles[waited],
        wait_percent=wait[waited],
        pressure_t_us=middles[pressed],
        pressure={name: column[pressed] for name, column in pressure.items()},
        gaps=gaps,
    )


def _draw_layers(layers: list[Layer], total: Layer, borders: I8, gaps: list[Span]) -> tuple[I8, list[F8]]:
    times = instants(total, layers, borders)
    # Before the first sample nothing is known.
    times = times[times >= total.t_us[0]] if len(total.t_us) else times[:0]
    values = [layer.at(times) for layer in layers]
    unknown = np.zeros(len(times), dtype=bool)
    for gap_from, gap_to in gaps:
        unknown[np.searchsorted(times, gap_from, "right") : np.searchsorted(times, gap_to, "left")] = True
    for column in values:
        column[unknown] = np.nan
    return times, values


def draw_host(picture: Picture, totals: Mapping[str, Layer], borders: I8, *, cpus: int | None) -> dict[str, Any]:
    """The picture of a host, and the totals of its sessions, on the columns between the borders."""
    starts = borders[:-1]
    layers = {layer.name: layer for layer in picture.layers}
    used, available = (_known_from_first(layers.get(name, nothing(name)), borders) for name in (USED, AVAILABLE))
    busy = picture.share(BUSY).greatest(borders)
    return {
        "t_ms": f8(milliseconds(starts)),
        "used_bytes": f8(used),
        "available_bytes": f8(-available),
        "sessions": {name: f8(column_greatest(total, borders)[1]) for name, total in totals.items()},
        "cpu_percent": f8(busy / cpus if cpus else np.full(len(starts), np.nan)),
    }


def _known_from_first(layer: Layer, borders: I8) -> F8:
    """The greatest of each column; NaN before the first sample, where nothing is known."""
    values = column_greatest(layer, borders)[1]
    if len(layer.t_us) == 0:
        return np.full(len(values), np.nan)
    return np.where(borders[1:] <= layer.t_us[0], np.nan, values)
