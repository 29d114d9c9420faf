"""What would have been best, now that it is known when the session came back. Pure."""

from __future__ import annotations

from tidegate_collectors.engine.decision import TIE_ORDER, Action, Inputs


def costs_in_hindsight(inputs: Inputs, *, gap_s: float, reach_s: float | None) -> dict[Action, float]:
    """What each action would have cost, in seconds, for a session that came back after ``gap_s``.

    Args:
        inputs: those of the decision.
        gap_s: time until it came back.
        reach_s: when allocation reached its blocks, or would have; None: it did not.
    """
    evicted = reach_s is not None and reach_s <= gap_s
    costs: dict[Action, float] = {"DROP": inputs.rebuild_s, "KEEP": inputs.rebuild_s if evicted else 0.0}
    if inputs.can_offload:
        costs["OFFLOAD"] = inputs.save_s + (inputs.restore_s if evicted else 0.0)
    if inputs.can_pin and inputs.pins:
        long_enough = [option.hold_s for option in inputs.pins if option.ttl_s >= gap_s]
        costs["PIN"] = min(long_enough) if long_enough else costs["KEEP"] + inputs.pins[-1].hold_s
    return costs


def hindsight(inputs: Inputs, action: Action, *, gap_s: float, reach_s: float | None) -> tuple[Action, float]:
    """The best action and the regret: what ``action`` cost more, in seconds. Of equal ones the one that was taken."""
    costs = costs_in_hindsight(inputs, gap_s=gap_s, reach_s=reach_s)
    best = min((name for name in TIE_ORDER if name in costs), key=lambda name: costs[name])
    regret_s = costs.get(action, costs["KEEP"]) - costs[best]
    return (action if action in costs and regret_s == 0.0 else best), regret_s
