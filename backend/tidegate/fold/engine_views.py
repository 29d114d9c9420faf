"""Engines, KV blocks and turns -> what the browser gets. Every key is always there, an unknown value is null.

Times are microseconds UTC, durations of tools seconds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate_collectors.records import EngineSample, KvCalibration, Record

from .engine import Engine, Inference, Kv, Tool
from .engines import KV_STATES
from .model import Session
from .turn import Turn

_ENVELOPE = frozenset(Record.__struct_fields__) | {"engine"}
_SAMPLE = tuple(name for name in EngineSample.__struct_fields__ if name not in _ENVELOPE)
_CALIBRATION = tuple(name for name in KvCalibration.__struct_fields__ if name not in _ENVELOPE)
ACTIONS = ("KEEP", "PIN", "OFFLOAD", "DROP")


def engine_view(engine: Engine) -> dict[str, Any]:
    """An engine as it stands."""
    plain = {
        name: getattr(engine, name)
        for name in (
            "engine", "name", "version", "host", "src", "plugin", "model", "modelled", "mode", "mode_reason", "rule",
            "params", "max_tokens", "block_tokens", "pool_blocks", "kv_bytes_per_token", "host_tier_bytes",
            "started_us", "ended_us", "lost", "last_t_us",
        )
    }  # fmt: skip
    return plain | {
        "sample": _fields(engine.sample, _SAMPLE),
        "calibration": _fields(engine.calibration, _CALIBRATION),
        "tools": [_tool_view(name, tool) for name, tool in sorted(engine.tools.items())],
        "decisions": {
            "total": engine.decisions.total, "enforced": engine.decisions.enforced,
            "overridden": engine.decisions.overridden,
            "by_action": {action: engine.decisions.by_action.get(action, 0) for action in ACTIONS},
        },
        "matrix": _matrix(engine),
        "transfers": msgspec.structs.asdict(engine.transfers),
        "outcomes": msgspec.structs.asdict(engine.outcomes),
    }  # fmt: skip


def engine_views(engines: dict[str, Engine]) -> list[dict[str, Any]]:
    """All engines, in order of their first record."""
    return [engine_view(engine) for engine in engines.values()]


def kv_view(kv: Kv | None) -> dict[str, Any] | None:
    """Where a session's blocks are, and what was decided of them last; null when no engine spoke of it."""
    if kv is None:
        return None
    last, outcome = kv.last, kv.outcome
    return {
        "engine": kv.engine,
        "t_us": kv.t_us if kv.t_us >= 0 else None,
        "state": kv.main_state(),
        "since_us": kv.since_us,
        "blocks": {state: kv.blocks.get(state, 0) for state in KV_STATES},
        "total_blocks": kv.held(),
        "shared_blocks": kv.shared_blocks,
        "pinned_until_us": kv.pinned_until_us,
        "last": None if last is None else msgspec.structs.asdict(last),
        "outcome": None if outcome is None else msgspec.structs.asdict(outcome),
    }


def turns_view(inference: Inference) -> dict[str, Any]:
    """Sums over a session's turns."""
    sums = msgspec.structs.asdict(inference.totals)
    del sums["engine"], sums["gateway"]
    return sums | {"running": sum(turn.ended_us is None for turn in inference.turns), "ttft_us": inference.ttft_us}


def current_turn(inference: Inference) -> dict[str, Any] | None:
    """The running turn that began last. ``phase``: prompt, until its first token; decode from there."""
    running = [turn for turn in inference.turns if turn.ended_us is None]
    if not running:
        return None
    turn = max(running, key=lambda turn: turn.started_us or 0)
    return {
        "turn": turn.id,
        "phase": "prompt" if turn.first_token_us is None else "decode",
        "started_us": turn.started_us,
    }


def planes(session: Session) -> list[str]:
    """Who has spoken of a session."""
    inference = session.inference
    found = {
        "kernel": session.announced or session.calls_total > 0 or session.runtime_sampled,
        "engine": inference.kv is not None or inference.totals.engine > 0,
        "gateway": inference.totals.gateway > 0,
    }
    return [plane for plane, there in found.items() if there]


def turn_view(turn: Turn, lane: int) -> dict[str, Any]:
    """A turn with all that is known of it, but the tools that it ran."""
    names = (
        "started_us", "first_token_us", "ended_us", "ttft_us", "queue_us", "prefill_us", "decode_us", "prompt_tokens",
        "cached_tokens", "cached_device_tokens", "cached_host_tokens", "recomputed_tokens", "output_tokens",
        "stable_prefix_tokens", "preemptions", "finish_reason", "http_status", "error", "tools", "model", "api",
        "session_from", "messages",
    )  # fmt: skip
    return {"turn": turn.id, "lane": lane, "state": "running" if turn.ended_us is None else "ended"} | {
        "by": [name for name, there in (("gateway", turn.gateway), ("engine", turn.engine)) if there],
        "failed": turn.failed,
        **{name: getattr(turn, name) for name in names},
    }


def _fields(record: Record | None, names: tuple[str, ...]) -> dict[str, Any] | None:
    return None if record is None else {"t_us": record.t} | {name: getattr(record, name) for name in names}


def _matrix(engine: Engine) -> list[dict[str, Any]]:
    rows = []
    for key, (transitions, blocks) in engine.matrix.items():
        from_, to, cause = key.split(" ")
        rows.append({"from": from_, "to": to, "cause": cause, "n": transitions, "blocks": blocks})
    order = {state: place for place, state in enumerate(KV_STATES)}
    return sorted(rows, key=lambda row: (order[row["from"]], order[row["to"]], row["cause"]))


def _tool_view(name: str, tool: Tool) -> dict[str, Any]:
    gaps = sorted(tool.gaps_us)
    return {
        "tool": name,
        "n": tool.n,
        "predicted_p50_s": tool.p50_s,
        "predicted_p90_s": tool.p90_s,
        "source": tool.source,
        "actual_p50_s": _quantile(gaps, 0.5),
        "actual_p90_s": _quantile(gaps, 0.9),
        "within_p90": tool.within / tool.expected if tool.expected else None,
    }


def _quantile(ordered_us: list[int], share: float) -> float | None:
    """Nearest rank, in seconds."""
    if not ordered_us:
        return None
    return ordered_us[min(len(ordered_us) - 1, int(share * len(ordered_us)))] / 1e6
