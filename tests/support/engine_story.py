"""A made-up run of both planes: three agents, an engine with the plugin and one that is watched from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from tests.support.backend import T0_US, write_recording
from tidegate_collectors.engine.decision import Inputs, PinOption, decide, told_costs
from tidegate_collectors.records import (
    CallEnd,
    CallStart,
    EngineSample,
    EngineStart,
    KvCalibration,
    KvDecision,
    KvOutcome,
    KvTransfer,
    KvTransition,
    MemSample,
    Record,
    RunMeta,
    SessionEnd,
    SessionStart,
    TurnEnd,
    TurnFirstToken,
    TurnStart,
    TurnTool,
)

MB: Final = 1_000_000
ENGINE: Final = "gpu-1"
STOCK: Final = "</script><img src=x onerror=alert(1)>"
"""The second engine's name, which somebody chose to do harm."""
HOSTILE_TOOL: Final = '"><svg onload=alert(2)>\u202e'
SESSION: Final = "agent/one"
TURNS: Final = 6
TURN_S: Final = 6.0


def t(seconds: float) -> int:
    """Microseconds UTC."""
    return T0_US + round(seconds * 1e6)


def _moved(seconds: float, session: str, from_: str, to: str, blocks: int, cause: str, **more: Any) -> KvTransition:
    fields: dict[str, Any] = {"from_": from_, "to": to, "cause": cause, **more}
    residency = {} if to == "gone" else {to: blocks}
    return KvTransition(
        t=t(seconds), session=session, engine=ENGINE, blocks=blocks, tokens=16 * blocks, residency=residency, **fields
    )


def _decided(seconds: float, session: str, tool: str, blocks: int, number: int, *, enforced: bool) -> KvDecision:
    inputs = Inputs(
        rule="four-state", boundary="call", can_offload=True, reusable_tokens=16 * blocks, unsaved_tokens=16 * blocks,
        p_return=0.95, p_evict=(0.05, 0.9, 0.6)[number % 3], p_host=0.98, rebuild_s=0.002 * blocks, restore_s=0.01,
        save_s=0.002, pins=[PinOption(2.0, 0.2, 0.001 + 0.05 * (number % 3)), PinOption(8.0, 0.01, 0.2)], tool=tool,
        tool_samples=number, gap_source="tool",
    )  # fmt: skip
    decision = decide(inputs)
    return KvDecision(
        t=t(seconds), session=session, turn=f"{session}-{number}", engine=ENGINE, boundary="call",
        action=decision.action, enforced=enforced, blocks=blocks, tool=tool, inputs=msgspec.to_builtins(inputs),
        costs=told_costs(inputs, decision.costs), margin_s=decision.margin_s, ttl_s=decision.ttl_s, rule="four-state",
        predicted={"p50_s": 1.0, "p90_s": 3.0, "n": number, "source": "tool"},
    )  # fmt: skip


def _turn(session: str, number: int, begin: float, found: int) -> list[Record]:
    name, prompt = f"{session}-{number}", 160 * (number + 1)
    again = max(0, 160 * number - found)
    return [
        TurnStart(t=t(begin), session=session, turn=name, prompt_tokens=prompt),
        TurnFirstToken(t=t(begin + 0.5), session=session, turn=name, ttft_us=500_000),
        TurnEnd(
            t=t(begin + 1), session=session, turn=name, prompt_tokens=prompt, cached_tokens=found,
            cached_device_tokens=found, cached_host_tokens=0, recomputed_tokens=again, output_tokens=40,
            queue_us=100_000, prefill_us=400_000, decode_us=500_000, finish_reason="tool_calls", tools=["pytest"],
        ),
    ]  # fmt: skip


def _call(session: str, number: int, begin: float, seconds: float) -> list[Record]:
    call = f"c{number + 1}"
    ticks = range(round(seconds * 10))
    return [
        CallStart(t=t(begin), session=session, call=call, tool="pytest", category="tests", command="pytest -q"),
        *(
            MemSample(
                t=t(begin + tick / 10), session=session, call=call, subject="call", anon_bytes=(10 + 20 * tick) * MB
            )
            for tick in ticks
        ),
        CallEnd(t=t(begin + seconds), session=session, call=call, exit_code=0, duration_us=round(seconds * 1e6)),
    ]


def _session(session: str, offset: float, decisions: dict[str, list[KvDecision]], *, enforced: bool) -> list[Record]:
    out: list[Record] = [SessionStart(t=t(offset), session=session, agent="demo", title=f"title of {session}")]
    held, where = 0, "device_cached"
    for number in range(TURNS):
        begin = offset + number * TURN_S + 0.2
        blocks = 10 * (number + 1)
        where = "device_cached" if number == 0 else where
        if number:
            out.append(
                _moved(begin, session, where, "device_active", held, "restored" if where == "host" else "admitted")
            )
        out += _turn(session, number, begin, 16 * held)
        out.append(_moved(begin + 0.4, session, "gone", "device_active", blocks - held, "computed"))
        out[-1].residency = {"device_active": blocks}  # type: ignore[attr-defined]
        out.append(_moved(begin + 1, session, "device_active", "device_cached", blocks, "finished"))
        tool = HOSTILE_TOOL if number == 1 else "pytest"
        decision = _decided(begin + 1.01, session, tool, blocks, number, enforced=enforced)
        decisions.setdefault(session, []).append(decision)
        out.append(decision)
        where, held = "device_cached", blocks
        if enforced and decision.action == "PIN":
            where = "device_pinned"
            out.append(_moved(begin + 1.02, session, "device_cached", where, blocks, "decision", until_us=t(begin + 9)))
        elif enforced and decision.action == "OFFLOAD":
            where = "host"
            out.append(_moved(begin + 1.1, session, "device_cached", where, blocks, "decision"))
            out.append(
                KvTransfer(t=t(begin + 1.1), session=session, engine=ENGINE, direction="out", bytes=8192 * blocks)
            )
        elif number % 2:
            where, held = "device_cached", blocks // 2
            out.append(
                _moved(begin + 2, session, "device_cached", "gone", blocks - held, "lru", victim_of="somebody else")
            )
            out[-1].residency = {"device_cached": held, "gone": blocks - held}  # type: ignore[attr-defined]
        name = f"{session}-{number}"
        told: dict[str, Any] = {"session": session, "turn": name, "agent_call_id": f"x{number}", "agent_tool": "Bash"}
        out.append(TurnTool(t=t(begin + 1), began_us=t(begin + 1), **told))
        out += _call(session, number, begin + 1.2, 3.0)
        out.append(TurnTool(t=t(begin + 5.9), began_us=t(begin + 1), ended_us=t(begin + 5.9), **told))
    out.append(SessionEnd(t=t(offset + TURNS * TURN_S), session=session, exit_code=0))
    return out


def _outcomes(decisions: dict[str, list[KvDecision]]) -> list[Record]:
    return [
        KvOutcome(
            t=decision.t + 5_000_000, session=session, turn=f"{session}-{number + 1}", engine=ENGINE,
            decision_seq=decision.seq, action=decision.action, gap_us=4_990_000, evicted=number % 2 == 1,
            served_from="recompute" if number % 2 else "device", cached_device_tokens=160 * number,
            recomputed_tokens=80 * (number % 2), retrieval_us=20_000, hindsight_best="PIN",
            regret_s=0.02 * (number % 2),
        )
        for session, some in decisions.items()
        for number, decision in enumerate(some[:-1])
    ]  # fmt: skip


def _engines(length_s: int) -> list[Record]:
    out: list[Record] = [
        RunMeta(t=t(0), run="20261201-1200-en9e", title="a story of both planes", source="recorded"),
        EngineStart(
            t=t(0), engine=ENGINE, version="0.32.0", plugin=True, pid=7, model="tiny", block_tokens=16,
            pool_blocks=200, kv_bytes_per_token=512, host_tier_bytes=64 * MB, mode="enforce", rule="four-state",
            params={"pin_cap": 0.5},
        ),
        EngineStart(t=t(0), engine=STOCK, version="0.30.0", plugin=False, model="other", pool_blocks=100),
        KvCalibration(
            t=t(5), engine=ENGINE, rebuild={"a0_s": 0.002, "a1_s": 0.0001, "a2_s": 0.0, "r2": 0.99, "n": 8.0},
            restore={"t0_s": 0.004, "bytes_per_s": 4e7, "r2": 0.97, "n": 4.0}, breakeven_tokens=23.0,
            samples={
                "rebuild": [[100.0 * n, 0.002 + 0.0101 * n] for n in range(1, 9)],
                "restore": [[51_200.0 * n, 0.004 + 0.0013 * n] for n in range(1, 5)],
            },
            kv_bytes_per_token=512,
        ),
    ]  # fmt: skip
    for second in range(length_s):
        active, pinned, cached = 20 + second % 7 * 5, 30 + second, 60
        out.append(
            EngineSample(
                t=t(second),
                engine=ENGINE,
                running=1 + second % 3,
                waiting=second % 2,
                waiting_by_reason={"capacity": second % 2},
                blocks_total=200,
                blocks_active=active,
                blocks_pinned=pinned,
                blocks_cached=cached,
                blocks_free=200 - active - pinned - cached,
                sessions=3,
                prefix_queries_tokens=1000 * second,
                prefix_hits_tokens=600 * second,
                external_hits_tokens=100 * second,
                recomputed_tokens=40 * second,
                preemptions=second // 10,
                steps=100 * second,
                own_us=900 * second,
            )
        )
        out.append(
            EngineSample(
                t=t(second),
                engine=STOCK,
                running=1,
                blocks_total=100,
                blocks_used=40 + second % 5,
                missing=["vllm:prompt_tokens_by_source_total"],
            )
        )
    return out


def engine_story(path: Path) -> Path:
    """Write the recording."""
    decisions: dict[str, list[KvDecision]] = {}
    records = _engines(round(TURNS * TURN_S) + 6)
    for place, (session, enforced) in enumerate(((SESSION, True), ("agent-2", True), ("agent-3", False))):
        records += _session(session, 1.0 + place, decisions, enforced=enforced)
    records.sort(key=lambda record: record.t)
    # An outcome names its decision by the seq that the recording gives it.
    for seq, record in enumerate(records):
        record.seq = seq
    outcomes = _outcomes(decisions)
    merged = sorted([*records, *outcomes], key=lambda record: record.t)
    places = {id(record): seq for seq, record in enumerate(merged)}
    for outcome, decision in zip(
        outcomes, [one for some in decisions.values() for one in some[:-1]], strict=True
    ):  # fmt: skip
        outcome.decision_seq = places[id(decision)]  # type: ignore[attr-defined]
    return write_recording(path, merged, src="engine-test")
