"""The rules, against AgentKV-OS's own, Continuum's formula and numbers worked out by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_collectors.engine.decision import (
    RULES,
    Action,
    Inputs,
    PinOption,
    best_ttl_s,
    decide,
    offload_over_keep,
    words,
)

# The example of docs/decisions.md: 12,000 tokens, a rebuild of 0.713 s, a restore of 0.054 s.
EXAMPLE: dict[str, Any] = {
    "rule": "four-state", "boundary": "call", "can_offload": True, "can_pin": False, "reusable_tokens": 12_000,
    "unsaved_tokens": 1_400, "p_return": 1.0, "p_evict": 0.31, "p_host": 0.99, "rebuild_s": 0.713, "restore_s": 0.054,
    "save_s": 0.007,
}  # fmt: skip


def inputs(**fields: Any) -> Inputs:
    return Inputs(**{**EXAMPLE, **fields})


def test_the_example_costs_what_the_formulas_say() -> None:
    decision = decide(inputs())

    assert decision.action == "OFFLOAD"
    assert decision.costs.keep_s == pytest.approx(0.31 * 0.713)
    assert decision.costs.offload_s == pytest.approx(0.007 + 0.31 * (0.99 * 0.054 + 0.01 * 0.713))
    assert decision.costs.drop_s == pytest.approx(0.713)
    assert decision.margin_s == pytest.approx(0.221 - 0.026, abs=1e-3)


def test_without_pins_and_with_certain_return_it_is_the_rule_of_agentkv_os() -> None:
    draw = random.Random(4).random
    for _ in range(200_000):
        p_evict, p_host, rebuild, restore, save = draw(), draw(), 3 * draw(), draw(), draw() * draw()
        given = Inputs(
            rule="four-state", boundary="call", can_offload=True, can_pin=False, reusable_tokens=16, p_evict=p_evict,
            p_host=p_host, rebuild_s=rebuild, restore_s=restore, save_s=save,
        )  # fmt: skip
        assert (decide(given).action == "OFFLOAD") == (save < p_evict * p_host * (rebuild - restore))


@pytest.mark.parametrize(
    ("fields", "action"),
    [
        ({"p_evict": 0.0}, "KEEP"),  # an idle pool: nothing is lost
        ({"restore_s": 0.713}, "KEEP"),  # below the break-even no offload wins
        ({"can_offload": False}, "KEEP"),
        ({"can_pin": True, "pins": [PinOption(2.0, 0.0, 0.001)]}, "PIN"),
        ({"can_pin": True, "pins": [PinOption(2.0, 0.0, 0.5)]}, "OFFLOAD"),
        ({"terminal": True}, "DROP"),
        ({"terminal": True, "free_value_s": 1.0}, "DROP"),
        ({"reusable_tokens": 0}, "KEEP"),
    ],
)
def test_the_cheapest_that_can_be_done_is_done(fields: dict[str, Any], action: Action) -> None:
    assert decide(inputs(**fields)).action == action


def test_of_equal_costs_the_one_that_holds_least_is_taken() -> None:
    free = {"p_evict": 0.0, "save_s": 0.0, "can_pin": True, "pins": [PinOption(1.0, 0.0, 0.0)]}

    assert decide(inputs(**free)).action == "KEEP"
    assert decide(inputs(**free)).margin_s == 0.0
    assert decide(inputs(**free, terminal=True)).action == "DROP"


def test_the_shortest_of_the_cheapest_pins_is_taken() -> None:
    pins = [PinOption(1.0, 0.5, 0.001), PinOption(4.0, 0.0, 0.001), PinOption(8.0, 0.0, 0.001)]
    decision = decide(inputs(can_pin=True, pins=pins))

    assert (decision.action, decision.ttl_s) == ("PIN", 4.0)


def test_lru_never_does_anything_and_ttl_pins_after_calls_only() -> None:
    assert decide(inputs(rule="lru", terminal=True)).action == "KEEP"
    pinned = decide(inputs(rule="ttl", can_pin=True, fixed_ttl_s=3.0))
    assert (pinned.action, pinned.ttl_s) == ("PIN", 3.0)
    assert decide(inputs(rule="ttl", can_pin=True, boundary="turn_end")).action == "KEEP"
    assert decide(inputs(rule="ttl", can_pin=False)).action == "KEEP"


def test_ttl_star_of_an_exponential_tool_is_the_logarithm_of_the_benefit() -> None:
    """With F = 1 - exp(-t), F(t) B - t is greatest at ln B, and nowhere positive for B <= 1."""
    gaps = [(index / 1000, 1.0 - math.exp(-index / 1000)) for index in range(1, 8000)]
    star = {"rule": "ttl-star", "can_pin": True, "can_offload": False, "gaps": gaps, "eta": 1.0}

    assert best_ttl_s(inputs(**star, queue_s=4.0, rebuild_s=1.0)) == pytest.approx(math.log(5.0), abs=2e-3)
    assert decide(inputs(**star, queue_s=0.5, rebuild_s=0.5)).action == "KEEP"
    assert decide(inputs(**star, queue_s=4.0, rebuild_s=1.0)).action == "PIN"


def test_of_equal_ttls_the_smaller_is_taken() -> None:
    assert best_ttl_s(inputs(rule="ttl-star", can_offload=False, queue_s=0.0, rebuild_s=4.0, gaps=[(1.0, 0.5), (3.0, 1.0)])) == 1.0  # fmt: skip # noqa: E501


numbers = st.floats(0, 100, allow_nan=False)
shares = st.floats(0, 1)
drawn = st.builds(
    Inputs, rule=st.sampled_from(RULES), boundary=st.sampled_from(["call", "turn_end"]), terminal=st.booleans(),
    can_pin=st.booleans(), can_offload=st.booleans(), reusable_tokens=st.integers(0, 10**6), p_return=shares,
    p_evict=shares, p_host=shares, rebuild_s=numbers, restore_s=numbers, save_s=numbers, free_value_s=numbers,
    pins=st.lists(st.builds(PinOption, numbers, shares, numbers), max_size=5),
    gaps=st.lists(st.tuples(numbers, shares), max_size=5), eta=shares, queue_s=numbers,
)  # fmt: skip


@settings(deadline=None)
@given(drawn)
def test_a_decision_can_be_taken_again_from_its_line(given: Inputs) -> None:
    again = msgspec.json.decode(msgspec.json.encode(given), type=Inputs)

    assert again == given
    assert decide(again) == decide(given)
    assert words(again, decide(again)) == words(given, decide(given))


@settings(deadline=None)
@given(drawn)
def test_what_cannot_be_done_is_not_chosen_and_nothing_possible_is_cheaper(given: Inputs) -> None:
    decision = decide(given)
    costs = decision.costs

    assert decision.action != "PIN" or (given.can_pin and decision.ttl_s is not None)
    assert decision.action != "OFFLOAD" or given.can_offload
    assert decision.action != "DROP" or given.terminal
    if given.rule == "four-state" and decision.action == "KEEP":
        assert not (given.can_offload and given.reusable_tokens and offload_over_keep(given))
        if given.can_pin and given.reusable_tokens and costs.pin_s is not None:
            assert costs.keep_s <= costs.pin_s


def test_the_words_name_what_was_decided() -> None:
    assert "OFFLOAD costs least" in words(inputs(), decide(inputs()))
    assert "will not come back" in words(inputs(terminal=True), decide(inputs(terminal=True)))
    assert "no host tier" in words(inputs(can_offload=False), decide(inputs(can_offload=False)))
