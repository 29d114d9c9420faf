"""Records of what the plane saw and did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from tidegate_collectors.engine.hindsight import hindsight
from tidegate_collectors.engine.plugin.counters import Counters
from tidegate_collectors.engine.plugin.pool import PoolWatch
from tidegate_collectors.engine.plugin.residency import Session, Waiting
from tidegate_collectors.engine.plugin.settings import Settings
from tidegate_collectors.engine.plugin.turns import Turn
from tidegate_collectors.records import (
    Capability,
    EngineEnd,
    EngineSample,
    EngineStart,
    KvMode,
    KvOutcome,
    KvState,
    KvTransition,
    Note,
    Record,
    TurnEnd,
    TurnFirstToken,
    TurnStart,
)

_LOOKED_AT: Final = 64
_REASONS = {
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "grammar", "WAITING_FOR_REMOTE_KVS": "remote_kv",
    "WAITING_FOR_STREAMING_REQ": "streaming", "PREEMPTED": "preempted",
}  # fmt: skip
_FINISHES = {
    "FINISHED_STOPPED": "stop", "FINISHED_LENGTH_CAPPED": "length", "FINISHED_ABORTED": "abort",
    "FINISHED_ERROR": "error", "FINISHED_IGNORED": "overflow_400", "FINISHED_REPETITION": "stop",
}  # fmt: skip


def now_us() -> int:
    """Microseconds UTC."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits: ``demand_tokens`` and ``running_tokens`` are averages."""

    waiting: int
    demand_tokens: float
    running_tokens: float


def queue_of(scheduler: Any) -> Queue:
    """What waits for room in the scheduler, and how long prompts are; of many that wait the first ones."""
    ready = (request for request in scheduler.waiting if request.status.name in ("WAITING", "PREEMPTED"))
    waiting, running = list(islice(ready, _LOOKED_AT)), scheduler.running
    return Queue(
        len(waiting),
        sum(request.num_tokens for request in waiting) / len(waiting) if waiting else 0.0,
        sum(request.num_tokens for request in running) / len(running) if running else 0.0,
    )


def blocks_of_head(scheduler: Any, block_tokens: int) -> int | None:
    """Blocks of the smallest request that could run if it got them; None when nothing waits for blocks."""
    ready = [request for request in scheduler.waiting if request.status.name in ("WAITING", "PREEMPTED")]
    return min((-(-request.num_tokens // block_tokens) for request in ready), default=None)


def common_blocks(keys: Sequence[bytes], hashes: Sequence[bytes]) -> int:
    """Blocks that a prompt has in common with what a session left; a key is a hash, its group's number behind."""
    count = 0
    for key, hash_ in zip(keys, hashes, strict=False):
        if key[:-4] != hash_:
            break
        count += 1
    return count


def kv_bytes_per_token(scheduler: Any) -> int:
    """Bytes of KV that a token takes, all layers; 0 where the engine does not say."""
    total = 0
    for group in scheduler.kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        total += len(group.layer_names) * int(spec.page_size_bytes) // max(1, int(spec.block_size))
    return total


def introduction(
    scheduler: Any, settings: Settings, name: str, mode: KvMode, reason: str, pool_blocks: int,
    host_bytes: int, no_host: str,
) -> list[Record]:  # fmt: skip
    """The engine introduces itself, and says what can be done in it.

    ``reason``: why sessions cannot be followed; ``no_host``: why nothing can be offloaded.
    """
    import os

    from vllm import __version__ as vllm_version

    model = scheduler.vllm_config.model_config
    served = getattr(model, "served_model_name", None) or model.model
    start = EngineStart(
        t=now_us(), engine=name, name="vllm", version=vllm_version, plugin=True, pid=os.getpid(),
        model=str(served)[:128], max_tokens=model.max_model_len, block_tokens=int(scheduler.block_size),
        pool_blocks=pool_blocks, kv_bytes_per_token=kv_bytes_per_token(scheduler), host_tier_bytes=host_bytes,
        mode=mode, rule=settings.rule,
        params={"ttl_s": settings.ttl_s, "max_ttl_s": settings.max_ttl_s, "pin_cap": settings.pin_cap},
    )  # fmt: skip
    found: list[Record] = [start]
    for ability, available, why in (
        ("engine.residency", not reason, reason),
        ("engine.pin", not reason, reason),
        ("engine.drop", not reason, reason),
        ("engine.offload", not (reason or no_host), reason or no_host),
    ):
        found.append(Capability(t=now_us(), plane="engine", name=ability, available=available, reason=why))
    if reason:
        found.append(Note(t=now_us(), text=f"engine {name}: {reason}", by="engine"))
    return found


def unable(scheduler: Any) -> str:
    """Why sessions cannot be followed in this engine; empty when they can."""
    groups = len(scheduler.kv_cache_config.kv_cache_groups)
    if groups != 1:
        return f"the model has {groups} groups of KV blocks; only models with one are followed"
    if not scheduler.kv_cache_manager.enable_caching:
        return "prefix caching is off, so no block can be used again; start vLLM with --enable-prefix-caching"
    return ""


def engine_end(name: str) -> Record:
    """It shuts down."""
    return EngineEnd(t=now_us(), engine=name)


def turn_start(turn: Turn) -> Record:
    """A request came."""
    return TurnStart(t=now_us(), session=turn.session, turn=turn.id, prompt_tokens=turn.request.num_prompt_tokens)


def turn_first_token(turn: Turn) -> Record:
    """It is answered."""
    first_s = turn.first_s or turn.arrived_s
    ttft_us = round((first_s - turn.arrived_s) * 1e6)
    return TurnFirstToken(t=now_us(), session=turn.session, turn=turn.id, ttft_us=ttft_us)


def turn_end(turn: Turn, now_s: float, tool: str | None) -> Record:
    """It has ended."""
    request = turn.request
    began = turn.began_s is not None
    finish = _FINISHES.get(request.status.name, "stop")
    return TurnEnd(
        t=now_us(), session=turn.session, turn=turn.id, prompt_tokens=request.num_prompt_tokens,
        cached_tokens=turn.cached_device_tokens + turn.cached_host_tokens if began else None,
        cached_device_tokens=turn.cached_device_tokens if began else None,
        cached_host_tokens=turn.cached_host_tokens if began else None,
        recomputed_tokens=turn.recomputed_tokens if began else None, output_tokens=request.num_output_tokens,
        queue_us=turn.queue_us(), prefill_us=turn.prefill_us(),
        decode_us=None if turn.first_s is None else round((now_s - turn.first_s) * 1e6),
        preemptions=int(getattr(request, "num_preemptions", 0) or 0),
        finish_reason="tool_calls" if finish == "stop" and tool else finish, tools=[tool] if tool else [],
    )  # fmt: skip


def transition(
    engine: str, session: Session, from_: KvState, to: KvState, blocks: int, cause: str, block_tokens: int, **more: Any
) -> Record:  # fmt: skip
    """Blocks of a session changed their state."""
    return KvTransition(
        t=now_us(), session=session.id, engine=engine, from_=from_, to=to, blocks=blocks, cause=cause,  # type: ignore[arg-type]
        tokens=blocks * block_tokens, **more,
    )  # fmt: skip


def outcome(engine: str, turn: Turn, waiting: Waiting, evicted_s: float | None) -> Record:
    """What came of a decision, when the session is answered again."""
    gap_s = turn.arrived_s - waiting.ended_s
    device, host, again = turn.cached_device_tokens, turn.cached_host_tokens, turn.recomputed_tokens
    places = [name for name, tokens in (("device", device), ("host", host), ("recompute", again)) if tokens]
    # What the session had left may be of no use to it any more: then nothing was served, and nothing missed.
    served = "none" if not places else places[0] if len(places) == 1 else "mixed"
    reach_s = (
        waiting.reach_s if waiting.action != "KEEP" else None if evicted_s is None else evicted_s - waiting.ended_s
    )
    best, regret_s = hindsight(waiting.inputs, waiting.action, gap_s=gap_s, reach_s=reach_s)
    computed = turn.request.num_prompt_tokens - device - host
    prefill_us = turn.prefill_us()
    return KvOutcome(
        t=now_us(), session=turn.session, turn=turn.id, engine=engine, decision_seq=waiting.seq, action=waiting.action,
        gap_us=round(gap_s * 1e6), evicted=evicted_s is not None, served_from=served,  # type: ignore[arg-type]
        cached_device_tokens=device, cached_host_tokens=host, recomputed_tokens=again,
        retrieval_us=round(prefill_us * again / computed) if prefill_us is not None and computed > 0 else None,
        hindsight_best=best if turn.known_tokens else None, regret_s=regret_s if turn.known_tokens else None,
    )  # fmt: skip


def gave_up(engine: str, session: Session, waiting: Waiting, now_s: float) -> Record:
    """A session is not waited for any more."""
    return KvOutcome(
        t=now_us(), session=session.id, engine=engine, decision_seq=waiting.seq, action=waiting.action, returned=False,
        gap_us=max(0, round((now_s - waiting.ended_s) * 1e6)), evicted=session.evicted_s is not None,
        served_from="none",
    )  # fmt: skip


def sample(name: str, scheduler: Any, pool: PoolWatch, counters: Counters, sessions: int | None) -> EngineSample:
    """The engine now. ``sessions``: in the residency table, None while none is followed."""
    free, cached, pinned = pool.free_blocks(), pool.cached_free(), pool.pinned()
    reasons = waiting_by_reason(scheduler)
    return EngineSample(
        t=now_us(), engine=name, running=len(scheduler.running), waiting=sum(reasons.values()),
        waiting_by_reason=reasons, blocks_total=pool.blocks, blocks_active=pool.blocks - free - pinned,
        blocks_cached=cached, blocks_pinned=pinned, blocks_free=free - cached, sessions=sessions,
        prefix_queries_tokens=counters.prefix_queries_tokens, prefix_hits_tokens=counters.prefix_hits_tokens,
        external_queries_tokens=counters.external_queries_tokens, external_hits_tokens=counters.external_hits_tokens,
        recomputed_tokens=counters.recomputed_tokens, preemptions=counters.preemptions,
        prompt_tokens=counters.prompt_tokens, output_tokens=counters.output_tokens(), steps=counters.steps,
        step_us=counters.longest_step_us(), own_us=round(counters.own_us),
    )  # fmt: skip


def waiting_by_reason(scheduler: Any) -> dict[str, int]:
    """Requests that wait, by why: for room, for their KV from elsewhere, for a grammar, for more of their prompt."""
    deferred = _ids(getattr(scheduler, "deferred_waiting", None) or getattr(scheduler, "skipped_waiting", None))
    reasons: dict[str, int] = {}
    seen: set[str] = set()
    for queue in ("waiting", "skipped_waiting", "kv_holding_waiting"):
        for request in getattr(scheduler, queue, None) or ():
            if request.request_id in seen:
                continue
            seen.add(request.request_id)
            status = request.status.name
            reason = _REASONS.get(status) or ("deferred" if request.request_id in deferred else "capacity")
            reasons[reason] = reasons.get(reason, 0) + 1
    return reasons


def _ids(requests: Any) -> set[str]:
    return {request.request_id for request in requests or ()}
