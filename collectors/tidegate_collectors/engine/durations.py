"""How long tools take, and whether sessions come back: learnt as they do. Bounded, deterministic, pure."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from typing import Final, Literal

from msgspec import Struct

POINTS: Final = 48
"""Points of a distribution as a decision is given it."""

PRIOR_WEIGHT: Final = 4
"""What is assumed counts as much as so many samples."""

CONTINUUM_COLD_START: Final = 100
"""Continuum's K: with no more samples than this in all the prior is taken, with no more of a tool those of all."""

Source = Literal["tool", "pooled", "prior"]

_PRIOR_MEAN_S: Final = 1.0
_PRIOR: Final = [
    (-_PRIOR_MEAN_S * math.log(1.0 - share), share) for share in ((index + 0.5) / POINTS for index in range(POINTS))
]
"""Continuum's prior: exponential with a mean of one second."""


class Prediction(Struct, frozen=True, kw_only=True):
    """When a session is expected back. ``points``: (seconds, probability of at most that), growing; ``n`` samples."""

    p50_s: float
    p90_s: float
    n: int
    source: Source
    points: list[tuple[float, float]]


class _Samples:
    """The newest samples, in order of time and of size."""

    __slots__ = ("_in_time", "in_order")

    def __init__(self, most: int) -> None:
        self._in_time: deque[float] = deque(maxlen=most)
        self.in_order: list[float] = []

    def add(self, seconds: float) -> None:
        if len(self._in_time) == self._in_time.maxlen:
            del self.in_order[bisect_right(self.in_order, self._in_time[0]) - 1]
        self._in_time.append(seconds)
        insort(self.in_order, seconds)


class Durations:
    """Times from the end of a turn to the session's next request, by the tool that was called.

    Args:
        tools: how many tools are told apart; the one that was used longest ago makes room.
        samples: how many of each, and of all together, are kept.
    """

    def __init__(self, tools: int = 256, samples: int = 256) -> None:
        self._most_tools = tools
        self._most = samples
        self._tools: OrderedDict[str, _Samples] = OrderedDict()
        self._all = _Samples(samples)
        self._learnt = 0
        self._predicted: dict[tuple[str, bool], tuple[int, Prediction]] = {}

    def learn(self, tool: str, seconds: float) -> None:
        """A session came back ``seconds`` after a turn that called ``tool`` ("" where it is not known)."""
        if not 0.0 <= seconds < math.inf:
            return
        self._all.add(seconds)
        self._learnt += 1
        known = self._tools.get(tool)
        if known is None:
            if len(self._tools) >= self._most_tools:
                self._tools.popitem(last=False)
            known = self._tools[tool] = _Samples(self._most)
        self._tools.move_to_end(tool)
        known.add(seconds)

    def predict(self, tool: str, *, continuum: bool = False) -> Prediction:
        """When a session is expected back, by :meth:`mixed` or, with ``continuum``, by :meth:`by_counts`.

        Made anew when what is known of it has grown by a sixteenth: a decision must not cost more than it is worth.
        """
        key = (tool if tool in self._tools else "", continuum)
        made_at, found = self._predicted.get(key, (-1, None))
        if found is None or self._learnt - made_at > found.n // 16:
            found = self.by_counts(tool) if continuum else self.mixed(tool)
            if len(self._predicted) > 2 * self._most_tools:
                self._predicted.clear()
            self._predicted[key] = (self._learnt, found)
        return found

    def mixed(self, tool: str) -> Prediction:
        """The tool's own times, mixed with those of all tools, and these with the prior, by how many there are."""
        pooled, known = self._all.in_order, self._tools.get(tool)
        own = known.in_order if known is not None else []
        # Each level counts the one above it as PRIOR_WEIGHT samples.
        own_share = len(own) / (len(own) + PRIOR_WEIGHT)
        pooled_share = len(pooled) / (len(pooled) + PRIOR_WEIGHT)
        mixture = [
            *_weighted(own, own_share),
            *_weighted(pooled, (1.0 - own_share) * pooled_share),
            *((tau_s, (1.0 - own_share) * (1.0 - pooled_share) / POINTS) for tau_s, _ in _PRIOR),
        ]
        source: Source = "tool" if len(own) >= PRIOR_WEIGHT else "pooled" if len(pooled) >= PRIOR_WEIGHT else "prior"
        n = {"tool": len(own), "pooled": len(pooled), "prior": 0}[source]
        return _prediction(sorted(mixture), n, source)

    def by_counts(self, tool: str) -> Prediction:
        """The distribution that Continuum's paper takes: one of the three, by the counts alone (K = 100)."""
        pooled, known = self._all.in_order, self._tools.get(tool)
        if len(pooled) <= CONTINUUM_COLD_START:
            return _prediction([(tau_s, 1.0 / POINTS) for tau_s, _ in _PRIOR], 0, "prior")
        if known is None or len(known.in_order) <= CONTINUUM_COLD_START:
            return _prediction(_weighted(pooled, 1.0), len(pooled), "pooled")
        return _prediction(_weighted(known.in_order, 1.0), len(known.in_order), "tool")


def _weighted(in_order: list[float], share: float) -> list[tuple[float, float]]:
    each = share / len(in_order) if in_order else 0.0
    return [(seconds, each) for seconds in in_order] if each else []


def _prediction(mixture: list[tuple[float, float]], n: int, source: Source) -> Prediction:
    """At most POINTS points of the distribution of weighted values in order."""
    points: list[tuple[float, float]] = []
    reached, wanted = 0.0, 1
    for index, (seconds, weight) in enumerate(mixture):
        reached += weight
        last = index == len(mixture) - 1
        if reached * POINTS >= wanted - 1e-9 or last:
            share = 1.0 if last else min(1.0, reached)
            if points and points[-1][0] == seconds:
                points[-1] = seconds, share
            else:
                points.append((seconds, share))
            wanted = int(reached * POINTS + 1e-9) + 1
    return Prediction(p50_s=_quantile(points, 0.5), p90_s=_quantile(points, 0.9), n=n, source=source, points=points)


def _quantile(points: list[tuple[float, float]], share: float) -> float:
    return next((seconds for seconds, reached in points if reached >= share - 1e-9), points[-1][0])


class Returns:
    """How often sessions come back after a turn, by what ended it.

    Begins with what is expected: after a call nearly always, after an answer as often as not.
    """

    def __init__(self) -> None:
        self._counts: dict[str, list[float]] = {"call": [19.0, 20.0]}

    def learn(self, boundary: str, returned: bool) -> None:
        """A session came back, or was given up."""
        counts = self._counts.setdefault(boundary, [1.0, 2.0])
        counts[0] += 1.0 if returned else 0.0
        counts[1] += 1.0

    def probability(self, boundary: str) -> float:
        """Of coming back after such an end."""
        returned, all_of_them = self._counts.get(boundary, (1.0, 2.0))
        return returned / all_of_them
