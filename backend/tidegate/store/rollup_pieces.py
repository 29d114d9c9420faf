"""Pictures of pieces of a run at the resolutions of rollups. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from tidegate.analysis.decimate import BUCKETS_US
from tidegate.analysis.inputs import SessionInput
from tidegate.analysis.intervals import MIN_GAP_US, usual_distance_us
from tidegate.analysis.picture import Picture, cut, joined, part, reduced, session_picture
from tidegate.store import blocks
from tidegate.store.rollup_states import Noted

GRAIN_US: Final = 60_000_000
"""Rollups are built up to multiples of this, and anew from such."""

Fine: TypeAlias = tuple[Picture, blocks.Stats]


def minute_of(t_us: int) -> int:
    """The start of the minute that an instant is in."""
    return t_us // GRAIN_US * GRAIN_US


def fine_piece(data: SessionInput, from_us: int, to_us: int) -> Fine:
    """A session's piece at the finest resolution."""
    return finest(session_picture(data, from_us=from_us), from_us, to_us)


def finest(picture: Picture, from_us: int, to_us: int) -> Fine:
    """The part of an exact picture at the finest resolution."""
    # Cut only then: a layer that has no step within the part is to have the level that it holds there.
    fine = cut(reduced(picture, BUCKETS_US[-1]), from_us, to_us)
    return fine, blocks.figures(part(picture, from_us, to_us).total, BUCKETS_US[-1])


def resolutions(pieces: Sequence[Fine]) -> dict[int, Fine]:
    """The pieces at all resolutions, each from the finer one."""
    picture = joined([one for one, _ in pieces])
    stats = blocks.joined_stats([figures for _, figures in pieces])
    made: dict[int, Fine] = {}
    for bucket_us in reversed(BUCKETS_US):
        picture, stats = reduced(picture, bucket_us), blocks.coarser(stats, bucket_us)
        made[bucket_us] = (picture, stats)
    return made


def reach_us(data: SessionInput, begin: int) -> int:
    """How far back long windows reach that end after ``begin``."""
    reach = begin
    for samples in (data.sched, data.psi):
        long = (samples.t_us >= begin) & (samples.window_us > GRAIN_US)
        if bool(long.any()):
            reach = min(reach, int((samples.t_us - samples.window_us)[long].min()))
    return max(reach, 0)


def with_silences(noted: Noted, data: SessionInput, from_us: int, to_us: int) -> Noted:
    """The silences up to ``to_us``, those from ``from_us`` on anew."""
    t = data.sample_times_us
    ends = np.flatnonzero(np.diff(t) > MIN_GAP_US)
    fresh = [(int(t[i]), int(t[i + 1])) for i in ends if from_us <= t[i + 1] < to_us]
    pairs = zip(noted.silences[::2], noted.silences[1::2], strict=True)
    old = [value for pair in pairs if pair[1] < from_us for value in pair]
    seen = t[t < to_us]
    usual = noted.usual_us if noted.usual_us is not None else usual_distance_us(seen)
    last = int(seen[-1]) if len(seen) else noted.last_us
    return Noted(
        usual_us=usual,
        ended_us=data.ended_us,
        last_us=last if noted.last_us is None or last is None else max(noted.last_us, last),
        silences=[*old, *(value for pair in fresh for value in pair)],
    )
