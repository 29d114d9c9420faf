"""Recorded KV decisions for tests: drawn inputs, and what they give."""

from __future__ import annotations

import random

import msgspec

from tidegate_collectors.engine.decision import RULES, Inputs, PinOption, decide
from tidegate_collectors.records import KvDecision


def drawn_inputs(seed: int) -> Inputs:
    """Inputs with all digits that a double has."""
    rng = random.Random(seed)
    return Inputs(
        rule=rng.choice(RULES), boundary=rng.choice(["call", "turn_end"]), terminal=rng.random() < 0.1,
        can_pin=rng.random() < 0.8, can_offload=rng.random() < 0.6, reusable_tokens=rng.randrange(0, 20_000, 32),
        unsaved_tokens=rng.randrange(0, 20_000, 32), p_return=rng.random(), p_evict=rng.random(), p_host=rng.random(),
        rebuild_s=rng.random(), restore_s=rng.random() / 10, save_s=rng.random() / 100, free_value_s=rng.random() / 10,
        pins=[PinOption(float(length), rng.random(), rng.random() / 20) for length in range(1, 4)],
        gaps=[(float(length), length / 5) for length in range(1, 6)], eta=rng.random(), queue_s=5 * rng.random(),
        tool=rng.choice(["pytest", "git", "ä\u202e"]), tool_samples=rng.randrange(9),
    )  # fmt: skip


def decision(seq: int, inputs: Inputs | None = None) -> KvDecision:
    """The record of the decision that the inputs give."""
    inputs = inputs or drawn_inputs(seq)
    taken = decide(inputs)
    costs = {name: value for name, value in msgspec.structs.asdict(taken.costs).items() if value is not None}
    return KvDecision(
        v=1, seq=seq, src="engine-1", t=1_790_000_000_000_000 + seq, session="s", turn=str(seq), engine="e",
        boundary=inputs.boundary, action=taken.action, enforced=True, inputs=msgspec.to_builtins(inputs), costs=costs,
        margin_s=taken.margin_s, ttl_s=taken.ttl_s, rule=inputs.rule,
    )  # fmt: skip
