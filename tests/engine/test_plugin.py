"""The plugin in the real scheduler: what it does to blocks, and what it tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from vllm.v1.request import RequestStatus

from tests.engine.conftest import BLOCK_TOKENS, BLOCKS, Engine
from tidegate_collectors.engine.parity import compare
from tidegate_collectors.engine.plugin.settings import SettingError, Settings, from_environment
from tidegate_collectors.engine.plugin.turns import turn_id
from tidegate_collectors.engine.plugin.versions import refusal
from tidegate_collectors.records import (
    Capability,
    EngineMode,
    EngineSample,
    EngineStart,
    KvCalibration,
    KvDecision,
    KvOutcome,
    KvTransition,
    TurnEnd,
    TurnFirstToken,
    TurnStart,
    decode,
    encode,
)

Make = Callable[..., Engine]
A = list(range(1000, 1100))
B = list(range(3000, 3100))


def settings(mode: Any = "enforce", **more: Any) -> Settings:
    return Settings(**{"mode": mode, "name": "e", **more})


def cached(engine: Engine, name: str, prompt: list[int], session: str, **extra: Any) -> int:
    """Tokens that a request found in the cache."""
    engine.run(name, prompt, session, **extra)
    found = engine.recorder.of(TurnEnd)[-1]
    assert found.session == session and found.cached_device_tokens is not None
    return found.cached_device_tokens


def last_decision(engine: Engine) -> KvDecision:
    return engine.recorder.of(KvDecision)[-1]


def whole(engine: Engine) -> bool:
    """Whether every block is free again."""
    return engine.free() == BLOCKS


def test_the_engine_introduces_itself(make_engine: Make) -> None:
    engine = make_engine()
    start = engine.recorder.of(EngineStart)[0]

    assert (start.engine, start.plugin, start.mode, start.rule) == ("e", True, "enforce", "four-state")
    assert (start.block_tokens, start.pool_blocks) == (BLOCK_TOKENS, BLOCKS)
    assert start.kv_bytes_per_token == 2 * 32 * 2  # keys and values, a head of 32, two bytes
    assert {c.name: c.available for c in engine.recorder.of(Capability)} == {
        "engine.residency": True, "engine.pin": True, "engine.drop": True, "engine.offload": False,
    }  # fmt: skip


def test_a_pinned_session_is_found_after_pressure_and_a_kept_one_is_not(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=60)
    engine.run("b0", B, "b", kv_action="KEEP")
    engine.pressure()

    assert cached(engine, "a1", A + [5] * 20, "a", kv_action="KEEP") == 96
    assert cached(engine, "b1", B + [5] * 20, "b", kv_action="KEEP") == 0
    assert whole(engine)
    outcomes = {record.session: record for record in engine.recorder.of(KvOutcome)}
    assert (outcomes["a"].served_from, outcomes["a"].evicted, outcomes["a"].recomputed_tokens) == ("device", False, 0)
    lost = outcomes["b"]
    assert (lost.served_from, lost.evicted, lost.recomputed_tokens) == ("recompute", True, 96)
    assert outcomes["a"].regret_s == 0.0 and (outcomes["b"].regret_s or 0.0) >= 0.0


def test_a_dropped_session_is_gone_at_once_but_shared_blocks_are_spared(make_engine: Make) -> None:
    engine = make_engine()
    shared = list(range(500, 532))
    engine.run("b0", shared + B[:64], "b", kv_action="KEEP")
    engine.run("a0", shared + A[:64], "a", kv_action="DROP")

    gone = [record for record in engine.recorder.of(KvTransition) if record.session == "a" and record.to == "gone"]
    assert [(record.blocks, record.cause) for record in gone] == [(4, "decision")]
    assert gone[0].residency == {"device_active": 0, "device_cached": 2, "device_pinned": 0, "gone": 4}
    assert cached(engine, "b1", shared + B[:64] + [1] * 20, "b") == 96
    assert cached(engine, "a1", shared + A[:64] + [1] * 20, "a") == 32
    assert whole(engine)


def test_an_eviction_says_who_took_the_space(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="KEEP")
    engine.run("b0", list(range(7000, 7000 + 27 * BLOCK_TOKENS)), "b", kv_action="KEEP")

    lru = [record for record in engine.recorder.of(KvTransition) if record.cause == "lru"]
    assert lru and {(record.session, record.victim_of, record.to) for record in lru} == {("a", "b", "gone")}
    assert lru[-1].residency["gone"] == sum(record.blocks for record in lru)


def test_a_pin_runs_out_by_itself(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=0.05)
    assert engine.free() == BLOCKS - 6
    assert engine.plane.wants_tick()
    time.sleep(0.06)
    engine.plane.tick()

    assert whole(engine)
    last = engine.recorder.of(KvTransition)[-1]
    assert (last.from_, last.to, last.cause, last.blocks) == ("device_pinned", "device_cached", "ttl", 6)


def test_pins_stop_at_the_cap(make_engine: Make) -> None:
    engine = make_engine(settings(pin_cap=0.25))
    for name in ("a", "b", "c"):
        engine.run(f"{name}0", [ord(name) * 1000 + i for i in range(100)], name, kv_action="PIN", kv_ttl_s=60)

    assert engine.free() == BLOCKS - 8
    held = [r.blocks for r in engine.recorder.of(KvTransition) if r.to == "device_pinned"]
    assert held == [6, 2]
    assert [(d.action, d.overridden_by) for d in engine.recorder.of(KvDecision)] == [
        ("PIN", "request"), ("PIN", "request"), ("KEEP", "cap"),
    ]  # fmt: skip


def test_what_cannot_be_done_is_told_as_not_done(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="OFFLOAD")

    decision = last_decision(engine)
    assert (decision.action, decision.overridden_by) == ("KEEP", "no-tier")


def test_pins_give_way_to_a_request_that_could_not_run_otherwise(make_engine: Make) -> None:
    engine = make_engine(settings(pin_cap=0.9))
    for name in ("a", "b", "c", "d"):
        engine.run(f"{name}0", [ord(name) * 1000 + i for i in range(100)], name, kv_action="PIN", kv_ttl_s=600)
    assert engine.free() == BLOCKS - 24
    engine.run("big", list(range(20 * BLOCK_TOKENS)), "big", kv_action="KEEP")

    assert [r.session for r in engine.recorder.of(KvTransition) if r.cause == "pressure"][:2] == ["a", "b"]


def test_a_reset_with_pins_held_succeeds_and_forgets_everything(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=600)

    assert engine.scheduler.reset_prefix_cache()
    assert whole(engine)
    last = engine.recorder.of(KvTransition)[-1]
    assert (last.to, last.cause, last.blocks, last.residency["gone"]) == ("gone", "reset", 6, 6)
    assert cached(engine, "a1", A + [5] * 20, "a") == 0


def test_observing_decides_everything_and_touches_nothing(make_engine: Make) -> None:
    engine = make_engine(settings("observe"))
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=600)
    engine.run("b0", B, "b", kv_action="DROP")

    assert whole(engine)
    assert [(d.action, d.enforced) for d in engine.recorder.of(KvDecision)] == [("PIN", False), ("DROP", False)]
    assert cached(engine, "b1", B + [5] * 20, "b") == 96


def test_off_follows_nobody_but_counts_the_pool(make_engine: Make) -> None:
    engine = make_engine(settings("off"))
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=600)

    assert whole(engine) and not engine.recorder.of(KvDecision) and not engine.recorder.of(TurnEnd)
    assert engine.recorder.of(EngineSample)


def test_turns_are_told_from_the_inside(make_engine: Make) -> None:
    engine = make_engine(settings("observe"))
    engine.run("chatcmpl-tg-0123456789abcdef-1a2b3c4d", A, "a")

    start, first = engine.recorder.of(TurnStart)[0], engine.recorder.of(TurnFirstToken)[0]
    end = engine.recorder.of(TurnEnd)[0]
    assert start.turn == first.turn == end.turn == "tg-0123456789abcdef"
    assert (end.prompt_tokens, end.output_tokens, end.cached_tokens, end.finish_reason) == (100, 2, 0, "length")
    assert end.queue_us is not None and end.prefill_us is not None and end.decode_us is not None
    assert turn_id("cmpl-x-0-deadbeef") == "x" and turn_id("plain") == "plain" and turn_id("resp_y") == "y"


def test_the_cost_of_a_rebuild_is_measured_in_steps_that_do_nothing_else(make_engine: Make) -> None:
    engine = make_engine(blocks=200)
    for number in range(12):
        prompt = [10_000 * number + i for i in range(50 + 30 * number)]
        engine.run(f"r{number}", prompt, f"s{number}", kv_action="KEEP")
    engine.run("again", prompt + [5] * 40, "s11", kv_action="KEEP")  # finds its beginning: says nothing of a rebuild

    curve = engine.plane.measuring.fitted().rebuild
    assert (curve.source, curve.n) == ("measured", 12)
    engine.sample()
    told = engine.recorder.of(KvCalibration)[-1]
    assert [tokens for tokens, _ in told.samples["rebuild"]] == [50.0 + 30 * number for number in range(12)]
    assert told.rebuild["n"] == 12 and told.kv_bytes_per_token == 128


def test_every_decision_can_be_taken_again(make_engine: Make) -> None:
    for rule in ("lru", "ttl", "ttl-star", "four-state"):
        engine = make_engine(settings(rule=rule))
        for turn in range(6):
            for name in ("a", "b", "c"):
                prompt = [ord(name) * 1000 + i for i in range(60 + 20 * turn)]
                engine.run(f"{name}{turn}", prompt, name, kv_tool="pytest")
        decisions = engine.recorder.of(KvDecision)
        assert len(decisions) == 18 and {d.rule for d in decisions} == {rule}
        for decision in decisions:
            again = decode(encode(msgspec.structs.replace(decision, v=1)))
            assert isinstance(again, KvDecision) and compare(again) is None
        assert {d.boundary for d in decisions} == {"call"}


def test_a_sample_counts_every_block_once(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=600)
    engine.run("b0", B, "b", kv_action="KEEP")
    engine.sample()

    sample = engine.recorder.of(EngineSample)[-1]
    assert (sample.blocks_active, sample.blocks_pinned, sample.blocks_cached) == (0, 6, 6)
    assert sample.blocks_free == BLOCKS - 12 and sample.sessions == 2


def test_two_clients_with_one_session_id_are_no_leak(make_engine: Make) -> None:
    engine = make_engine()
    first = engine.add("x0", A, "s", kv_action="PIN", kv_ttl_s=600)
    second = engine.add("x1", B, "s", kv_action="PIN", kv_ttl_s=600)
    while not (first.is_finished() and second.is_finished()):
        engine.step()
    assert len(engine.recorder.of(KvDecision)) == 1
    engine.run("x2", B + [5] * 20, "s", kv_action="KEEP")

    assert whole(engine)


def test_an_abort_at_any_moment_leaves_nothing_behind(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=600)
    engine.add("a1", A + [5] * 40, "a", kv_action="KEEP")
    engine.scheduler.finish_requests("a1", RequestStatus.FINISHED_ABORTED)  # before it ran
    engine.add("a2", A + [6] * 40, "a", kv_action="KEEP")
    engine.step()
    engine.scheduler.finish_requests("a2", RequestStatus.FINISHED_ABORTED)  # while it ran
    engine.plane.close()

    assert whole(engine)
    assert [end.finish_reason for end in engine.recorder.of(TurnEnd)] == ["length", "abort", "abort"]


def test_a_request_that_never_ran_leaves_the_session_as_it_was(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="KEEP")
    engine.pressure()
    session = engine.plane.accounts.table.get("a")
    assert session is not None
    before = session.residency()
    engine.add("a1", A + [5] * 40, "a")
    engine.scheduler.finish_requests("a1", RequestStatus.FINISHED_ABORTED)

    assert before["gone"] > 0 and session.residency() == before
    assert len(engine.recorder.of(KvDecision)) == 1 and not engine.recorder.of(KvOutcome)
    engine.run("a2", A + [5] * 40, "a")
    assert [outcome.decision_seq for outcome in engine.recorder.of(KvOutcome)] == [
        engine.recorder.of(KvDecision)[0].seq
    ]


def test_a_pin_still_runs_out_after_a_request_that_never_ran(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=0.01)
    engine.add("a1", A + [5] * 40, "a")
    time.sleep(0.02)
    engine.plane.tick()
    assert not whole(engine)  # the request may want the blocks
    engine.scheduler.finish_requests("a1", RequestStatus.FINISHED_ABORTED)
    assert engine.plane.wants_tick()
    engine.plane.tick()

    assert whole(engine)
    assert engine.recorder.of(KvTransition)[-1].cause == "ttl"


def test_a_pin_that_is_due_while_its_session_runs_is_over_with_the_next_turn(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=0.01)
    request = engine.add("a1", A + [5] * 40, "a", kv_action="KEEP")
    time.sleep(0.02)
    engine.plane.tick()
    while not request.is_finished():
        engine.step()

    assert whole(engine)
    assert not [record for record in engine.recorder.of(KvTransition) if record.cause == "ttl"]


def test_many_sessions_are_bounded(make_engine: Make) -> None:
    engine = make_engine(settings(sessions=50))
    for number in range(300):
        prompt = [number * 40 + i for i in range(33)]
        engine.run(f"r{number}", prompt, f"s{number}", out=1, kv_action="PIN", kv_ttl_s=600)

    assert len(engine.plane.accounts.table) == 50
    engine.scheduler.reset_prefix_cache()
    assert whole(engine)
    given_up = [outcome for outcome in engine.recorder.of(KvOutcome) if not outcome.returned]
    assert len(given_up) == 250 and {outcome.served_from for outcome in given_up} == {"none"}


def test_a_fault_of_ours_lowers_the_mode_and_the_engine_goes_on(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=600)

    def broken(*_: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(engine.plane.decider, "decide", broken)
    engine.run("b0", B, "b")
    assert whole(engine)
    modes = engine.recorder.of(EngineMode)
    assert [(told.mode, "finished: RuntimeError" in told.reason) for told in modes] == [("observe", True)]
    for number in range(3):
        engine.run(f"b{number + 1}", B, "b")
    assert engine.recorder.of(EngineMode)[-1].mode == "off"
    assert whole(engine)


def test_a_model_with_several_groups_is_refused_with_the_reason(make_engine: Make) -> None:
    engine = make_engine(groups=2)

    residency = next(c for c in engine.recorder.of(Capability) if c.name == "engine.residency")
    assert not residency.available and "2 groups" in residency.reason
    assert engine.recorder.of(EngineStart)[0].mode == "off"
    engine.run("a0", A, "a", kv_action="PIN")
    assert not engine.recorder.of(KvDecision)


def test_asynchronous_scheduling_with_steps_in_flight(make_engine: Make) -> None:
    engine = make_engine(is_async=True)
    engine.run("a0", A, "a", kv_action="PIN", kv_ttl_s=600)

    assert engine.free() == BLOCKS - 6
    assert cached(engine, "a1", A + [5] * 20, "a", kv_action="KEEP") == 96
    assert whole(engine)


def test_a_request_of_no_session_is_nobodys(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("n0", A)
    engine.run("x0", B, None, session_id="by-xargs", kv_action="KEEP")

    assert [end.session for end in engine.recorder.of(TurnEnd)] == ["by-xargs"]


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.28.0", True), ("0.32.1+cpu", True), ("0.33.0", True), ("0.27.1", False), ("0.34.0", False), ("x", False)],
)
def test_unknown_versions_are_refused(version: str, known: bool) -> None:
    assert (refusal(version) == "") is known


def test_settings_that_do_not_fit_are_named() -> None:
    assert from_environment({}).mode == "observe"
    assert from_environment({"TIDEGATE_ENGINE_RULE": "ttl", "TIDEGATE_ENGINE_TTL_S": "5"}).ttl_s == 5.0
    for name, value in (("MODE", "on"), ("RULE", "x"), ("PIN_CAP", "1.5"), ("TTL_S", "nan"), ("SESSIONS", "many")):
        with pytest.raises(SettingError, match=f"TIDEGATE_ENGINE_{name}"):
            from_environment({f"TIDEGATE_ENGINE_{name}": value})
