"""Records of what the plane saw and did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate_collectors.engine.hindsight import hindsight
from tidegate_collectors.engine.plugin.pool import PoolWatch
from tidegate_collectors.engine.plugin.residency import Session, Waiting
from tidegate_collectors.engine.plugin.settings import Settings
from tidegate_collectors.engine.plugin.turns import Turn
from tidegate_collectors.records import (
    EngineEnd,
    EngineSample,
    EngineStart,
    KvMode,
    KvOutcome,
    KvTransition,
    Record,
    TurnEnd,
    TurnFirstToken,
    TurnStart,
)

_FINISHES = {
    "FINISHED_STOPPED": "stop", "FINISHED_LENGTH_CAPPED": "length", "FINISHED_ABORTED": "abort",
    "FINISHED_ERROR": "error", "FINISHED_IGNORED": "overflow_400",
}  # fmt: skip


def now_us() -> int:
    """Microseconds UTC."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class Totals:
    """Counters since the plugin began; ``own_us`` is the time that it took inside the engine."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    own_us: float = 0.0

    def finished(self, turn: Turn) -> None:
        """A turn of a session has ended."""
        self.output_tokens += turn.request.num_output_tokens
        self.preemptions += int(getattr(turn.request, "num_preemptions", 0) or 0)
        if turn.began_s is not None:
            self.prompt_tokens += turn.request.num_prompt_tokens
            self.device_tokens += turn.cached_device_tokens
            self.host_tokens += turn.cached_host_tokens
            self.recomputed_tokens += turn.recomputed_tokens


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits: ``demand_tokens`` and ``running_tokens`` are averages."""

    waiting: int
    demand_tokens: float
    running_tokens: float


def queue_of(scheduler: Any) -> Queue:
    """What waits in the scheduler, and how long prompts are."""
    waiting, running = list(scheduler.waiting), scheduler.running
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


def engine_start(
    scheduler: Any, settings: Settings, mode: KvMode, pool_blocks: int, block_tokens: int
) -> EngineStart:  # fmt: skip
    """The engine introduces itself."""
    import os

    from vllm import __version__ as vllm_version

    model = scheduler.vllm_config.model_config
    return EngineStart(
        t=now_us(), engine=settings.name, name="vllm", version=vllm_version, plugin=True, pid=os.getpid(),
        model=str(getattr(model, "served_model_name", None) or model.model)[:128], max_tokens=model.max_model_len,
        block_tokens=block_tokens, pool_blocks=pool_blocks, kv_bytes_per_token=kv_bytes_per_token(scheduler),
        host_tier_bytes=0, mode=mode, rule=settings.rule,
        params={"ttl_s": settings.ttl_s, "max_ttl_s": settings.max_ttl_s, "pin_cap": settings.pin_cap},
    )  # fmt: skip


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
    engine: str, session: Session, from_: str, to: str, blocks: int, cause: str, block_tokens: int, **more: Any
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
    served = (
        "mixed" if sum(map(bool, (device, host, again))) > 1 else "host" if host else "recompute" if again else "device"
    )
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
        hindsight_best=best, regret_s=regret_s,
    )  # fmt: skip


def sample(name: str, scheduler: Any, pool: PoolWatch, totals: Totals, sessions: int) -> Record:
    """The engine now."""
    free, cached, pinned = pool.free_blocks(), pool.cached_free(), pool.pinned()
    reasons: dict[str, int] = {}
    for request in scheduler.waiting:
        name_of = request.status.name.lower().removeprefix("waiting_for_")
        reasons[name_of] = reasons.get(name_of, 0) + 1
    return EngineSample(
        t=now_us(), engine=name, running=len(scheduler.running), waiting=sum(reasons.values()),
        waiting_by_reason=reasons, blocks_total=pool.blocks, blocks_active=pool.blocks - free - pinned,
        blocks_cached=cached, blocks_pinned=pinned, blocks_free=free - cached, sessions=sessions,
        prefix_queries_tokens=totals.prompt_tokens, prefix_hits_tokens=totals.device_tokens,
        external_hits_tokens=totals.host_tokens, recomputed_tokens=totals.recomputed_tokens,
        preemptions=totals.preemptions, prompt_tokens=totals.prompt_tokens, output_tokens=totals.output_tokens,
        steps=totals.steps, own_us=round(totals.own_us),
    )  # fmt: skip
