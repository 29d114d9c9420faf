"""Claude Code's session log (JSON lines): turns with their tokens, tool calls with their ends. No prompt is kept.

A message that was streamed stands there several times with the same id, each time with one block of its content and
with the usage so far; together they are one turn. When the request was sent is not written down: a turn begins at the
time of the line it answers (``parentUuid``), which is the last moment at which it cannot have begun yet.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from tidegate_collectors.records import CallEnd, CallMatch, CallStart, Category, Record, TurnEnd, TurnStart

from ._build import MAX_ID_CHARS, SHELLS, count, exit_code, iso_micros, named_call, printable, text_of
from ._files import decoded, lines
from ._skipped import Skipped

_EXIT: Final = re.compile(r"(?:Error: )?Exit code (\d{1,3})\b")
_MAX_CALLS: Final = 1_000_000


class _Message(Struct):
    id: str | None = None
    model: str | None = None
    content: Any = None
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None


class _Line(Struct, rename="camel"):
    type: str = ""
    session_id: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    is_sidechain: bool | None = None
    is_api_error_message: bool | None = None
    timestamp: str | None = None
    cwd: str | None = None
    version: str | None = None
    message: _Message | None = None


_decoder: Final[msgspec.json.Decoder[_Line]] = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class Turn:
    """A request and its answer; ``started_us`` is estimated, see above."""

    id: str
    started_us: int
    ended_us: int
    input_tokens: int | None = None
    written_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish: str | None = None
    failed: bool = False


@dataclass(slots=True)
class ToolUse:
    """A tool call as the agent saw it; ``ended_us`` None when no result was written down."""

    id: str
    turn: str | None
    named: tuple[str, Category, str | None]
    started_us: int
    ended_us: int | None = None
    is_error: bool | None = None
    exit_code: int | None = None
    result_chars: int | None = None


@dataclass(slots=True)
class Conversation:
    """All lines of one session id."""

    id: str
    first_us: int
    last_us: int
    cwd: str = ""
    version: str = ""
    models: Counter[str] = field(default_factory=Counter)
    turns: dict[str, Turn] = field(default_factory=dict)
    uses: dict[str, ToolUse] = field(default_factory=dict)
    answered: bool = False


class Transcripts:
    """Reads one file after the other; what they say of one session comes together.

    Attributes:
        conversations: by session id, in order of their first line.
    """

    def __init__(self, skipped: Skipped) -> None:
        self.conversations: dict[str, Conversation] = {}
        self._skipped = skipped
        self._seen: dict[str, int] = {}  # time of a line by its uuid
        self._last: dict[tuple[str, bool], int] = {}

    def read(self, path: Path, place: str) -> None:
        """Take the lines of a file.

        Raises:
            NotFoundError, BadInputError: it cannot be opened.
        """
        of_no_use: Counter[str] = Counter()
        for number, raw in lines(path, place, self._skipped):
            line = decoded(_decoder, raw)
            if isinstance(line, str):
                self._skipped.add(place, number, line)
            elif line.type not in ("user", "assistant"):
                of_no_use[printable(line.type, 40) or "no type"] += 1
            else:
                self._line(line, place, number)
        for name, times in sorted(of_no_use.items()):
            self._skipped.add(place, None, f"lines of type {name} ({times}): nothing of them is shown")

    def _line(self, line: _Line, place: str, number: int) -> None:
        t_us = iso_micros(line.timestamp)
        if t_us is None:
            self._skipped.add(place, number, "has no timestamp with a time zone")
            return
        session_id = line.session_id
        if not session_id or len(session_id) > MAX_ID_CHARS or not session_id.isprintable():
            self._skipped.add(place, number, "has no sessionId")
            return
        if line.uuid:
            if line.uuid in self._seen:
                self._skipped.add(place, number, "a line that was read before (same uuid)")
                return
            self._seen[line.uuid] = t_us
        known = self.conversations.get(session_id)
        if known is None:
            known = self.conversations[session_id] = Conversation(session_id, t_us, t_us)
        known.first_us, known.last_us = min(known.first_us, t_us), max(known.last_us, t_us)
        known.cwd, known.version = known.cwd or line.cwd or "", line.version or known.version
        if line.message is not None:
            if line.type == "assistant":
                self._assistant(known, line, line.message, t_us, place, number)
            else:
                self._user(known, line.message, t_us, place, number)
        self._last[session_id, bool(line.is_sidechain)] = t_us

    def _assistant(
        self, known: Conversation, line: _Line, message: _Message, t_us: int, place: str, number: int
    ) -> None:
        turn_id = _turn_id(message, line)
        turn = known.turns.get(turn_id)
        if turn is None:
            asked_us = self._seen.get(line.parent_uuid or "", self._last.get((known.id, bool(line.is_sidechain)), t_us))
            turn = known.turns[turn_id] = Turn(turn_id, min(asked_us, t_us), t_us)
        turn.started_us, turn.ended_us = min(turn.started_us, t_us), max(turn.ended_us, t_us)
        turn.failed = turn.failed or bool(line.is_api_error_message)
        turn.finish = printable(message.stop_reason, 40) if message.stop_reason else turn.finish
        if message.usage is not None:
            self._usage(turn, message.usage)
        if message.model:
            known.models[printable(message.model, 80)] += 1
        calls = 0
        for block in message.content if isinstance(message.content, list) else ():
            if text_of(block, "type") != "tool_use":
                continue
            calls += 1
            call_id = text_of(block, "id")
            if not call_id or len(call_id) > MAX_ID_CHARS or not call_id.isprintable():
                self._skipped.add(place, number, "a tool_use without an id")
            elif call_id not in known.uses and len(known.uses) < _MAX_CALLS:
                named = named_call(text_of(block, "name"), block.get("input"))
                known.uses[call_id] = ToolUse(call_id, turn_id, named, t_us)
        if not line.is_sidechain:
            known.answered = not calls and not turn.failed

    @staticmethod
    def _usage(turn: Turn, usage: dict[str, Any]) -> None:
        turn.input_tokens = _more(turn.input_tokens, usage.get("input_tokens"))
        turn.written_tokens = _more(turn.written_tokens, usage.get("cache_creation_input_tokens"))
        turn.cached_tokens = _more(turn.cached_tokens, usage.get("cache_read_input_tokens"))
        turn.output_tokens = _more(turn.output_tokens, usage.get("output_tokens"))

    def _user(self, known: Conversation, message: _Message, t_us: int, place: str, number: int) -> None:
        known.answered = False
        for block in message.content if isinstance(message.content, list) else ():
            if text_of(block, "type") != "tool_result":
                continue
            use = known.uses.get(text_of(block, "tool_use_id"))
            if use is None:
                self._skipped.add(place, number, "a tool_result without its tool_use")
            elif use.ended_us is None:
                use.ended_us = max(t_us, use.started_us)
                flag = block.get("is_error")
                use.is_error = flag if isinstance(flag, bool) else None
                text = _result_text(block.get("content"))
                use.result_chars = len(text)
                if use.named[0] in SHELLS:
                    use.exit_code = _exit_code(use.is_error, text)


def _turn_id(message: _Message, line: _Line) -> str:
    wanted = message.id or line.uuid or line.timestamp or ""
    return printable(wanted, MAX_ID_CHARS)


def _more(known: int | None, value: object) -> int | None:
    """The later count of a message that is still streamed; it only grows."""
    found = count(value)
    return known if found is None else found if known is None else max(known, found)


def _result_text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(text_of(item, "text") for item in content) if isinstance(content, list) else ""


def _exit_code(is_error: bool | None, text: str) -> int | None:
    """The exit code where the log tells it: a shell's result that is no error was 0; an error may name its code."""
    if is_error is False:
        return 0
    found = _EXIT.match(text) if is_error else None
    return exit_code(int(found.group(1))) if found else None


def turn_records(session: str, conversation: Conversation) -> list[Record]:
    """The turns of a conversation. The cache is the provider's; where it lies is not known."""
    records: list[Record] = []
    for turn in conversation.turns.values():
        parts = (turn.input_tokens, turn.written_tokens, turn.cached_tokens)
        prompt = sum(part or 0 for part in parts) if any(part is not None for part in parts) else None
        computed = None if prompt is None else prompt - (turn.cached_tokens or 0)
        records.append(TurnStart(t=turn.started_us, session=session, turn=turn.id))
        records.append(
            TurnEnd(
                t=turn.ended_us, session=session, turn=turn.id, prompt_tokens=prompt,
                cached_device_tokens=turn.cached_tokens, recomputed_tokens=computed, output_tokens=turn.output_tokens,
                finish_reason=turn.finish, error="the request failed" if turn.failed else None,
            )
        )  # fmt: skip
    return records


def call_records(session: str, conversation: Conversation) -> list[Record]:
    """The tool calls of a conversation. One without a result has an end that was not seen."""
    records: list[Record] = []
    for use in conversation.uses.values():
        tool, category, command = use.named
        records.append(
            CallStart(
                t=use.started_us, session=session, call=use.id, turn=use.turn, tool=tool, category=category,
                command=command, boundary="import",
            )
        )  # fmt: skip
        if use.ended_us is None:
            records.append(CallEnd(t=use.started_us, session=session, call=use.id, turn=use.turn, lost=True))
            continue
        records.append(
            CallEnd(
                t=use.ended_us, session=session, call=use.id, turn=use.turn, exit_code=use.exit_code,
                duration_us=use.ended_us - use.started_us, result_chars=use.result_chars,
            )
        )  # fmt: skip
        records.append(match_record(session, use.id, use.named[0], (use.started_us, use.ended_us), use))
    return records


def match_record(
    session: str, call: str, tool: str, span_us: tuple[int, int], use: ToolUse | None, *, lag_us: int | None = None
) -> CallMatch:
    """What the agent says of its call. ``lag_us``: from the call to the shell taken for it, None without one."""
    started_us, ended_us = span_us
    if lag_us is None:
        how = "the transcript's own call; it saw no process"
    else:
        how = f"the shell that the agent started {lag_us / 1000:.1f} ms after the call"
    return CallMatch(
        t=ended_us, session=session, call=call, agent_tool=tool, agent_call_id=call, how=how,
        confidence="none" if lag_us is None else "likely", position=0 if lag_us is None else 1,
        began_us=started_us, ended_us=ended_us,
        result_chars=use.result_chars if use is not None else None,
        failed=use is not None and use.is_error is True,
    )  # fmt: skip
