"""Which calls of the kernel plane are the tools that a turn's answer asked for. Pure.

Where the agent's hooks gave a call the id that the answer gave the tool, they are the same (exact). Elsewhere times
speak: a call that starts between the answer and the request that brings its result, and in no other tool's time, is
likely that tool. What several tools could have started is nobody's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct

from tidegate.fold.model import Call
from tidegate.fold.turn import Turn
from tidegate_collectors.records import TurnTool

SLACK_US: Final = 20_000
"""An agent that reads a stream may start a tool before the gateway has seen the end of the answer."""
MOST: Final = 64
"""Calls that are named for one tool."""


class ToolCall(Struct, frozen=True, kw_only=True):
    """A tool that an answer asked for. ``calls``: ids of its calls, by start; ``calls_total`` counts all of them."""

    agent_call_id: str
    agent_tool: str
    began_us: int
    ended_us: int | None
    failed: bool
    result_chars: int | None
    calls: list[str]
    calls_total: int
    confidence: Literal["exact", "likely"] | None
    how: str


class _Asked(Struct):
    turn: str
    record: TurnTool | None
    tool: str
    began_us: int
    ended_us: int | None


def tool_calls(turns: Iterable[Turn], told: Iterable[TurnTool], calls: Iterable[Call]) -> dict[str, list[ToolCall]]:
    """The tools of each turn, by the turn's id.

    Args:
        turns: of one session.
        told: what the gateway said of tools, in order; the last word on each counts.
        calls: of the session.
    """
    asked = _asked(sorted(turns, key=lambda turn: turn.started_us or 0), told)
    started = sorted((call for call in calls if call.started_us is not None), key=lambda call: call.started_us or 0)
    exact: dict[str, list[Call]] = {}
    for call in started:
        if call.agent_call_id:
            exact.setdefault(call.agent_call_id, []).append(call)
    by_time = _by_time([tool for tool in asked if not _exactly(tool, exact)], started, exact)
    found: dict[str, list[ToolCall]] = {}
    for tool in asked:
        mine = _exactly(tool, exact)
        how = "the agent's id of the tool call" if mine else ""
        if not mine:
            mine, how = by_time.get(id(tool), ([], ""))
        record = tool.record
        found.setdefault(tool.turn, []).append(
            ToolCall(
                agent_call_id="" if record is None else record.agent_call_id, agent_tool=tool.tool,
                began_us=tool.began_us, ended_us=tool.ended_us, failed=record is not None and record.failed,
                result_chars=None if record is None else record.result_chars,
                calls=[call.id for call in mine[:MOST]], calls_total=len(mine),
                confidence=None if not mine else "exact" if _exactly(tool, exact) else "likely", how=how,
            )
        )  # fmt: skip
    return found


def _asked(turns: Sequence[Turn], told: Iterable[TurnTool]) -> list[_Asked]:
    asked: dict[tuple[str, str], _Asked] = {}
    for record in told:
        key = (record.turn or "", record.agent_call_id)
        known = asked.get(key)
        tool = record.agent_tool or ("" if known is None else known.tool)
        asked[key] = _Asked(key[0], record, tool, record.began_us, record.ended_us)
    names = {turn for turn, _ in asked}
    for place, turn in enumerate(turns):
        # Without a gateway the engine alone says that a tool was asked for; the next turn brings its result.
        if turn.id in names or turn.other_id in names or not turn.tools or turn.ended_us is None:
            continue
        until = turns[place + 1].started_us if place + 1 < len(turns) else None
        for number, tool in enumerate(turn.tools):
            asked[turn.id, str(number)] = _Asked(turn.id, None, tool, turn.ended_us, until)
    return list(asked.values())


def _exactly(tool: _Asked, exact: dict[str, list[Call]]) -> list[Call]:
    return [] if tool.record is None else exact.get(tool.record.agent_call_id, [])


def _by_time(
    asked: Sequence[_Asked], started: Sequence[Call], exact: dict[str, list[Call]]
) -> dict[int, tuple[list[Call], str]]:
    taken = {call.id for calls in exact.values() for call in calls} if asked else set()
    times = [call.started_us or 0 for call in started]
    claims: dict[str, list[_Asked]] = {}
    spans: dict[int, list[Call]] = {}
    for tool in asked:
        first = bisect_left(times, tool.began_us - SLACK_US)
        end = len(times) if tool.ended_us is None else bisect_left(times, tool.ended_us)
        spans[id(tool)] = within = [call for call in started[first:end] if call.id not in taken]
        for call in within:
            claims.setdefault(call.id, []).append(tool)
    found: dict[int, tuple[list[Call], str]] = {}
    for tool in asked:
        within = spans[id(tool)]
        alone = [call for call in within if len(claims[call.id]) == 1]
        named = [call for call in within if len(claims[call.id]) > 1 and _only_by_name(call, tool, claims[call.id])]
        if alone:
            found[id(tool)] = (alone, "it started while this tool alone was asked for")
        elif named:
            found[id(tool)] = (named, "several tools ran at that time; this one has the call's name")
    return found


def _only_by_name(call: Call, tool: _Asked, claims: Sequence[_Asked]) -> bool:
    names = {call.tool, call.agent_tool} - {"", None}
    return tool.tool in names and sum(other.tool in names for other in claims) == 1
