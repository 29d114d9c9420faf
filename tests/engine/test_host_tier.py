"""The host tier in the real scheduler, with a real worker that copies real memory; only the model is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.v1.request import RequestStatus

from tests.engine.conftest import BLOCK_TOKENS, BLOCKS, Engine
from tests.engine.test_accounts import replay
from tests.engine.test_plugin import A, B, last_decision, settings, whole
from tidegate_collectors.engine.plugin.host_tier_connector import host_bytes
from tidegate_collectors.engine.plugin.host_tier_side import HostSide
from tidegate_collectors.engine.plugin.host_tier_worker import HostWorker, regions
from tidegate_collectors.records import (
    Capability,
    EngineMode,
    EngineSample,
    EngineStart,
    KvCalibration,
    KvDecision,
    KvOutcome,
    KvTransfer,
    KvTransition,
    TurnEnd,
)

Make = Callable[..., Engine]
PAGE_BYTES = 2 * BLOCK_TOKENS * 32 * 2
WHOLE_BLOCKS = len(A) // BLOCK_TOKENS


def side(engine: Engine) -> HostSide:
    found = engine.scheduler.connector.side
    assert isinstance(found, HostSide)
    return found


def copier(engine: Engine) -> HostWorker:
    assert engine.worker is not None and engine.worker._worker is not None
    return engine.worker._worker


def row_of(key: bytes) -> torch.Tensor:
    """What the model would have computed: bytes that no other block has."""
    return torch.frombuffer(bytearray((key * PAGE_BYTES)[:PAGE_BYTES]), dtype=torch.uint8)


def compute(engine: Engine, session: str) -> dict[bytes, int]:
    """Fill the session's blocks as a model would; their places."""
    found = {}
    known = engine.plane.accounts.table.get(session)
    assert known is not None
    for key in known.prompt:
        block = engine.pool.cached_block_hash_to_block.get_one_block(key)
        engine.memory[block.block_id] = row_of(key)
        found[key] = block.block_id
    return found


def offloaded(engine: Engine, name: str, prompt: list[int], session: str) -> KvDecision:
    """A turn that ends with OFFLOAD, its memory filled before the copy is made, and the copy made."""
    engine.run(name, prompt, session, kv_action="OFFLOAD")
    compute(engine, session)  # the copy begins with the next step
    engine.idle()
    return last_decision(engine)


def moves(engine: Engine, session: str, after: int = 0) -> list[tuple[str, str, str, int]]:
    return [
        (r.from_, r.to, r.cause, r.blocks)
        for r in engine.recorder.of(KvTransition)
        if r.session == session and r.seq > after
    ]


class Gate:
    """Holds copies up, as a slow memory would."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        side(engine).inline_bytes = 0  # all of them by the thread
        worker = copier(engine)
        copy = worker.copy

        def held(job: Any) -> int:
            self.reached.set()
            assert self.opened.wait(30)
            return copy(job)

        monkeypatch.setattr(worker, "copy", held)


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_an_offloaded_session_comes_back_from_the_host(make_engine: Make, inline_bytes: int) -> None:
    # GIVEN a session that is offloaded when its turn ends
    engine = make_engine(host_blocks=20)
    side(engine).inline_bytes = inline_bytes
    decision = offloaded(engine, "a0", A, "a")
    assert (decision.action, decision.enforced, decision.blocks, decision.done_blocks) == ("OFFLOAD", True, 6, 6)
    assert decision.rule_action is not None and decision.overridden_by == "request"
    assert [r[:3] for r in moves(engine, "a", decision.seq or 0)] == [
        ("device_cached", "device_and_host", "decision"), ("device_and_host", "host", "decision"),
    ]  # fmt: skip
    assert {r.decision_seq for r in engine.recorder.of(KvTransition) if r.cause == "decision"} == {decision.seq}
    out = engine.recorder.of(KvTransfer)[-1]
    assert (out.direction, out.session, out.blocks, out.bytes, out.tokens, out.ok) == (
        "out", "a", 6, 6 * PAGE_BYTES, 96, True,
    )  # fmt: skip
    assert out.decision_seq == decision.seq and out.duration_us is not None and out.exposed_us is not None
    assert whole(engine) and engine.pool.cached_block_hash_to_block.get_one_block(bytes(36)) is None
    # WHEN everything on the device is overwritten and it returns
    engine.pressure(2 * BLOCKS)
    engine.memory.fill_(0)
    engine.run("a1", [*A, 7, 8, 9], "a", kv_action="KEEP")
    # THEN what it left is there again, bit by bit, and not computed
    end = [r for r in engine.recorder.of(TurnEnd) if r.session == "a"][-1]
    assert (end.cached_device_tokens, end.cached_host_tokens, end.recomputed_tokens) == (0, 96, 0)
    known = engine.plane.accounts.table.get("a")
    assert known is not None
    for key in known.prompt[:6]:
        block = engine.pool.cached_block_hash_to_block.get_one_block(key)
        assert torch.equal(engine.memory[block.block_id], row_of(key))
    into = engine.recorder.of(KvTransfer)[-1]
    assert (into.direction, into.session, into.turn, into.blocks, into.ok) == ("in", "a", end.turn, 6, True)
    assert into.decision_seq == decision.seq and (into.exposed_us or 0) >= (into.duration_us or 0) > 0
    outcome = engine.recorder.of(KvOutcome)[-1]
    assert (outcome.served_from, outcome.cached_host_tokens, outcome.evicted) == ("host", 96, False)
    assert ("host", "device_active", "restored", 6) in moves(engine, "a")
    # AND its copies are there still
    assert known.residency()["device_and_host"] == 6 and side(engine).table.used() == 6
    assert whole(engine)
    replay(engine)


def test_the_next_offload_copies_what_is_new_only(make_engine: Make) -> None:
    engine = make_engine(host_blocks=20)
    offloaded(engine, "a0", A, "a")
    decision = offloaded(engine, "a1", A + list(range(40)), "a")

    assert decision.inputs["unsaved_tokens"] == 3 * BLOCK_TOKENS - BLOCK_TOKENS and decision.blocks == 8
    assert decision.inputs["reusable_tokens"] == 8 * BLOCK_TOKENS
    last = [r for r in engine.recorder.of(KvTransfer) if r.direction == "out"][-1]
    assert last.blocks == 2
    known = engine.plane.accounts.table.get("a")
    assert known is not None and known.residency()["host"] == 8 and whole(engine)


def test_blocks_that_others_have_stay_on_the_device(make_engine: Make) -> None:
    engine = make_engine(host_blocks=20)
    engine.run("b0", [*A[:48], *B], "b", kv_action="KEEP")
    offloaded(engine, "a0", A, "a")

    first = engine.plane.accounts.table.get("a")
    second = engine.plane.accounts.table.get("b")
    assert first is not None and first.residency()["device_and_host"] == 3 and first.residency()["host"] == 3
    assert second is not None and second.residency()["device_and_host"] == 3  # a's copies are b's, too
    replay(engine)


def test_a_session_that_comes_back_while_it_is_copied_keeps_its_blocks(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(host_blocks=20)
    gate = Gate(engine, monkeypatch)
    engine.run("a0", A, "a", kv_action="OFFLOAD")
    engine.step()
    assert gate.reached.wait(10) and engine.free() == BLOCKS - WHOLE_BLOCKS
    engine.run("a1", [*A, 1, 2], "a", kv_action="KEEP")
    gate.opened.set()
    engine.idle()

    end = engine.recorder.of(TurnEnd)[-1]
    assert (end.cached_device_tokens, end.cached_host_tokens) == (96, 0)
    known = engine.plane.accounts.table.get("a")
    assert known is not None and known.residency()["device_and_host"] == 6
    assert engine.recorder.of(KvTransfer)[-1].ok and whole(engine)
    assert "host" not in {to for _, to, _, _ in moves(engine, "a")}
    replay(engine)


def test_a_reset_while_blocks_are_copied_throws_the_copy_away(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(host_blocks=20)
    gate = Gate(engine, monkeypatch)
    engine.run("a0", A, "a", kv_action="OFFLOAD")
    engine.step()
    assert gate.reached.wait(10)
    assert engine.scheduler.reset_prefix_cache()
    assert whole(engine)
    gate.opened.set()
    engine.idle()

    transfer = engine.recorder.of(KvTransfer)[-1]
    assert not transfer.ok and "abandoned" in (transfer.error or "")
    assert side(engine).table.used() == 0
    engine.run("a1", [*A, 1], "a", kv_action="KEEP")
    assert engine.recorder.of(TurnEnd)[-1].cached_tokens == 0
    replay(engine)


def test_reset_of_the_connector_empties_the_tier(make_engine: Make) -> None:
    engine = make_engine(host_blocks=20)
    offloaded(engine, "a0", A, "a")
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)

    assert side(engine).table.used() == 0
    assert moves(engine, "a")[-1] == ("host", "gone", "reset", 6)
    engine.run("a1", [*A, 1], "a", kv_action="KEEP")
    assert engine.recorder.of(TurnEnd)[-1].cached_tokens == 0


def test_a_full_tier_gives_up_the_least_recently_used(make_engine: Make) -> None:
    engine = make_engine(host_blocks=10)
    offloaded(engine, "a0", A, "a")
    offloaded(engine, "b0", B, "b")

    evicted = [r for r in engine.recorder.of(KvTransition) if r.cause == "host_evicted"]
    assert [(r.session, r.from_, r.to, r.blocks, r.victim_of) for r in evicted] == [("a", "host", "gone", 2, "b")]
    assert side(engine).used_bytes() <= side(engine).total_bytes() == 10 * PAGE_BYTES
    engine.run("a1", [*A, 1], "a", kv_action="KEEP")  # the beginning of its prompt is what stayed
    end = engine.recorder.of(TurnEnd)[-1]
    assert (end.cached_host_tokens, end.recomputed_tokens) == (64, 32)
    replay(engine)


def test_a_session_larger_than_the_tier_is_refused(make_engine: Make) -> None:
    engine = make_engine(host_blocks=4)
    engine.run("a0", A, "a", kv_action="OFFLOAD")

    decision = last_decision(engine)
    assert (decision.action, decision.overridden_by, decision.inputs["can_offload"]) == ("KEEP", "host-full", False)
    assert side(engine).table.used() == 0 and whole(engine) and not engine.recorder.of(KvTransfer)


def test_no_room_beside_what_is_being_copied_is_told(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(host_blocks=8)
    gate = Gate(engine, monkeypatch)
    engine.run("a0", A, "a", kv_action="OFFLOAD")
    engine.step()
    assert gate.reached.wait(10)
    engine.run("b0", B, "b", kv_action="OFFLOAD")

    decision = last_decision(engine)
    assert (decision.action, decision.enforced, decision.done_blocks) == ("OFFLOAD", False, 0)
    transfer = engine.recorder.of(KvTransfer)[-1]
    assert (transfer.session, transfer.ok, transfer.decision_seq) == ("b", False, decision.seq)
    assert "no room" in (transfer.error or "")
    gate.opened.set()
    engine.idle()
    known = engine.plane.accounts.table.get("b")
    assert known is not None and known.residency()["device_cached"] == 6 and whole(engine)
    replay(engine)


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_a_copy_that_fails_leaves_the_blocks_on_the_device(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    engine = make_engine(host_blocks=20)
    side(engine).inline_bytes = inline_bytes

    def broken(_: Any) -> int:
        raise OSError("the memory is gone")

    monkeypatch.setattr(copier(engine), "copy", broken)
    engine.run("a0", A, "a", kv_action="OFFLOAD")
    engine.idle()

    transfer = engine.recorder.of(KvTransfer)[-1]
    assert (transfer.ok, transfer.error, transfer.bytes) == (False, "OSError: the memory is gone", 0)
    assert moves(engine, "a")[-1] == ("device_and_host", "device_cached", "failed", 6)
    assert side(engine).table.used() == 0 and whole(engine)
    # WHEN it goes on like that
    for number in range(2):
        engine.run(f"b{number}", B[number:], "b", kv_action="OFFLOAD")
        engine.idle()
    # THEN the tier is given up, and that is told
    told = [r for r in engine.recorder.of(Capability) if r.name == "engine.offload"]
    assert [r.available for r in told] == [True, False] and "the memory is gone" in told[-1].reason
    engine.run("c0", A, "c", kv_action="OFFLOAD")
    assert last_decision(engine).overridden_by == "no-tier"
    assert not engine.recorder.of(EngineMode)


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_blocks_that_cannot_be_fetched_are_computed_again(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    engine = make_engine(host_blocks=20)
    side(engine).inline_bytes = inline_bytes
    offloaded(engine, "a0", A, "a")

    def broken(_: Any) -> int:
        raise OSError("unreadable")

    monkeypatch.setattr(copier(engine), "copy", broken)
    request = engine.run("a1", [*A, 1, 2], "a", kv_action="KEEP")

    assert request.status == RequestStatus.FINISHED_LENGTH_CAPPED
    end = engine.recorder.of(TurnEnd)[-1]
    assert (end.session, end.cached_tokens, end.recomputed_tokens) == ("a", 0, 96)
    transfer = engine.recorder.of(KvTransfer)[-1]
    assert (transfer.direction, transfer.ok) == ("in", False)
    assert (("host", "gone", "failed", 6) in moves(engine, "a")) is (inline_bytes == 0)  # inline it was active by then
    assert side(engine).table.used() == 0 and whole(engine)
    replay(engine)


def test_an_abort_while_blocks_are_fetched_leaves_nothing_behind(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(host_blocks=20)
    offloaded(engine, "a0", A, "a")
    gate = Gate(engine, monkeypatch)
    request = engine.add("a1", [*A, 1], "a")
    engine.step()
    assert gate.reached.wait(10) and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    engine.scheduler.finish_requests("a1", RequestStatus.FINISHED_ABORTED)
    gate.opened.set()
    engine.idle()

    assert whole(engine) and side(engine).table.used() == 6
    engine.run("a2", [*A, 1], "a", kv_action="KEEP")
    assert engine.recorder.of(TurnEnd)[-1].cached_host_tokens == 96
    replay(engine)


def test_a_request_that_is_preempted_after_it_was_fetched_comes_through(make_engine: Make) -> None:
    engine = make_engine(host_blocks=40)
    for number in range(4):
        offloaded(engine, f"s{number}", [1000 * number + i for i in range(100)], f"s{number}")
    running = [
        engine.add(f"t{number}", [1000 * number + i for i in range(100)], f"s{number}", out=60, kv_action="KEEP")
        for number in range(4)
    ]
    for _ in range(2000):
        if all(request.is_finished() for request in running):
            break
        engine.step()
    engine.idle()

    assert all(request.status == RequestStatus.FINISHED_LENGTH_CAPPED for request in running)
    assert sum(request.num_preemptions for request in running) > 0
    assert whole(engine)
    replay(engine)


def test_an_engine_that_ends_while_it_copies_ends(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(host_blocks=20)
    gate = Gate(engine, monkeypatch)
    engine.run("a0", A, "a", kv_action="OFFLOAD")
    engine.step()
    assert gate.reached.wait(10)
    engine.scheduler.shutdown()
    assert whole(engine)
    threading.Timer(0.2, gate.opened.set).start()
    began_s = time.monotonic()
    assert engine.worker is not None
    engine.worker.shutdown()
    assert time.monotonic() - began_s < 9  # it waits for the copy, not for its own limit
    assert not any(thread.name == "tidegate-host-tier" for thread in threading.enumerate())


def test_a_fault_in_the_plugin_lets_go_of_what_is_copied(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(host_blocks=20)
    gate = Gate(engine, monkeypatch)
    engine.run("a0", A, "a", kv_action="OFFLOAD")
    engine.step()
    assert gate.reached.wait(10) and not whole(engine)

    def fault() -> None:
        raise RuntimeError("made for the test")

    engine.plane.guarded(fault)
    assert engine.plane.mode == "observe" and whole(engine)
    gate.opened.set()
    engine.idle()
    assert side(engine).table.used() == 0
    replay(engine)


def test_a_fault_in_the_tier_ends_it_and_nothing_else(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(host_blocks=20)

    def fault(*_: Any, **__: Any) -> None:
        raise RuntimeError("made for the test")

    monkeypatch.setattr(side(engine).table, "written", fault)
    engine.run("a0", A, "a", kv_action="OFFLOAD")
    engine.idle()

    assert whole(engine) and engine.plane.mode == "enforce"
    told = [r for r in engine.recorder.of(Capability) if r.name == "engine.offload"]
    assert not told[-1].available and "RuntimeError" in told[-1].reason
    assert moves(engine, "a")[-1] == ("device_and_host", "device_cached", "failed", 6)
    engine.run("a1", [*A, 1], "a", kv_action="OFFLOAD")
    assert last_decision(engine).overridden_by == "no-tier"
    assert engine.recorder.of(TurnEnd)[-1].cached_device_tokens == 96


def test_what_is_in_the_tier_already_leaves_the_device_at_once(make_engine: Make) -> None:
    engine = make_engine(host_blocks=20)
    offloaded(engine, "a0", A, "a")
    engine.run("a1", A, "a", kv_action="OFFLOAD")

    known = engine.plane.accounts.table.get("a")
    assert known is not None and known.residency()["host"] == 6 and whole(engine)
    assert len([r for r in engine.recorder.of(KvTransfer) if r.direction == "out"]) == 1
    replay(engine)


def test_dropping_gives_the_copies_up_too(make_engine: Make) -> None:
    engine = make_engine(host_blocks=20)
    offloaded(engine, "a0", A, "a")
    engine.run("a1", [*A, 1], "a", kv_action="DROP")

    assert side(engine).table.used() == 0 and whole(engine)
    known = engine.plane.accounts.table.get("a")
    assert known is not None and not known.blocks
    replay(engine)


def test_observing_moves_nothing(make_engine: Make) -> None:
    engine = make_engine(settings("observe"), host_blocks=20)
    engine.run("a0", A, "a", kv_action="OFFLOAD")
    engine.idle()

    decision = last_decision(engine)
    assert (decision.action, decision.enforced, decision.done_blocks) == ("OFFLOAD", False, None)
    assert side(engine).table.used() == 0 and not engine.recorder.of(KvTransfer)


def test_the_tier_is_told_of(make_engine: Make) -> None:
    engine = make_engine(host_blocks=20)
    offloaded(engine, "a0", A, "a")
    engine.run("a1", [*A, 1], "a", kv_action="KEEP")
    engine.scheduler.make_stats()
    engine.sample()

    assert engine.recorder.of(EngineStart)[0].host_tier_bytes == 20 * PAGE_BYTES
    assert {c.name: c.available for c in engine.recorder.of(Capability)}["engine.offload"] is True
    sample = engine.recorder.of(EngineSample)[-1]
    assert (sample.host_used_bytes, sample.host_total_bytes) == (6 * PAGE_BYTES, 20 * PAGE_BYTES)
    assert (sample.external_queries_tokens or 0) >= 96 and sample.external_hits_tokens == 96


def test_copies_are_calibrated(make_engine: Make) -> None:
    engine = make_engine(host_blocks=200)
    for number in range(6):
        prompt = [1000 * number + i for i in range(40 + 16 * number)]
        offloaded(engine, f"x{number}", prompt, f"s{number}")
        engine.run(f"y{number}", [*prompt, 5], f"s{number}", kv_action="OFFLOAD")
        engine.idle()
    engine.plane.measuring._told_s = 0.0
    engine.sample()

    told = engine.recorder.of(KvCalibration)[-1]
    assert told.save["n"] == 6 and told.save["s0_s"] >= 0 and 0 <= told.save["overlap"] <= 1
    assert told.restore["n"] == 6 and told.restore["t0_s"] >= 0
    engine.run("z", [50_000 + i for i in range(100)], "z", kv_action="KEEP")
    inputs = last_decision(engine).inputs
    assert inputs["can_offload"] and inputs["restore_s"] > 0 and inputs["p_host"] <= 1
    assert inputs["unsaved_tokens"] == 96


def test_an_engine_without_the_connector_says_how_to_have_a_tier(make_engine: Make) -> None:
    engine = make_engine()
    engine.run("a0", A, "a", kv_action="OFFLOAD")

    assert last_decision(engine).overridden_by == "no-tier"
    told = next(c for c in engine.recorder.of(Capability) if c.name == "engine.offload")
    assert not told.available and "--kv-transfer-config" in told.reason
    sample = engine.recorder.of(EngineSample)
    assert all(one.host_total_bytes is None for one in sample)


@pytest.mark.parametrize("size", ["much", -1, True, 10, 1.5])
def test_a_size_that_does_not_fit_leaves_the_engine_as_it_was(make_engine: Make, size: Any) -> None:
    engine = make_engine(host_bytes=size)
    engine.run("a0", A, "a", kv_action="OFFLOAD")

    assert last_decision(engine).overridden_by == "no-tier" and whole(engine)
    told = next(c for c in engine.recorder.of(Capability) if c.name == "engine.offload")
    assert not told.available and "bytes" in told.reason


def test_the_size_is_the_connectors_or_the_environments() -> None:
    variable = "TIDEGATE_ENGINE_HOST_BYTES"
    assert host_bytes({"host_bytes": 5000}, {variable: "7000"}) == 5000
    assert host_bytes({}, {variable: "7000"}) == 7000
    assert host_bytes({}, {}) == 1 << 30


def test_layers_and_blocks_are_found_in_memory() -> None:
    apart = torch.arange(4 * 2 * 8, dtype=torch.int16).view(4, 2, 8)
    split = torch.zeros(8, 3, 4)  # two kernel blocks to a block
    found = regions({"a": apart, "b": apart, "c": split}, 4)
    assert [(one.address, one.stride_bytes) for one in found] == [
        (apart.data_ptr(), 32), (split.data_ptr(), 96),
    ]  # fmt: skip
    for bad in (torch.zeros(2, 4, 8), torch.zeros(4), torch.zeros(8, 4).t(), torch.zeros(4, 8, device="meta")):
        with pytest.raises(ValueError, match=r"blocks|meta"):
            regions({"a": bad}, 4)
    with pytest.raises(ValueError, match="no KV cache"):
        regions({}, 4)
