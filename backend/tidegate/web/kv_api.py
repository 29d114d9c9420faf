"""The JSON API of the engine plane: a session's KV blocks and turns, decisions, and the engine's pool over time.

Charts are always of the whole run; decisions and the summary are those of the instant shown.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from tidegate.analysis.tool_calls import tool_calls
from tidegate.fold import State
from tidegate.fold.engine import Engine
from tidegate.fold.engine_views import engine_view, kv_view, turn_view
from tidegate.fold.lanes import Lanes
from tidegate.fold.limits import short_id
from tidegate.fold.model import Session
from tidegate.fold.turn import Turn, Turns, turn_of
from tidegate.store import DecisionFilter
from tidegate.web.errors import Refusal
from tidegate.web.lookup import session_at, span
from tidegate.web.responses import json_response
from tidegate.web.series import Instant, Pixels, chart_span
from tidegate.web.shown import shown_of
from tidegate.web.templates import short, visible
from tidegate_collectors.engine.decision import decide, words
from tidegate_collectors.engine.parity import compare, inputs_of
from tidegate_collectors.records import KvDecision, TurnTool

router: Final = APIRouter(prefix="/api")

MAX_DECISIONS: Final = 200
_SPAN_US: Final = 600_000_000
_TEXT: Final = Query(max_length=4096)

Name = Annotated[str | None, _TEXT]


@router.get("/sessions/{session_id}/kv")
async def one_session(
    request: Request, session_id: str, from_us: Instant = None, to_us: Instant = None, px: Pixels = 1200
) -> Response:
    """Blocks by state over time, turns, decisions and transitions of a session; by default of all its time."""
    shown = await shown_of(request)
    now, session = await session_at(shown, session_id)
    whole = span(now, session)
    begin, end = chart_span(from_us, to_us, (whole["start_us"], whole["end_us"] + 1))
    reads, run = shown.store.reads, shown.run.id
    blocks = await reads.session_blocks(run, session.id, begin, end, px)
    told = await reads.session_turns(run, session.id, begin, end)
    moved = await reads.session_transitions(run, session.id, begin, end)
    decisions, cut = await reads.session_decisions(run, session.id, begin, end)
    kv = session.inference.kv
    engine = None if kv is None else (await shown.whole()).engines.get(kv.engine)
    return json_response(
        {
            "from_us": begin,
            "to_us": end,
            "engine": None if engine is None else engine_view(engine),
            "block_tokens": None if engine is None else engine.block_tokens,
            "blocks": blocks,
            "turns": _turns([record for _, record in told.records], session),
            "decisions": decisions,
            "transitions": [
                {
                    "ord": ord_, "t_us": record.t, "from": record.from_, "to": record.to, "blocks": record.blocks,
                    "tokens": record.tokens, "cause": record.cause, "decision_seq": record.decision_seq,
                    "victim_of": record.victim_of, "until_us": record.until_us,
                }
                for ord_, record in moved.records
            ],
            "truncated": told.truncated or moved.truncated or cut,
        }
    )  # fmt: skip


def _turns(told: list[Any], session: Session) -> list[dict[str, Any]]:
    turns, tools = Turns(), []
    for record in told:
        if isinstance(record, TurnTool):
            tools.append(record)
        elif record.turn is not None or record.req is not None:
            turn_of(turns, record)
    by_turn = tool_calls(turns, tools, session.calls.values())
    return [
        turn_view(turn, lane)
        | {"tool_calls": by_turn.get(turn.id, []) + (by_turn.get(turn.other_id, []) if turn.other_id else [])}
        for turn, lane in _in_lanes(turns)
    ]


def _in_lanes(turns: Turns) -> list[tuple[Turn, int]]:
    lanes = Lanes()
    placed: list[tuple[Turn, int]] = []
    open_: list[tuple[int, int]] = []
    for turn in sorted(turns, key=_start_us):
        start_us = _start_us(turn)
        for over in [each for each in open_ if each[0] <= start_us]:
            lanes.release(over[1], over[0])
            open_.remove(over)
        lane = lanes.take(start_us)
        if turn.ended_us is not None:
            open_.append((turn.ended_us, lane))
        placed.append((turn, lane))
    return placed


def _start_us(turn: Turn) -> int:
    known = (turn.started_us, turn.first_token_us, turn.ended_us)
    return next((t_us for t_us in known if t_us is not None), 0)


@router.get("/kv/decisions")
async def decisions(
    request: Request,
    engine: Name = None,
    session: Name = None,
    action: Literal["KEEP", "PIN", "OFFLOAD", "DROP"] | None = None,
    boundary: Annotated[str | None, Query(max_length=32)] = None,
    tool: Name = None,
    enforced: bool | None = None,
    overridden: bool | None = None,
    regret_min_s: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
    before_ord: Annotated[int | None, Query(ge=0, le=1 << 53)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_DECISIONS)] = 50,
) -> Response:
    """Decisions up to the instant shown, the newest first, with what came of them."""
    shown = await shown_of(request)
    reads, run = shown.store.reads, shown.run.id
    wanted = DecisionFilter(
        engine=engine or None, session=session or None, action=action, boundary=boundary or None, tool=tool or None,
        enforced=enforced, overridden=overridden, regret_min_s=regret_min_s,
    )  # fmt: skip
    rows, next_ord = await reads.kv_decisions(
        run, wanted, before_ord=before_ord, to_ord=shown.ord, limit=limit
    )  # fmt: skip
    tools = await reads.kv_tools(run, to_ord=shown.ord)
    return json_response({"rows": rows, "next_before_ord": next_ord, "tools": tools, "playhead": shown.playhead()})


@router.get("/kv/decisions/{ord_}")
async def one_decision(request: Request, ord_: int) -> Response:
    """A decision with its inputs and costs, in words, and taken again."""
    shown = await shown_of(request)
    found = None
    if 0 < ord_ <= min(shown.ord, 1 << 53):
        found = await shown.store.reads.kv_decision(shown.run.id, ord_, to_ord=shown.ord)
    if found is None:
        raise Refusal(404, "There is no such decision up to this instant.", "Move the playhead on, or choose another.")
    row, record = found
    return json_response(
        msgspec.to_builtins(row)
        | {"inputs": record.inputs, "costs": record.costs, "predicted": record.predicted}
        | {"done_blocks": record.done_blocks}
        | {"policy": record.policy, "version": record.version}
        | _again(record)
    )


def _again(record: KvDecision) -> dict[str, Any]:
    try:
        inputs = inputs_of(record)
        decision = decide(inputs)
        parity = compare(record) is None
    except (msgspec.ValidationError, OverflowError):
        # Inputs of another version, or of an engine that tells less.
        return {"words": None, "rule_action": None, "rule_margin_s": None, "parity": None}
    return {
        "words": words(inputs, decision),
        "rule_action": decision.action,
        "rule_margin_s": decision.margin_s,
        "parity": parity,
    }


@router.get("/kv/series")
async def series(
    request: Request,
    engine: Name = None,
    from_us: Instant = None,
    to_us: Instant = None,
    px: Pixels = 1200,
) -> Response:
    """The engine's pool, batch and counters over time; by default the last ten minutes before the instant shown."""
    shown = await shown_of(request)
    chosen = _engine(await shown.whole(), engine)
    now = shown.at_us
    begin, end = chart_span(from_us, to_us, (max(shown.start_us, now - _SPAN_US), now + 1))
    if chosen is None:
        return json_response({"engine": None, "from_us": begin, "to_us": end})
    found = await shown.store.reads.engine_series(shown.run.id, chosen.engine, begin, end, px)
    head = {"engine": chosen.engine, "from_us": begin, "to_us": end}
    return json_response(head | msgspec.to_builtins(found))


@router.get("/kv/summary")
async def summary(request: Request, engine: Name = None) -> Response:
    """The engine at the instant shown: who holds its blocks, which pins it has, and where prompts' tokens came from."""
    shown = await shown_of(request)
    chosen = _engine(shown.state, engine, later=await shown.whole())
    engines = list(shown.state.engines)
    if chosen is None:
        nothing: dict[str, Any] = {"engine": None, "holders": [], "pins": [], "hits": None}
        return json_response({"engines": engines, **nothing, "playhead": shown.playhead()})
    holders = [_holder(session) for session in shown.state.sessions.values() if _holds(session, chosen)]
    holders.sort(key=lambda holder: (-holder["total_blocks"], holder["session"]))
    pins = [holder for holder in holders if holder["blocks"]["device_pinned"]]
    return json_response(
        {
            "engines": engines,
            "engine": engine_view(chosen),
            "holders": holders,
            "pins": sorted(pins, key=lambda holder: holder["pinned_until_us"] or 0),
            "hits": _hits(chosen),
            "playhead": shown.playhead(),
        }
    )


def _holds(session: Session, engine: Engine) -> bool:
    kv = session.inference.kv
    return kv is not None and kv.engine == engine.engine and any(kv.blocks.values())


def _holder(session: Session) -> dict[str, Any]:
    view = kv_view(session.inference.kv) or {}
    return {"session": session.id, "title": session.title, **view}


def _hits(engine: Engine) -> dict[str, Any] | None:
    sample = engine.sample
    if sample is None:
        return None
    device, host, queries = sample.prefix_hits_tokens, sample.external_hits_tokens, sample.prefix_queries_tokens
    missed = None if queries is None or device is None else max(0, queries - device - (host or 0))
    return {
        "queries_tokens": queries,
        "device_tokens": device,
        "host_tokens": host,
        "missed_tokens": missed,
        "recomputed_tokens": sample.recomputed_tokens,
    }


def _engine(state: State, name: str | None, *, later: State | None = None) -> Engine | None:
    """The engine of that name, by default the one that spoke last; None when there is none yet."""
    if not name:
        return max(state.engines.values(), key=lambda engine: engine.last_t_us, default=None)
    key = short_id(name)
    found = state.engines.get(key)
    if found is None and (later is None or key not in later.engines):
        known = ", ".join(f"“{visible(short(each))}”" for each in (later or state).engines) or "none at all"
        raise Refusal(404, f"This run has no engine “{visible(short(name))}”.", f"It has: {known}.")
    return found
