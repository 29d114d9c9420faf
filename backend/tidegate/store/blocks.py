"""Pictures of rollups as bytes: the buckets of one block, each array as differences, compressed.

Total, layers and shares of time are apart, because the chart of a host with many sessions needs only their totals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import zstandard

from tidegate.analysis.columns import F8, I8
from tidegate.analysis.grid import Windows
from tidegate.analysis.layers import Layer
from tidegate.analysis.picture import Picture, cut, nothing, segments
from tidegate.errors import StoreError

BLOCK_BUCKETS: Final = 3600
"""Buckets of one block."""

_SCALE: Final = 1e6  # of percents
_MOST: Final = float(1 << 62)
_MAX_BYTES: Final = 1 << 28


class DamagedRollupError(StoreError):
    """A rollup is not as it was written. The samples are still there: it can be passed over, or built anew."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Of each bucket with steps: its start, how many there are, and of the total's level their sum and extremes."""

    t_us: I8
    count: I8
    sum: F8
    min: F8
    max: F8


@dataclass(frozen=True, slots=True)
class Block:
    """A row of ``rollups``."""

    block: int
    stats: bytes
    total: bytes
    layers: bytes
    shares: bytes


class _Packed(msgspec.Struct):
    names: list[str]
    lengths: list[int]
    data: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Packed)
_compressor: Final = zstandard.ZstdCompressor(level=1)
_decompressor: Final = zstandard.ZstdDecompressor()


def _pack(names: list[str], arrays: Sequence[I8]) -> bytes:
    steps = [np.diff(array, prepend=np.int64(0)) for array in arrays]
    raw = np.concatenate(steps).astype("<i8").tobytes() if steps else b""
    return _encoder.encode(_Packed(names, [len(array) for array in arrays], _compressor.compress(raw)))


def _unpack(blob: bytes) -> tuple[list[str], list[I8]]:
    """Names and arrays. Raises DamagedRollupError."""
    try:
        packed = _decoder.decode(blob)
        raw = _decompressor.decompress(packed.data, max_output_size=_MAX_BYTES)
    except (msgspec.MsgspecError, zstandard.ZstdError) as error:
        raise DamagedRollupError(f"a damaged rollup: {error}") from None
    if len(raw) != 8 * sum(packed.lengths) or min(packed.lengths, default=0) < 0:
        raise DamagedRollupError("a damaged rollup: its length is wrong")
    numbers = np.frombuffer(raw, dtype="<i8")
    ends = np.cumsum(packed.lengths).tolist()
    return packed.names, [
        np.cumsum(numbers[end - length : end]) for end, length in zip(ends, packed.lengths, strict=True)
    ]


def _whole(values: F8, scale: float = 1.0) -> I8:
    return np.clip(np.rint(values * scale), -_MOST, _MOST).astype(np.int64)


def _arrays(layer: Layer, scale: float = 1.0) -> list[I8]:
    """Times, levels, and where and how far extremes lie above; without steps that change nothing."""
    level = _whole(layer.level, scale)
    above = _whole(layer.extreme, scale) - level
    kept = above != 0
    if len(level):
        kept[0] = True
        kept[1:] |= level[1:] != level[:-1]
    places = np.flatnonzero(above[kept])
    return [layer.t_us[kept], level[kept], places, above[kept][places]]


_EACH: Final = 4  # arrays of a layer


def _layer(name: str, arrays: Sequence[I8], scale: float = 1.0) -> Layer:
    t_us, whole, places, above = arrays
    level = whole / scale
    if len(places) == 0:
        return Layer(name, t_us, level, level)
    extreme = level.copy()
    extreme[places] = (whole[places] + above) / scale
    return Layer(name, t_us, level, extreme)


def blocks(picture: Picture, stats: Stats, bucket_us: int) -> Iterator[Block]:
    """The picture, reduced to ``bucket_us``, cut into blocks that each stand alone; none where it has no steps."""
    length = BLOCK_BUCKETS * bucket_us
    numbers = np.unique(np.concatenate([layer.t_us for layer in _all(picture)]) // length)
    for number in numbers.tolist():
        piece = cut(picture, number * length, (number + 1) * length)
        rows = slice(*np.searchsorted(stats.t_us, (number * length, (number + 1) * length)).tolist())
        names = [layer.name for layer in piece.layers]
        layers = [array for one in piece.layers for array in _arrays(one)]
        parts = [one for share in piece.shares.values() for one in (share.percent, share.sampled)]
        shares = [array for one in parts for array in _arrays(one, _SCALE)]
        sums = [_whole(values[rows]) for values in (stats.sum, stats.min, stats.max)]
        yield Block(
            number,
            _pack([], [stats.t_us[rows], stats.count[rows], *sums]),
            _pack([], _arrays(piece.total)),
            _pack(names, layers),
            _pack(list(piece.shares), shares),
        )


def _all(picture: Picture) -> Iterator[Layer]:
    yield picture.total
    yield from picture.layers
    for share in picture.shares.values():
        yield share.percent
        yield share.sampled


def total_of(blob: bytes) -> Layer:
    """The total of a block."""
    return _layer("total", _unpack(blob)[1])


def picture_of(total: bytes, layers: bytes, shares: bytes) -> Picture:
    """The picture of a block."""
    names, arrays = _unpack(layers)
    share_names, rows = _unpack(shares)
    steps = [_layer("", rows[at : at + _EACH], _SCALE) for at in range(0, len(rows), _EACH)]
    found = {name: Windows(steps[2 * index], steps[2 * index + 1]) for index, name in enumerate(share_names)}
    drawn = [
        _layer(name, arrays[at : at + _EACH]) for name, at in zip(names, range(0, len(arrays), _EACH), strict=True)
    ]
    return Picture(drawn, total_of(total), found)


def stats_of(blob: bytes) -> Stats:
    """The figures of a block."""
    _, (t_us, count, sum_, min_, max_) = _unpack(blob)
    return Stats(t_us, count, sum_.astype(np.float64), min_.astype(np.float64), max_.astype(np.float64))


def figures(total: Layer, bucket_us: int) -> Stats:
    """Count, sum, least and greatest of each bucket's steps."""
    if len(total.t_us) == 0:
        empty = nothing("").level
        return Stats(nothing("").t_us, nothing("").t_us, empty, empty, empty)
    starts, lasts = segments(total.t_us, bucket_us)
    return Stats(
        total.t_us[starts] // bucket_us * bucket_us,
        lasts + 1 - starts,
        np.add.reduceat(total.level, starts),
        np.minimum.reduceat(total.level, starts),
        np.maximum.reduceat(total.extreme, starts),
    )


def coarser(stats: Stats, bucket_us: int) -> Stats:
    """The figures of coarser buckets out of those of finer ones."""
    if len(stats.t_us) == 0:
        return stats
    starts, _ = segments(stats.t_us, bucket_us)
    return Stats(
        stats.t_us[starts] // bucket_us * bucket_us,
        np.add.reduceat(stats.count, starts),
        np.add.reduceat(stats.sum, starts),
        np.minimum.reduceat(stats.min, starts),
        np.maximum.reduceat(stats.max, starts),
    )


def joined_stats(parts: Iterable[Stats]) -> Stats:
    """Figures of times that follow each other as one."""
    found = list(parts)
    return Stats(
        np.concatenate([one.t_us for one in found]),
        np.concatenate([one.count for one in found]),
        np.concatenate([one.sum for one in found]),
        np.concatenate([one.min for one in found]),
        np.concatenate([one.max for one in found]),
    )


def stats_before(stats: Stats, t_us: int) -> Stats:
    """The figures of the buckets before an instant."""
    end = int(np.searchsorted(stats.t_us, t_us))
    return Stats(stats.t_us[:end], stats.count[:end], stats.sum[:end], stats.min[:end], stats.max[:end])
