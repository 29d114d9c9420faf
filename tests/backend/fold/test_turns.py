"""A turn that the gateway and the engine both saw is one turn, whoever speaks first."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import records as make
from tests.support.records import at
from tidegate.fold import State, fold, views
from tidegate.fold.engine import Kv
from tidegate_collectors.records import TurnEnd, TurnFirstToken, TurnStart

ENGINE: dict[str, Any] = {"v": 1, "src": "engine-1", "host": "h", "session": "s", "turn": "tg-1"}
GATEWAY: dict[str, Any] = {"v": 1, "src": "gateway-1", "host": "h", "session": "s", "turn": "tg-1", "by": "gateway"}

SEEN = (
    TurnStart(t=at(1), model="m", api="openai.chat", messages=3, session_from="launcher", **GATEWAY),
    TurnStart(t=at(1.01), prompt_tokens=100, **ENGINE),
    TurnFirstToken(t=at(2), ttft_us=990_000, **ENGINE),
    TurnFirstToken(t=at(2.01), ttft_us=1_010_000, **GATEWAY),
    TurnEnd(
        t=at(3), prompt_tokens=100, cached_device_tokens=60, cached_host_tokens=10, recomputed_tokens=5,
        output_tokens=20, queue_us=5, prefill_us=6, decode_us=7, preemptions=1, finish_reason="stop", **ENGINE,
    ),
    TurnEnd(
        t=at(3.01), prompt_tokens=99, cached_tokens=70, output_tokens=20, http_status=200, finish_reason="tool_calls",
        tools=["grep"], **GATEWAY,
    ),
)  # fmt: skip


def shown(*stream: Any) -> dict[str, Any]:
    """The session as the browser gets it."""
    state = fold(State(), make.numbered(*stream))
    view: dict[str, Any] = make.plain(views.session_view(state.sessions["s"]))
    return view


@pytest.mark.parametrize("order", list(itertools.permutations(range(6)))[::7])
def test_two_witnesses_of_one_turn_in_any_order(order: tuple[int, ...]) -> None:
    session = shown(*(SEEN[place] for place in order))
    assert session["turns"] == {
        "total": 1, "running": 0, "prompt_tokens": 100, "cached_device_tokens": 60, "cached_host_tokens": 10,
        "recomputed_tokens": 5, "output_tokens": 20, "preemptions": 1, "errors": 0, "ttft_us": 1_010_000,
    }  # fmt: skip
    assert session["planes"] == ["engine", "gateway"]


def test_a_turn_that_the_engine_calls_otherwise_is_joined_by_its_request_id() -> None:
    # GIVEN the engine's turn has the id that it made itself
    own = {**ENGINE, "turn": "resp-7"}
    stream = [TurnStart(t=at(1), **GATEWAY), TurnStart(t=at(1.1), prompt_tokens=50, **own)]
    assert shown(*stream)["turns"]["total"] == 2
    # WHEN the gateway sees that id in the answer
    stream.append(TurnEnd(t=at(2), req="resp-7", prompt_tokens=50, output_tokens=3, http_status=200, **GATEWAY))  # type: ignore[arg-type]
    joined = shown(*stream)["turns"]
    # THEN they are one turn, also for what the engine says later
    assert (joined["total"], joined["prompt_tokens"], joined["output_tokens"]) == (1, 50, 3)
    stream.append(TurnEnd(t=at(2.1), prompt_tokens=50, recomputed_tokens=9, output_tokens=3, **own))  # type: ignore[arg-type]
    late = shown(*stream)["turns"]
    assert (late["total"], late["prompt_tokens"], late["recomputed_tokens"]) == (1, 50, 9)


def test_a_session_that_only_the_engine_knows_begins_with_its_first_turn() -> None:
    session = shown(*(record for record in SEEN if record.by == "engine"))
    assert session["started_us"] == at(1.01)
    assert session["state"] == "running"
    assert session["planes"] == ["engine"]


def test_the_running_turn_is_shown() -> None:
    assert shown(SEEN[1])["current_turn"] == {"turn": "tg-1", "phase": "prompt", "started_us": at(1.01)}
    assert shown(SEEN[1], SEEN[2])["current_turn"]["phase"] == "decode"
    assert shown(SEEN[1], SEEN[2], SEEN[4])["current_turn"] is None


def test_turns_that_went_wrong_are_counted_once() -> None:
    refused = TurnEnd(t=at(2), http_status=400, finish_reason="overflow_400", **GATEWAY)
    broke = TurnEnd(t=at(3), finish_reason="cut", **{**GATEWAY, "turn": "tg-2"})
    assert shown(SEEN[0], refused, refused, broke)["turns"]["errors"] == 2


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=40), st.randoms())
def test_sums_are_those_of_the_turns_one_by_one(names: list[str], rng: Any) -> None:
    stream = [
        TurnEnd(t=at(i), prompt_tokens=rng.randrange(9), output_tokens=rng.randrange(9), **{**ENGINE, "turn": name})
        for i, name in enumerate(names)
    ]
    last = {record.turn: record for record in stream}
    if stream:
        turns = shown(*stream)["turns"]
        assert turns["total"] == len(last)
        assert turns["prompt_tokens"] == sum(record.prompt_tokens or 0 for record in last.values())
        assert turns["output_tokens"] == sum(record.output_tokens or 0 for record in last.values())


def test_many_turns_are_counted_though_few_are_remembered() -> None:
    stream: list[Any] = []
    for number in range(500):
        names: dict[str, Any] = {**ENGINE, "turn": f"t{number}"}
        stream += [TurnStart(t=at(number), **names), TurnEnd(t=at(number + 0.5), prompt_tokens=2, **names)]
    state = fold(State(), make.numbered(*stream))
    inference = state.sessions["s"].inference
    assert inference.totals.total == 500
    assert inference.totals.prompt_tokens == 1000
    assert len(inference.turns.by_id) <= inference.turns.limit


def test_a_turn_with_an_id_that_is_too_long_to_keep_is_counted_once() -> None:
    long = {**ENGINE, "turn": "x" * 5000}
    stream = [
        TurnStart(t=at(1), prompt_tokens=50, **long),
        TurnFirstToken(t=at(2), ttft_us=1, **long),
        TurnEnd(t=at(3), prompt_tokens=50, output_tokens=3, **long),
    ]
    turns = shown(*stream)["turns"]
    assert (turns["total"], turns["prompt_tokens"], turns["output_tokens"]) == (1, 50, 3)


def test_a_session_whose_last_block_left_is_gone_whatever_zeros_are_told() -> None:
    assert Kv(engine="e", blocks={"device_cached": 0, "gone": 10}).main_state() == "gone"
    assert Kv(engine="e", blocks={"device_cached": 1, "gone": 10}).main_state() == "device_cached"
