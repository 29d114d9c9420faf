"""Records of what is seen of a stock engine. Pure, but for the clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tidegate_collectors.engine.stock.metrics import Reading
from tidegate_collectors.engine.stock.residency import Change, Residency
from tidegate_collectors.records import Capability, EngineSample, EngineStart, KvTransition, Record

_PLUGIN = "needs the plugin inside vLLM: pip install ./collectors beside it, see docs/engine.md"
_NO_EVENTS = (
    "no KV events are listened to: start vLLM with --kv-events-config, and this collector with --kv-events ADDRESS "
    "and --kv-replay ADDRESS, see docs/stock-engine.md"
)
_FROM_EVENTS = "from KV events: which blocks are stored and removed; which are in use or pinned is not known"


def now_us() -> int:
    """Microseconds UTC."""
    return time.time_ns() // 1000


def introduction(engine: str, version: str, model: str, reading: Reading, *, events: bool) -> list[Record]:
    """The engine is introduced, with what can and cannot be known of it."""
    t = now_us()
    start = EngineStart(
        t=t, engine=engine, name="vllm", version=version, plugin=False, model=model, block_tokens=reading.block_tokens,
        pool_blocks=reading.pool_blocks,
    )  # fmt: skip
    missing = "this vLLM does not have: " + ", ".join(reading.missing) if reading.missing else ""
    abilities = (
        ("engine.metrics", True, missing),
        ("engine.residency", events, _FROM_EVENTS if events else _NO_EVENTS),
        ("engine.turns", False, f"who asks, and how long it waits, {_PLUGIN}; or pass requests by tidegate gateway"),
        ("engine.decisions", False, f"deciding {_PLUGIN}"),
        ("engine.pin", False, f"pinning {_PLUGIN}"),
        ("engine.drop", False, f"dropping {_PLUGIN}"),
        ("engine.offload", False, f"offloading by decision {_PLUGIN}"),
    )
    return [
        start,
        *(Capability(t=t, plane="engine", name=name, available=can, reason=why) for name, can, why in abilities),
    ]


def sample(engine: str, reading: Reading, residency: Residency | None) -> EngineSample:
    """The engine now. ``residency`` is None where no events are listened to.

    Blocks in use and pinned ones are one number to vLLM's gauge. Cached and free ones are the blocks that events say
    are stored less those in use, each of which but the last of a request is stored: exact in an idle engine, else at
    most one block a running request too few.
    """
    used, total = reading.used_blocks, reading.pool_blocks
    counts: dict[str, Any] = dict(reading.counts)
    cached: int | None = None
    free: int | None = None
    if residency is not None and residency.complete and used is not None and total is not None:
        cached = min(max(0, residency.device_blocks - used), total - used)
        free = total - used - cached
    return EngineSample(
        t=now_us(), engine=engine, waiting_by_reason=reading.waiting_by_reason, blocks_total=total, blocks_used=used,
        blocks_cached=cached, blocks_free=free, sessions=None if residency is None else len(residency.sessions),
        missing=list(reading.missing), **counts,
    )  # fmt: skip


def transitions(engine: str, changes: Sequence[Change], residency: Residency, t_us: int) -> list[Record]:
    """A batch's changes; each says where all blocks of its session are after the batch."""
    tokens = residency.block_tokens
    return [
        KvTransition(
            t=t_us, session=change.session, engine=engine, from_=change.from_, to=change.to, blocks=change.blocks,
            cause=change.cause,  # type: ignore[arg-type]
            tokens=change.blocks * tokens if tokens else None, residency=residency.of(change.session),
        )
        for change in changes
    ]  # fmt: skip


def standing(engine: str, residency: Residency, t_us: int) -> list[Record]:
    """Where sessions' blocks are, for somebody who has not heard of it yet."""
    changes = [
        Change(session, "gone", state, "computed", count)  # type: ignore[arg-type]
        for session in residency.sessions
        for state, count in residency.of(session).items()
        if state != "gone"
    ]
    return transitions(engine, changes, residency, t_us)
