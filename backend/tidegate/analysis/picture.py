"""What the charts of a session or host are drawn from: step functions of time, exact or at the resolution of a rollup.

A rollup keeps, of each of its buckets, those steps that a chart can come to draw: where the total and each layer are
greatest, and the last. So of columns that are made of whole buckets it gives exactly what the samples give: the same
extremes at the same instants, and the same layers at those instants. Buckets are half-open, from 0 (1970).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .columns import F8, I8, SESSION, HostColumns, PsiColumns, SchedColumns
from .decimate import first_of_greatest
from .grid import Windows, windows
from .inputs import SessionInput
from .layers import RUNTIME_NAME, Layer, memory_layers

WAIT: Final = "wait"
BUSY: Final = "busy"
USED: Final = "used"
AVAILABLE: Final = "available"
PRESSURE: Final = ("memory_percent", "cpu_percent", "io_percent")


def nothing(name: str) -> Layer:
    """A layer without steps."""
    empty = np.empty(0)
    return Layer(name, np.empty(0, dtype=np.int64), empty, empty)


@dataclass(frozen=True, slots=True)
class Picture:
    """Layers, their total, and shares of time by name."""

    layers: list[Layer]
    total: Layer
    shares: Mapping[str, Windows] = field(default_factory=dict)

    def changes_after(self, t_us: int) -> bool:
        """Whether there is a step after an instant."""
        steps = [self.total, *self.layers, *(layer for share in self.shares.values() for layer in share.both)]
        return any(len(layer.t_us) and int(layer.t_us[-1]) > t_us for layer in steps)

    def share(self, name: str) -> Windows:
        """A share of time; one without steps where it was not sampled."""
        return self.shares.get(name) or Windows(nothing("percent"), nothing("sampled"))


def session_picture(data: SessionInput, *, from_us: int) -> Picture:
    """The exact picture of a session's samples. ``from_us``: where its ``since_us`` is not known."""
    since_us = from_us if data.since_us is None else data.since_us
    layers, total = memory_layers(
        data.mem, data.calls, from_us=since_us, ended_us=data.ended_us, highest=data.highest
    )  # fmt: skip
    shares = {WAIT: _wait(data.sched)} if len(data.sched.t_us) else {}
    if len(data.psi.t_us):
        shares |= _pressure(data.psi)
    return Picture(layers, total, {name: share for name, share in shares.items() if len(share.sampled.t_us)})


def host_picture(host: HostColumns) -> Picture:
    """The exact picture of a host: used memory, available memory (its negative: the least is kept), CPU time."""
    used_values = (host.mem_total_bytes - host.mem_available_bytes).astype(np.float64)
    free = -host.mem_available_bytes.astype(np.float64)
    used = _distinct(Layer(USED, host.t_us, used_values, used_values))
    available = _distinct(Layer(AVAILABLE, host.t_us, free, free))
    busy = windows(host.t_us, np.zeros_like(host.t_us), host.cpu_busy_us, host.window_us)
    return Picture([used, available], used, {BUSY: busy})


def _distinct(layer: Layer) -> Layer:
    """One step a time: the last level, the greatest extreme."""
    if len(layer.t_us) == 0:
        return layer
    starts = np.flatnonzero(np.diff(layer.t_us, prepend=layer.t_us[0] - 1))
    lasts = np.append(starts[1:], len(layer.t_us)) - 1
    return Layer(layer.name, layer.t_us[starts], layer.level[lasts], np.maximum.reduceat(layer.extreme, starts))


def _wait(sched: SchedColumns) -> Windows:
    """Percent of one core: the session's own samples where there are any, else the sum of its subjects."""
    chosen = _whole_or_parts(sched.subject)
    return windows(sched.t_us[chosen], sched.subject[chosen], sched.wait_us[chosen], sched.window_us[chosen])


def _pressure(psi: PsiColumns) -> dict[str, Windows]:
    """Percent of time; the session's own samples where there are any, else the greatest of its subjects."""
    chosen = _whole_or_parts(psi.subject)
    times, tick = np.unique(psi.t_us[chosen], return_inverse=True)
    window_us = np.zeros(len(times), dtype=np.int64)
    np.maximum.at(window_us, tick, psi.window_us[chosen])
    result: dict[str, Windows] = {}
    for name, amounts in zip(PRESSURE, (psi.memory_some_us, psi.cpu_some_us, psi.io_some_us), strict=True):
        stalled = np.full(len(times), -1, dtype=np.int64)
        np.maximum.at(stalled, tick, amounts[chosen])
        result[name] = windows(times, np.zeros_like(times), stalled, window_us)
    return result


def _whole_or_parts(subject: I8) -> NDArray[np.bool_]:
    whole: NDArray[np.bool_] = subject == SESSION
    return whole if bool(whole.any()) else ~whole


# --- rollups -------------------------------------------------------------------------------------------------------


def reduced(picture: Picture, bucket_us: int) -> Picture:
    """The picture at the resolution of ``bucket_us``. Of a reduced one, when that is a multiple of its bucket."""
    kept = [_kept(layer, bucket_us) for layer in picture.layers]
    total = _kept(picture.total, bucket_us)
    times = np.unique(np.concatenate([total.t_us, *(layer.t_us for layer in kept)]))
    layers = [Layer(layer.name, times, level_at(layer, times), layer.at(times)) for layer in picture.layers]
    shares = {
        name: Windows(_kept(share.percent, bucket_us), _kept(share.sampled, bucket_us))
        for name, share in picture.shares.items()
    }
    return Picture(layers, total, shares)


def _kept(layer: Layer, bucket_us: int) -> Layer:
    """Of each bucket the first greatest step, the last, and one at its very start; the layer's first."""
    if len(layer.t_us) == 0:
        return layer
    starts, lasts = segments(layer.t_us, bucket_us)
    at_start = starts[layer.t_us[starts] % bucket_us == 0]
    mask = np.zeros(len(layer.t_us), dtype=bool)
    for rows in (first_of_greatest(layer.extreme, starts), lasts, at_start):
        mask[rows] = True
    mask[0] = True
    return _rows(layer, mask)


def segments(t_us: I8, bucket_us: int) -> tuple[I8, I8]:
    """First and last index of each bucket that has steps."""
    bucket = t_us // bucket_us
    starts = np.flatnonzero(np.diff(bucket, prepend=bucket[:1] - 1))
    return starts, np.append(starts[1:], len(t_us)) - 1


def level_at(layer: Layer, t_us: I8) -> F8:
    """The level from each time on; 0 before the first step."""
    if len(layer.t_us) == 0:
        return np.zeros(len(t_us))
    index = np.searchsorted(layer.t_us, t_us, side="right") - 1
    return np.where(index < 0, 0.0, layer.level[np.maximum(index, 0)])


def _rows(layer: Layer, rows: slice | NDArray[np.bool_]) -> Layer:
    return Layer(layer.name, layer.t_us[rows], layer.level[rows], layer.extreme[rows])


def _part(layer: Layer, from_us: int | None, to_us: int | None) -> Layer:
    first = 0 if from_us is None else int(np.searchsorted(layer.t_us, from_us, side="left"))
    end = len(layer.t_us) if to_us is None else int(np.searchsorted(layer.t_us, to_us, side="left"))
    return _rows(layer, slice(first, end))


def part(picture: Picture, from_us: int | None, to_us: int | None) -> Picture:
    """The steps of ``[from_us, to_us)``, None: without that bound."""
    return _each(picture, lambda layer: _part(layer, from_us, to_us))


def cut(picture: Picture, from_us: int, to_us: int) -> Picture:
    """The steps of ``[from_us, to_us)`` and one at its start, so that it stands alone: what held before holds there."""
    return _each(picture, lambda layer: _cut(layer, from_us, to_us))


def _cut(layer: Layer, from_us: int, to_us: int) -> Layer:
    steps = _part(layer, from_us, to_us)
    before = int(np.searchsorted(layer.t_us, from_us, side="left"))
    if before == 0 or (len(steps.t_us) and int(steps.t_us[0]) == from_us):
        return steps
    level = layer.level[before - 1 : before]
    held = Layer(layer.name, np.array([from_us], dtype=np.int64), level, level)
    return _concatenated(layer.name, [held, steps])


def _each(picture: Picture, change: Callable[[Layer], Layer]) -> Picture:
    return Picture(
        [change(layer) for layer in picture.layers],
        change(picture.total),
        {name: Windows(change(share.percent), change(share.sampled)) for name, share in picture.shares.items()},
    )


def joined(pictures: Iterable[Picture]) -> Picture:
    """Pictures of times that follow each other as one."""
    parts = list(pictures)
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(layer.name for picture in parts for layer in picture.layers)
    by_name = [{layer.name: layer for layer in picture.layers} for picture in parts]
    layers = [_concatenated(name, [known.get(name) for known in by_name]) for name in names]
    layers.sort(key=lambda layer: layer.name != RUNTIME_NAME)
    shares = {
        name: Windows(
            _concatenated("percent", [picture.share(name).percent for picture in parts]),
            _concatenated("sampled", [picture.share(name).sampled for picture in parts]),
        )
        for name in dict.fromkeys(name for picture in parts for name in picture.shares)
    }
    return Picture(layers, _concatenated("total", [picture.total for picture in parts]), shares)


def _concatenated(name: str, layers: Iterable[Layer | None]) -> Layer:
    found = [layer for layer in layers if layer is not None]
    if not found:
        return nothing(name)
    return Layer(
        name,
        np.concatenate([layer.t_us for layer in found]),
        np.concatenate([layer.level for layer in found]),
        np.concatenate([layer.extreme for layer in found]),
    )
