"""What to do with a session's KV blocks when its turn ends: keep, pin, offload or drop. Pure.

The unit of every cost is the delay, in seconds, that is to be expected until the session's KV is usable at its next
turn, with the delay that it causes others. With certain return, no pin and no drop the rule ``four-state`` is
AgentKV-OS's: OFFLOAD over KEEP if and only if save < P_evict x P_host x (rebuild - restore). The rest of ``four-state``
is our own generalisation of it; ``ttl-star`` is the rule of Continuum's paper, ``ttl`` a pin of fixed length, ``lru``
vLLM's own.

Only + - * and comparisons of doubles are used, no function of libm, no clock and no randomness: the same inputs give
the same decision, to the bit, on every machine. Whatever needs more (distributions, logarithms) is an input.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Rule = Literal["lru", "ttl", "ttl-star", "four-state"]
Action = Literal["KEEP", "PIN", "OFFLOAD", "DROP"]
Boundary = Literal["call", "turn_end", "pressure", "ttl", "compaction", "terminal"]

RULES: Final[tuple[Rule, ...]] = ("lru", "ttl", "ttl-star", "four-state")

TIE_ORDER: Final[tuple[Action, ...]] = ("DROP", "KEEP", "OFFLOAD", "PIN")
"""Of equal costs the first one is taken: what holds least."""


class PinOption(Struct, frozen=True, array_like=True):
    """A pin of some length.

    ``lapse``: probability that the session is not back by then. ``hold_s``: what it costs others to hold the blocks.
    """

    ttl_s: float
    lapse: float
    hold_s: float


class Inputs(Struct, frozen=True, kw_only=True):
    """Everything a decision looks at. Tokens are whole blocks' worth; probabilities are 0 to 1.

    Attributes:
        rule: which rule decides.
        boundary: what ended.
        terminal: the session is known not to come back.
        can_pin: pins are possible and there is room under the cap.
        can_offload: there is a host tier that can take the blocks.
        reusable_tokens: tokens whose KV the next turn can use.
        unsaved_tokens: of them, those that the host tier does not have.
        p_return: that the session comes back with this beginning.
        p_evict: that others take the blocks before it does, if they are left to LRU.
        p_host: that a copy in the host tier is still there then.
        rebuild_s: time to prefill the tokens.
        restore_s: time to bring them back from the host.
        save_s: what the copy to the host delays anybody.
        free_value_s: what freeing the blocks now is worth to others.
        pins: pins to choose from, by growing length.
        gaps: distribution of the time until it comes back: (seconds, probability of at most that), growing.
        fixed_ttl_s: length of the pin of rule ``ttl``.
        eta, queue_s: Continuum's weight of the queue, and the mean wait of requests that come back after an eviction.
        tool, tool_samples, gap_source, elapsed_s: for people; no rule looks at them.
    """

    rule: Rule
    boundary: Boundary
    terminal: bool = False
    can_pin: bool = True
    can_offload: bool = False
    reusable_tokens: int = 0
    unsaved_tokens: int = 0
    p_return: float = 1.0
    p_evict: float = 0.0
    p_host: float = 1.0
    rebuild_s: float = 0.0
    restore_s: float = 0.0
    save_s: float = 0.0
    free_value_s: float = 0.0
    pins: list[PinOption] = []
    gaps: list[tuple[float, float]] = []
    fixed_ttl_s: float = 2.0
    eta: float = 1.0
    queue_s: float = 0.0
    tool: str = ""
    tool_samples: int = 0
    gap_source: str = ""
    elapsed_s: float = 0.0


class Costs(Struct, frozen=True, kw_only=True):
    """Expected delay of each action in seconds; None where no rule of this kind has one."""

    keep_s: float
    pin_s: float | None
    offload_s: float
    drop_s: float


class Decision(Struct, frozen=True, kw_only=True):
    """What was decided. ``margin_s``: second best cost of what can be done less the best, None without a second."""

    action: Action
    costs: Costs
    margin_s: float | None = None
    ttl_s: float | None = None


def decide(inputs: Inputs) -> Decision:
    """Take the decision; a pure function of the inputs."""
    keep, offload, drop = _base_costs(inputs)
    pin = _best_pin(inputs, min(keep, offload) if inputs.can_offload else keep)
    costs = Costs(keep_s=keep, pin_s=None if pin is None else pin[0], offload_s=offload, drop_s=drop)
    if inputs.rule == "four-state":
        return _cheapest(inputs, costs, None if pin is None else pin[1])
    ttl_s = 0.0
    if inputs.rule == "ttl" and inputs.boundary == "call" and not inputs.terminal:
        ttl_s = inputs.fixed_ttl_s
    elif inputs.rule == "ttl-star" and not inputs.terminal:
        ttl_s = best_ttl_s(inputs)
    if ttl_s > 0.0 and inputs.can_pin and inputs.reusable_tokens > 0:
        return Decision(action="PIN", costs=costs, ttl_s=ttl_s)
    return Decision(action="KEEP", costs=costs)


def told_costs(inputs: Inputs, costs: Costs) -> dict[str, float]:
    """Costs by name as they are recorded: what is not to be chosen from here has none."""
    found = {"keep_s": costs.keep_s}
    if inputs.terminal:
        found["drop_s"] = costs.drop_s
    if inputs.can_pin and costs.pin_s is not None:
        found["pin_s"] = costs.pin_s
    if inputs.can_offload:
        found["offload_s"] = costs.offload_s
    return found


def offload_over_keep(inputs: Inputs) -> bool:
    """AgentKV-OS's rule: save < P_evict x P_host x (rebuild - restore), with P_evict that of a session that returns.

    Compared in this form, not by the two costs: their difference can be lost in the last digits of their sums.
    """
    p_return = 0.0 if inputs.terminal else inputs.p_return
    return inputs.save_s < p_return * inputs.p_evict * inputs.p_host * (inputs.rebuild_s - inputs.restore_s)


def _base_costs(inputs: Inputs) -> tuple[float, float, float]:
    p_return = 0.0 if inputs.terminal else inputs.p_return
    lost = p_return * inputs.p_evict
    keep = lost * inputs.rebuild_s
    after = inputs.p_host * inputs.restore_s + (1.0 - inputs.p_host) * inputs.rebuild_s
    return keep, inputs.save_s + lost * after, p_return * inputs.rebuild_s - inputs.free_value_s


def _best_pin(inputs: Inputs, residual_s: float) -> tuple[float, float] | None:
    """Cost and length of the cheapest pin; the shortest of equal ones. ``residual_s``: cost once it has lapsed."""
    best: tuple[float, float] | None = None
    for option in inputs.pins:
        cost = option.hold_s + option.lapse * residual_s
        if best is None or cost < best[0]:
            best = cost, option.ttl_s
    return best


def _cheapest(inputs: Inputs, costs: Costs, ttl_s: float | None) -> Decision:
    possible: dict[Action, float] = {"KEEP": costs.keep_s}
    if inputs.terminal:
        possible["DROP"] = costs.drop_s
    if inputs.reusable_tokens > 0:
        if inputs.can_offload:
            possible["OFFLOAD"] = costs.offload_s
        if inputs.can_pin and costs.pin_s is not None:
            possible["PIN"] = costs.pin_s
    chosen: Action | None = None
    second: float | None = None
    for action in TIE_ORDER:
        cost = possible.get(action)
        if cost is None:
            continue
        if chosen is None:
            chosen = action
        elif offload_over_keep(inputs) if (chosen, action) == ("KEEP", "OFFLOAD") else cost < possible[chosen]:
            chosen, second = action, possible[chosen]
        elif second is None or cost < second:
            second = cost
    assert chosen is not None  # noqa: S101 - KEEP is always possible
    return Decision(
        action=chosen,
        costs=costs,
        margin_s=None if second is None else max(0.0, second - possible[chosen]),
        ttl_s=ttl_s if chosen == "PIN" else None,
    )


def best_ttl_s(inputs: Inputs) -> float:
    """Continuum's TTL: argmax over tau of F(tau) x (eta x T_queue + reload) - tau; 0 where none is positive.

    Candidates are the points of the distribution; of equal ones the smallest. Source: the paper on Continuum; reload is
    the restore where there is a host tier, else the rebuild.
    """
    reload_s = inputs.restore_s if inputs.can_offload else inputs.rebuild_s
    benefit_s = inputs.eta * inputs.queue_s + reload_s
    best_s, best_value = 0.0, 0.0
    for tau_s, share in inputs.gaps:
        value = share * benefit_s - tau_s
        if value > best_value:
            best_s, best_value = tau_s, value
    return best_s


def words(inputs: Inputs, decision: Decision) -> str:
    """The decision in a sentence or two, for people. A tool's name in it is text that an agent chose."""
    if inputs.terminal:
        begin = "The session will not come back."
    elif inputs.tool_samples and inputs.tool:
        begin = (
            f"{inputs.tool} was seen {inputs.tool_samples} times, and the session comes back with "
            f"p = {inputs.p_return:.2f}."
        )
    else:
        begin = f"The session comes back with p = {inputs.p_return:.2f}."
    if inputs.rule == "lru":
        return f"{begin} Rule lru: the blocks are left to LRU."
    if inputs.rule == "ttl":
        held = (
            f"pinned for {decision.ttl_s:g} s"
            if decision.ttl_s
            else "left to LRU: no tool was called, or no pin is free"
        )
        return f"{begin} Rule ttl: the blocks are {held}."
    if inputs.rule == "ttl-star":
        if decision.ttl_s:
            return f"{begin} Rule ttl*: a pin of {decision.ttl_s:.3g} s gains most over the time it holds the blocks."
        return f"{begin} Rule ttl*: no pin gains more than the time it would hold the blocks."
    risk = (
        f"Left alone the blocks are evicted with p = {inputs.p_evict:.2f}; a rebuild takes {inputs.rebuild_s:.3g} s"
        + (f", a restore {inputs.restore_s:.3g} s." if inputs.can_offload else "; there is no host tier.")
    )
    lead = f" {decision.action} costs least, by {decision.margin_s:.3g} s." if decision.margin_s is not None else ""
    return f"{begin} {risk}{lead}"
