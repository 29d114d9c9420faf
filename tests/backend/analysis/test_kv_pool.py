"""The model of the pool, against numbers worked out by hand and against a slower model of the same rules."""

from __future__ import annotations

from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.analysis.kv_pool import Admitted, Ended, Event, Evicted, Pool, Refused, Request, Speed, pool_blocks

E = TypeVar("E", bound=Event)
TOKENS = 10


def request(session: str, turn: int, at: int, ids: str, output: str = "", service: int | None = 5) -> Request:
    """A prompt of whole blocks and one token more; a block is a letter."""
    return Request(
        session=session, turn=turn, arrive_us=at, prompt=[("", ord(c)) for c in ids],
        output=[("", ord(c)) for c in output], prompt_tokens=TOKENS * len(ids) + 1,
        output_tokens=TOKENS * len(output), service_us=service,
    )  # fmt: skip


def play(pool: Pool, *requests: Request) -> list[Event]:
    return list(pool.play(requests))


def of(events: list[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def test_a_session_finds_what_it_left_and_what_it_left_is_counted_once() -> None:
    pool = Pool(100, TOKENS)
    events = play(pool, request("a", 1, 0, "xab", "c"), request("b", 1, 20, "xq"), request("a", 2, 40, "xabcd"))

    assert [(e.request.session, e.cached_blocks, e.known_blocks, e.new_blocks) for e in of(events, Admitted)] == [
        ("a", 0, 0, 4), ("b", 1, 0, 1), ("a", 4, 4, 1),
    ]  # fmt: skip
    counts = pool.counts()
    assert (counts.active, counts.cached, counts.free) == (0, 6, 94)  # x a b c d q
    assert (counts.hits_tokens, counts.recomputed_tokens) == (5 * TOKENS, 0)
    assert pool.residency("a") == {"device_active": 0, "device_cached": 5, "gone": 0}


def test_a_prompt_is_never_found_whole_since_its_last_token_is_computed() -> None:
    whole = Request("a", 1, 0, [("", 1), ("", 2)], [], 2 * TOKENS, 0, 5)
    events = play(Pool(10, TOKENS), whole, Request("a", 2, 10, whole.prompt, [], 2 * TOKENS, 0, 5))

    assert [event.cached_blocks for event in of(events, Admitted)] == [0, 1]


def test_the_least_recently_used_go_first_and_of_one_session_its_end() -> None:
    pool = Pool(7, TOKENS)
    # a leaves 3 blocks, b leaves 2; each held one more that nobody can find again.
    events = play(pool, request("a", 1, 0, "abc"), request("b", 1, 10, "de"), request("c", 1, 20, "fgh"))

    evicted = of(events, Evicted)
    assert [(e.session, e.blocks, e.victim_of) for e in evicted] == [("a", 2, "c")]
    assert evicted[0].residency == {"device_active": 0, "device_cached": 1, "gone": 2}
    back = of(play(pool, request("a", 2, 40, "abcz")), Admitted)[0]
    assert (back.cached_blocks, back.known_blocks) == (1, 3)
    assert pool.counts().recomputed_tokens == 2 * TOKENS


def test_a_request_waits_until_there_is_room_and_who_came_first_goes_first() -> None:
    pool = Pool(5, TOKENS)
    events = play(
        pool, request("a", 1, 0, "abc", service=100), request("b", 1, 1, "def", service=10), request("c", 1, 2, "")
    )

    assert [(e.request.session, e.t_us) for e in of(events, Admitted)] == [("a", 0), ("b", 100), ("c", 100)]
    waits = {event.request.session: event.queue_us for event in of(events, Ended)}
    assert waits == {"a": 0, "b": 99, "c": 98}


def test_what_never_fits_is_refused_and_holds_nobody_up() -> None:
    events = play(Pool(3, TOKENS), request("a", 1, 0, "abcdef"), request("b", 1, 1, "x"))

    assert [(event.request.session, event.blocks) for event in of(events, Refused)] == [("a", 7)]
    assert [event.request.session for event in of(events, Ended)] == ["b"]


def test_times_are_those_of_the_trace_or_of_the_assumed_speed() -> None:
    speed = Speed(prefill_us=2.0, decode_us=3.0)
    events = play(
        Pool(50, TOKENS, speed),
        Request("a", 1, 0, [], [], 100, 10, None),
        Request("b", 1, 0, [], [], 100, 10, 1000),
    )

    ended = {event.request.session: event for event in of(events, Ended)}
    assert (ended["a"].prefill_us, ended["a"].decode_us, ended["a"].t_us) == (200, 30, 230)
    assert (ended["b"].prefill_us, ended["b"].decode_us, ended["b"].t_us) == (200, 800, 1000)


def test_a_pool_holds_at_least_the_largest_request() -> None:
    small, large = request("a", 1, 0, "ab"), Request("b", 1, 0, [], [], 999, 2, None)

    assert pool_blocks([small], 10, 200) == 20
    assert pool_blocks([small, large], 10, 200) == 101
    with pytest.raises(ValueError, match="at least one block"):
        Pool(0, 16)


prompts = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 6), st.integers(0, 40)), min_size=1, max_size=25
)


@settings(deadline=None, max_examples=150)
@given(prompts, st.integers(3, 20))
def test_no_block_is_lost_or_made(drawn: list[tuple[int, int, int, int]], blocks: int) -> None:
    requests = [
        Request(
            session=f"s{who}", turn=turn, arrive_us=at, prompt=[(f"s{who % 2}", n) for n in range(length)], output=[],
            prompt_tokens=length * TOKENS + 3, output_tokens=4, service_us=service or None,
        )
        for turn, (who, at, length, service) in enumerate(drawn, 1)
    ]  # fmt: skip
    pool = Pool(blocks, TOKENS)
    residents: dict[str, int] = {}
    for event in pool.play(sorted(requests, key=lambda r: r.arrive_us)):
        counts = pool.counts()
        assert counts.free >= 0 and counts.active >= 0 and counts.cached >= 0
        assert counts.active + counts.cached + counts.free == blocks
        if isinstance(event, Admitted | Ended):
            held = event.residency
            residents[event.request.session] = held["device_active"] + held["device_cached"] + held["gone"]
            assert event.cached_blocks <= len(event.request.prompt)
    counts = pool.counts()
    assert (counts.active, counts.running, counts.waiting) == (0, 0, 0)
    fitting = [r for r in requests if -(-(r.prompt_tokens + r.output_tokens) // TOKENS) <= blocks]
    assert counts.prompt_tokens == sum(r.prompt_tokens for r in fitting)
    assert set(residents) == {r.session for r in fitting}
