"""What is told of sessions' blocks adds up, whatever happens, and agrees with the pool itself."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from vllm.v1.request import Request, RequestStatus

from tests.engine.conftest import BLOCK_TOKENS, BLOCKS, Engine
from tests.engine.test_plugin import A, B, settings, whole
from tidegate_collectors.engine.plugin.turns import turn_id
from tidegate_collectors.records import (
    EngineSample,
    KvDecision,
    KvOutcome,
    KvTransition,
    TurnEnd,
)

Make = Callable[..., Engine]
ACTIONS = ("PIN", "PIN", "DROP", "KEEP", "OFFLOAD", "OFFLOAD")
STATES = ("device_active", "device_cached", "device_pinned", "device_and_host", "host")


def replay(engine: Engine) -> dict[str, dict[str, int]]:
    """Add up all transitions; each one's residency is checked on the way."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(STATES, 0))
    for record in engine.recorder.of(KvTransition):
        account = sums[record.session or ""]
        for state, sign in ((record.from_, -1), (record.to, 1)):
            if state != "gone":
                account[state] += sign * record.blocks
        told = {state: record.residency.get(state, 0) for state in STATES}
        assert told == account, record
        assert min(account.values()) >= 0 and record.blocks > 0
    return sums


def check_against_the_pool(engine: Engine) -> None:
    """What the accounts say is what the pool says."""
    engine.plane.accounts.settle()
    sums = replay(engine)
    for session in engine.plane.accounts.table:
        assert {state: sums[session.id][state] for state in STATES} == {
            state: session.residency().get(state, 0) for state in STATES
        }
        for key, state in session.blocks.items():
            block = engine.pool.cached_block_hash_to_block.get_one_block(key)
            if state == "host":
                assert engine.plane.accounts.copied(key)
                continue
            assert block is not None, state
            if state == "device_cached":
                assert not engine.plane.accounts.copied(key)
            if state == "device_pinned":
                assert block.ref_cnt >= 1
            if state == "device_cached" and len(engine.plane.accounts.table.holders(key)) == 1:
                assert block.ref_cnt == 0


def prompt_of(rng: random.Random, session: int, turn: int) -> list[int]:
    """A conversation that grows, begins like others', and now and then begins anew."""
    shared = list(range(32)) if session % 2 else []
    start = 10_000 * (session + 1) + (5000 if rng.random() < 0.1 else 0)
    return shared + [start + i for i in range(20 + 18 * turn)]


@pytest.mark.parametrize("seed", range(12))
def test_transitions_add_up_to_the_residency_and_to_the_pool(make_engine: Make, seed: int) -> None:
    rng = random.Random(seed)
    knobs = settings(sessions=6, pin_cap=rng.choice((0.2, 0.5)))
    engine = make_engine(knobs, is_async=seed % 4 == 3, host_blocks=(None, 9, 60)[seed % 3])
    if engine.worker is not None and seed % 2:
        engine.scheduler.connector.side.inline_bytes = 0  # copies by the thread, and requests that wait for them
    engine.scheduler.use_v2_model_runner = seed % 2 == 1  # its scheduler tells of resumed requests as of new ones
    running: list[Request] = []
    turns = [0] * 8
    for number in range(150):
        match rng.randrange(10):
            case 0 | 1 | 2:
                session = rng.randrange(8)
                turns[session] = (turns[session] + 1) % 12
                extra: dict[str, Any] = {}
                if rng.random() < 0.8:
                    extra = {"kv_action": rng.choice(ACTIONS), "kv_ttl_s": rng.choice((0, 60))}
                running.append(
                    engine.add(f"r{number}", prompt_of(rng, session, turns[session]), f"s{session}", out=20, **extra)
                )
            case 3 if running:
                engine.scheduler.finish_requests(rng.choice(running).request_id, RequestStatus.FINISHED_ABORTED)
            case 4 if rng.random() < 0.2:
                engine.scheduler.reset_prefix_cache(reset_connector=rng.random() < 0.3)
            case 5 if rng.random() < 0.3:
                engine.add(f"n{number}", [90_000 + 100 * number + i for i in range(150)])
            case _:
                engine.step()
        running = [request for request in running if not request.is_finished()]
        if seed % 4 != 3:
            check_against_the_pool(engine)
    for _ in range(2000):
        if not engine.scheduler.has_unfinished_requests():
            break
        engine.step()
    engine.idle()
    check_against_the_pool(engine)
    engine.plane.close()
    assert whole(engine)
    assert all(not any(account.values()) for account in replay(engine).values())
    decisions = {decision.seq for decision in engine.recorder.of(KvDecision)}
    outcomes = [outcome.decision_seq for outcome in engine.recorder.of(KvOutcome)]
    assert len(outcomes) == len(set(outcomes)) and set(outcomes) <= decisions
    assert decisions - set(outcomes) == set()


def test_a_first_turn_is_seen_while_it_runs(make_engine: Make) -> None:
    engine = make_engine()
    request = engine.add("a0", A, "a", out=40, kv_action="KEEP")
    engine.step()
    first = engine.recorder.of(KvTransition)
    assert [(r.from_, r.to, r.cause, r.blocks) for r in first] == [("gone", "device_active", "computed", 6)]
    for _ in range(20):
        engine.step()
    engine.sample()  # a long answer is told of once a second
    assert engine.recorder.of(KvTransition)[-1].residency["device_active"] == 7
    while not request.is_finished():
        engine.step()
    assert [r.cause for r in engine.recorder.of(KvTransition)] == ["computed", "computed", "computed", "finished"]


def test_a_session_that_comes_back_with_another_prompt_is_served_by_nobody(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="KEEP")
    engine.run("a1", B, "a", kv_action="KEEP")

    (outcome,) = engine.recorder.of(KvOutcome)
    assert (outcome.served_from, outcome.recomputed_tokens, outcome.regret_s) == ("none", 0, None)
    causes = [(r.cause, r.blocks, r.to) for r in engine.recorder.of(KvTransition)]
    assert ("superseded", 6, "gone") in causes
    assert not [cause for cause in causes if cause[0] == "admitted"]


def test_only_what_a_request_took_is_admitted(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="KEEP")
    engine.run("a1", A[:50] + B, "a", kv_action="KEEP")

    admitted = [r for r in engine.recorder.of(KvTransition) if r.cause == "admitted"]
    assert [(r.from_, r.to, r.blocks) for r in admitted] == [("device_cached", "device_active", 3)]


def test_a_beginning_that_others_left_is_admitted_too(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="KEEP")
    engine.run("b0", A[:50] + B, "b", kv_action="KEEP")

    admitted = [r for r in engine.recorder.of(KvTransition) if r.cause == "admitted"]
    assert [(r.session, r.from_, r.blocks) for r in admitted] == [("b", "gone", 3)]


def test_a_dropped_session_had_left_the_device(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="DROP")
    engine.run("a1", A + [5] * 20, "a", kv_action="KEEP")

    (outcome,) = engine.recorder.of(KvOutcome)
    assert (outcome.evicted, outcome.served_from, outcome.recomputed_tokens) == (True, "recompute", 96)


def test_what_an_action_really_did_is_told(make_engine: Make) -> None:
    engine = make_engine(settings(pin_cap=0.25))
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=60)
    engine.run("b0", B, "b", kv_action="PIN", kv_ttl_s=60)
    engine.run("c0", A[:64], "c", kv_action="DROP")  # all of it is a's as well
    engine.run("d0", [7000 + i for i in range(64)], "d", kv_action="PIN", kv_ttl_s=0)

    told = [(d.action, d.enforced, d.blocks, d.done_blocks) for d in engine.recorder.of(KvDecision)]
    assert told == [("PIN", True, 6, 6), ("PIN", True, 6, 2), ("DROP", False, 4, 0), ("KEEP", True, 4, None)]


def test_an_overridden_decision_says_what_the_rule_chose(make_engine: Make) -> None:
    engine = make_engine(settings(rule="lru"))
    engine.run("a0", A, "a", kv_action="DROP")
    engine.run("b0", B, "b")

    told = [(d.action, d.overridden_by, d.rule_action) for d in engine.recorder.of(KvDecision)]
    assert told == [("DROP", "request", "KEEP"), ("KEEP", None, None)]


def test_costs_are_of_what_can_be_done(make_engine: Make) -> None:
    engine = make_engine(settings(pin_cap=0.0))
    engine.run("a0", A, "a")

    engine.run("b0", B, "b", kv_last="1")

    assert [set(decision.costs) for decision in engine.recorder.of(KvDecision)] == [{"keep_s"}, {"keep_s", "drop_s"}]


def test_preempted_blocks_are_left_to_lru_and_taken_again(make_engine: Make) -> None:
    engine = make_engine(blocks=12)
    requests = [
        engine.add(f"r{i}", [1000 * i + j for j in range(60)], f"s{i}", out=60, kv_action="KEEP") for i in (1, 2)
    ]
    for _ in range(400):
        engine.step()
        if all(request.is_finished() for request in requests):
            break
    engine.sample()

    assert sum(request.num_preemptions for request in requests) > 0
    assert any(r.cause == "preemption" for r in engine.recorder.of(KvTransition))
    assert engine.recorder.of(EngineSample)[-1].preemptions == sum(request.num_preemptions for request in requests)
    assert [end.output_tokens for end in engine.recorder.of(TurnEnd)] == [60, 60]
    replay(engine)


def test_counters_are_vllms_own_and_of_all_requests(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("n0", A)
    engine.run("n1", A + [5] * 20)
    request = engine.add("n2", B, out=30)
    for _ in range(5):
        engine.step()
    engine.sample()

    sample = engine.recorder.of(EngineSample)[-1]
    assert (sample.prefix_queries_tokens, sample.prefix_hits_tokens) == (320, 96)
    assert (sample.prompt_tokens, sample.output_tokens) == (320, 2 + 2 + request.num_output_tokens)
    assert sample.step_us is not None and sample.external_queries_tokens is None
    assert sample.recomputed_tokens == 0


def test_off_says_unknown_and_not_nothing(make_engine: Make) -> None:
    engine = make_engine(settings("off"))
    engine.run("a0", A, "a")
    engine.sample()

    sample = engine.recorder.of(EngineSample)[-1]
    assert (sample.sessions, sample.recomputed_tokens) == (None, None)
    assert sample.prefix_queries_tokens == 100


def test_requests_wait_for_a_reason(make_engine: Make) -> None:
    engine = make_engine(blocks=8)
    for number in range(4):
        engine.add(f"r{number}", [1000 * number + i for i in range(100)], f"s{number}", out=4)
    engine.step()
    engine.sample()

    sample = engine.recorder.of(EngineSample)[-1]
    assert sample.running == 1 and sample.waiting_by_reason == {"capacity": 3}


@pytest.mark.parametrize(
    ("request_id", "turn"),
    [
        ("chatcmpl-tg-0123456789abcdef-1a2b3c4d", "tg-0123456789abcdef"),
        ("0_chatcmpl-tg-0123456789abcdef-1a2b3c4d", "tg-0123456789abcdef"),
        ("2_chatcmpl-tg-0123456789abcdef-1a2b3c4d", "tg-0123456789abcdef/2"),
        ("cmpl-x-0-deadbeef", "x"),
        ("cmpl-x-1-deadbeef", "x/1"),
        ("1_cmpl-x-2-deadbeef", "x/1/2"),
        ("resp_y-deadbeef", "y"),
        ("plain", "plain"),
    ],
)
def test_the_turn_of_a_request(request_id: str, turn: str) -> None:
    assert turn_id(request_id) == turn


def test_request_ids_without_suffix_are_taken_as_they_are() -> None:
    assert turn_id("chatcmpl-ab-deadbeef", suffixed=False) == "ab-deadbeef"


def test_a_clock_that_jumps_makes_no_negative_time(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=60)
    monkeypatch.setattr("time.time_ns", lambda: 1)
    engine.run("a1", A + [5] * 20, "a", kv_action="KEEP")

    end, outcome = engine.recorder.of(TurnEnd)[-1], engine.recorder.of(KvOutcome)[-1]
    assert min(end.queue_us or 0, end.prefill_us or 0, end.decode_us or 0, outcome.gap_us) >= 0
    assert whole(engine)


def test_ten_thousand_sessions(make_engine: Make) -> None:
    engine = make_engine(settings(sessions=1000))
    for number in range(10_000):
        engine.run(f"r{number}", [number * 7 + i for i in range(BLOCK_TOKENS + 1)], f"s{number}", out=1)

    assert len(engine.plane.accounts.table) == 1000
    assert len(engine.plane.accounts.table._holders) <= BLOCKS
    replay(engine)
    engine.plane.close()
    assert whole(engine)
