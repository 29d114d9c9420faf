"""The numbers that a decision looks at, from what is seen of the pool. Pure.

Probabilities, the cost of a pin and the value of free blocks are our own, first-order estimates; each is a function of
things that can be measured. AgentKV-OS states the rule that they go into (see :mod:`.decision`) but no coefficients.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from tidegate_collectors.engine.decision import PinOption

Gaps = Sequence[tuple[float, float]]
"""A distribution of times: (seconds, probability of at most that), growing in both."""

MAX_PINS: Final = 12
"""Lengths of pins that a decision chooses from."""


class PoolView(Struct, frozen=True, kw_only=True):
    """The pool as a decision sees it. Tokens are blocks times their size.

    Attributes:
        free_tokens: free and empty.
        ahead_tokens: evictable, and older than the session's blocks in the LRU order.
        others_tokens: evictable tokens that are not the session's.
        alloc_tokens_per_s: how fast requests take blocks.
        waiting: requests that wait for blocks.
        demand_tokens: what a waiting request needs, on average.
        queue_s: how long one waits, on average.
        others_return: how probably the owner of another cached beginning comes back.
        running_tokens: what a running request holds, on average.
    """

    free_tokens: int = 0
    ahead_tokens: int = 0
    others_tokens: int = 0
    alloc_tokens_per_s: float = 0.0
    waiting: int = 0
    demand_tokens: float = 0.0
    queue_s: float = 0.0
    others_return: float = 0.5
    running_tokens: float = 0.0


def share_by(gaps: Gaps, seconds: float) -> float:
    """F(seconds): probability that it is over by then."""
    place = bisect_right(gaps, (seconds, math.inf))
    return gaps[place - 1][1] if place else 0.0


def after(gaps: Gaps, elapsed_s: float) -> list[tuple[float, float]]:
    """The distribution of what is left, given that ``elapsed_s`` have passed: (F(e+t) - F(e)) / (1 - F(e)).

    Where all of it has passed nothing is known any more: the result is empty.
    """
    if elapsed_s <= 0.0:
        return list(gaps)
    passed = share_by(gaps, elapsed_s)
    if passed >= 1.0:
        return []
    return [(tau_s - elapsed_s, (share - passed) / (1.0 - passed)) for tau_s, share in gaps if tau_s > elapsed_s]


def reach_s(pool: PoolView) -> float | None:
    """When allocation reaches the session's blocks, in seconds from now; None: never, 0: it has."""
    room = pool.free_tokens + pool.ahead_tokens
    if room <= 0:
        return 0.0
    if pool.alloc_tokens_per_s <= 0.0:
        return None
    return room / pool.alloc_tokens_per_s


def p_evict(gaps: Gaps, pool: PoolView) -> float:
    """Probability that the session is not back when allocation reaches its blocks: 1 - F(t_e)."""
    reach = reach_s(pool)
    if reach is None:
        return 0.0
    return 1.0 if reach <= 0.0 else 1.0 - share_by(gaps, reach)


def p_host(gaps: Gaps, *, free_tokens: int, ahead_tokens: int, write_tokens_per_s: float) -> float:
    """Probability that a copy written now is still in the host tier when the session returns: F(t_h)."""
    if write_tokens_per_s <= 0.0:
        return 1.0
    return share_by(gaps, (free_tokens + ahead_tokens) / write_tokens_per_s)


def expected_beyond_s(gaps: Gaps, ttl_s: float, after_s: float) -> float:
    """E[max(0, min(tau, ttl) - after)] for a time tau of that distribution, in seconds.

    That is the integral of 1 - F from ``after`` to ``ttl``, of which only the points between are looked at.
    """
    if ttl_s <= after_s:
        return 0.0
    place = bisect_right(gaps, (after_s, math.inf))
    total, from_s, share = 0.0, after_s, gaps[place - 1][1] if place else 0.0
    for tau_s, reached in gaps[place:]:
        if tau_s >= ttl_s:
            break
        total += (1.0 - share) * (tau_s - from_s)
        from_s, share = tau_s, reached
    return total + (1.0 - share) * (ttl_s - from_s)


def hold_s(gaps: Gaps, pool: PoolView, tokens: int, ttl_s: float, rebuild_s: Callable[[float], float]) -> float:
    """What a pin of ``tokens`` for at most ``ttl_s`` costs others, in seconds (X_pin of docs/decisions.md).

    When allocation reaches the pinned blocks, another cached beginning goes in their place, or where nothing else can
    be evicted somebody waits, or else a running request is preempted and computed again.
    """
    return _holding(gaps, pool, tokens, rebuild_s)(ttl_s)


def _holding(
    gaps: Gaps, pool: PoolView, tokens: int, rebuild_s: Callable[[float], float]
) -> Callable[[float], float]:  # fmt: skip
    """:func:`hold_s` of the length alone: what does not depend on it is worked out once."""
    reach = reach_s(pool)
    if reach is None or tokens <= 0:
        return lambda _: 0.0
    reached = 1.0 - share_by(gaps, reach) if reach > 0.0 else 1.0
    instead = min(1.0, pool.others_tokens / tokens)
    cost = instead * pool.others_return * rebuild_s(min(tokens, pool.others_tokens))
    blocked = 0.0
    if instead < 1.0:
        if pool.waiting > 0 and pool.demand_tokens > 0.0:
            blocked = (1.0 - instead) * min(float(pool.waiting), tokens / pool.demand_tokens + 1.0)
        else:
            cost += (1.0 - instead) * rebuild_s(pool.running_tokens)
    known = reached * cost

    def holding(ttl_s: float) -> float:
        if reach >= ttl_s:
            return 0.0
        # The time beyond is an expectation over all gaps; those that end before are in it with 0.
        return known + blocked * expected_beyond_s(gaps, ttl_s, reach) if blocked else known

    return holding


def pin_lengths(gaps: Gaps, max_ttl_s: float) -> list[tuple[float, float]]:
    """Pins worth a thought: times after which sessions came back, at most ``max_ttl_s``, with their lapse."""
    lengths = sorted({tau_s for tau_s, _ in gaps if 0.0 < tau_s <= max_ttl_s})
    if len(lengths) > MAX_PINS:
        lengths = [lengths[(index * (len(lengths) - 1)) // (MAX_PINS - 1)] for index in range(MAX_PINS)]
    return [(ttl_s, 1.0 - share_by(gaps, ttl_s)) for ttl_s in lengths]


def pin_options(
    lengths: Sequence[tuple[float, float]], gaps: Gaps, pool: PoolView, tokens: int,
    rebuild_s: Callable[[float], float],
) -> list[PinOption]:  # fmt: skip
    """Pins of these lengths (:func:`pin_lengths`) with what they cost others.

    While requests wait for room, each also costs what it would be worth to them that the blocks are free.
    """
    denied_s, holding = free_value_s(pool, tokens), _holding(gaps, pool, tokens, rebuild_s)
    return [PinOption(ttl_s, lapse, denied_s + holding(ttl_s)) for ttl_s, lapse in lengths]


def free_value_s(pool: PoolView, tokens: int) -> float:
    """What it is worth to others that ``tokens`` are free now, in seconds: the wait that ends. 0 in a slack pool."""
    if pool.waiting <= 0 or pool.demand_tokens <= 0.0:
        return 0.0
    shortfall = pool.waiting * pool.demand_tokens - pool.free_tokens
    if shortfall <= 0.0:
        return 0.0
    return min(float(tokens), shortfall) / pool.demand_tokens * pool.queue_s
