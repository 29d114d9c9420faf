"""Records of turns and of the tools that answers ask for.

Whatever goes wrong in here is counted and ends here: the passing of bytes must not know of it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal, ParamSpec

from tidegate_collectors.names import is_safe_id
from tidegate_collectors.records import Record, TurnEnd, TurnFirstToken, TurnStart, TurnTool

from .answers import MAX_TOOLS
from .apis import Api
from .asked import Asked, read, safe_id
from .sessions import Conversation, SessionTable
from .tap import Tap

MAX_WAITING: Final = 8192
"""Tool calls without their result that are remembered."""

SESSION_HEADERS: Final = ("x-session-id", "x-claude-code-session-id", "session_id", "session-id", "conversation_id")
"""Headers by which agents name a conversation; the first one is vLLM's own."""

SessionFrom = Literal["launcher", "header", "body", "prefix"]

_P = ParamSpec("_P")

log = logging.getLogger("tidegate.gateway")


def now_us() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class Counts:
    """What happened since the start."""

    turns: int = 0
    answered: int = 0
    failed: int = 0
    cut: int = 0
    left: int = 0
    passed: int = 0
    unread_requests: int = 0
    unread_answers: int = 0
    faults: int = 0

    def to_json(self) -> dict[str, int]:
        """By name."""
        return asdict(self)


class Teller:
    """Says what turns there are. ``send`` takes records and never waits."""

    def __init__(self, send: Callable[[Record], None]) -> None:
        self._send = send
        self._sessions = SessionTable()
        self._waiting: OrderedDict[tuple[str, str], TurnTool] = OrderedDict()
        self.counts = Counts()

    def asked(
        self, api: Api, headers: Mapping[str, str], launcher: str | None, body: bytes, arrived_us: int
    ) -> Watch | None:
        """A request came, whole; what follows of it. None where it cannot be followed.

        Args:
            api: which API it calls.
            headers: its headers, by any case.
            launcher: session id in its path.
            body: its body.
            arrived_us: when its first bytes came.
        """
        try:
            return self._asked(api, headers, launcher, body, arrived_us)
        except Exception as error:
            self.fault(error)
            return None

    def fault(self, error: Exception) -> None:
        """Something of ours went wrong. Its text is not told: it may quote what passes."""
        self.counts.faults += 1
        if self.counts.faults == 1:
            log.error("a defect (%s); requests go on, records of them may be missing", type(error).__name__)

    def send(self, record: Record) -> None:
        """Pass a record to the link."""
        self._send(record)

    def waits_for(self, session: str, tool: TurnTool) -> None:
        """An answer asks for a tool: its result will come with a request of that session."""
        self._waiting[session, tool.agent_call_id] = tool
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)

    def closed(self, conversation: Conversation, tool_ids: list[str], answer_id: str | None) -> None:
        """A turn of a conversation without a name has ended."""
        self._sessions.closed(conversation, tool_ids, answer_id)

    def _asked(
        self, api: Api, headers: Mapping[str, str], launcher: str | None, body: bytes, arrived_us: int
    ) -> Watch | None:
        try:
            asked: Asked | None = read(api, body)
        except ValueError:
            asked = None
            self.counts.unread_requests += 1
        session, how = _named(asked, headers, launcher)
        conversation = None
        if session is None and asked is not None:
            credential = f"{headers.get('authorization', '')}\n{headers.get('x-api-key', '')}"
            conversation = self._sessions.find(asked, credential.encode("utf-8", "replace"), api)
            session, how = conversation.id, "prefix"
        if session is None or not is_safe_id(session):
            return None
        asked = asked or Asked()
        self._results(session, asked, arrived_us)
        watch = Watch(self, api, session, conversation, arrived_us)
        self.counts.turns += 1
        start = TurnStart(
            t=arrived_us, session=session, turn=watch.turn, by="gateway", messages=asked.messages, model=asked.model,
            api=api, session_from=how,
        )  # fmt: skip
        self._send(start)
        return watch

    def _results(self, session: str, asked: Asked, now: int) -> None:
        for result in asked.results:
            tool = self._waiting.pop((session, result.id), None)
            if tool is None:  # of an earlier turn: histories are sent again and again
                continue
            ended = TurnTool(
                t=now, session=session, turn=tool.turn, agent_call_id=tool.agent_call_id, agent_tool=tool.agent_tool,
                began_us=tool.began_us, ended_us=max(now, tool.began_us), result_chars=result.chars,
                failed=result.failed,
            )  # fmt: skip
            self._send(ended)


class Watch:
    """One turn, from its request to the end of its answer.

    Attributes:
        session: its session.
        turn: its id, which the engine gets as ``X-Request-Id``.
    """

    def __init__(
        self, teller: Teller, api: Api, session: str, conversation: Conversation | None, arrived_us: int
    ) -> None:
        self.session = session
        self.turn = f"tg-{secrets.token_hex(8)}"
        self._teller = teller
        self._api: Api = api
        self._conversation = conversation
        self._arrived_us = arrived_us
        self._arrived_s = time.monotonic()
        self._tap: Tap | None = None
        self._status = 0
        self._first_told = False
        self._ended = False

    def answering(self, status: int, content_type: str, encoding: str) -> None:
        """The head of the answer came."""
        self._status = status
        self._guard(self._answering, status, content_type, encoding)

    def chunk(self, data: bytes) -> None:
        """Bytes of the answer came."""
        if self._tap is not None:
            self._guard(self._chunk, self._tap, data)

    def complete(self) -> None:
        """The answer came to its end."""
        self._guard(self._end, None, "")

    def cut(self, error: str) -> None:
        """The answer broke off."""
        self._guard(self._end, "cut", error)

    def abort(self) -> None:
        """The client went; one that has the whole answer may close before its end has come."""
        if self._tap is not None and self._tap.answer.complete:
            self.complete()
        else:
            self._guard(self._end, "abort", "the client closed the connection")

    def refused(self, status: int, error: str) -> None:
        """There was no answer: the agent got an error of ours with this status."""
        self._status = status
        self._guard(self._end, "error", error)

    def _guard(self, call: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:
            self._tap = None
            self._teller.fault(error)

    def _answering(self, status: int, content_type: str, encoding: str) -> None:
        self._tap = Tap(self._api, status, content_type, encoding)

    def _chunk(self, tap: Tap, data: bytes) -> None:
        tap.feed(data)
        if tap.answer.spoken and tap.streamed and not self._first_told:
            self._first_told = True
            ttft_us = max(0, round((time.monotonic() - self._arrived_s) * 1e6))
            self._teller.send(
                TurnFirstToken(
                    t=self._arrived_us + ttft_us, session=self.session, turn=self.turn, by="gateway", ttft_us=ttft_us
                )
            )

    def _end(self, finish: str | None, error: str) -> None:
        if self._ended:
            return
        self._ended = True
        # Not the clock: a turn must not end before it began when the clock is set.
        now = self._arrived_us + max(0, round((time.monotonic() - self._arrived_s) * 1e6))
        end = TurnEnd(
            t=now, session=self.session, turn=self.turn, by="gateway", http_status=self._status,
            finish_reason=finish, error=error or None,
        )  # fmt: skip
        asks: list[TurnTool] = []
        tap, self._tap = self._tap, None
        try:
            if tap is not None:
                self._read(end, tap, asks)
        finally:  # an answer that cannot be read is an end all the same
            self._count(end.finish_reason)
            self._teller.send(end)
            if self._conversation is not None:
                ids = [tool.agent_call_id for tool in asks]
                self._teller.closed(self._conversation, ids, tap.answer.id if tap is not None else None)
        for tool in asks:
            self._teller.waits_for(self.session, tool)
            self._teller.send(tool)

    def _read(self, end: TurnEnd, tap: Tap, asks: list[TurnTool]) -> None:
        tap.end(whole=end.finish_reason is None)
        answer = tap.answer
        self._teller.counts.unread_answers += bool(tap.unread or not tap.readable)
        end.prompt_tokens, end.cached_tokens = answer.prompt_tokens, answer.cached_tokens
        end.output_tokens = answer.output_tokens
        end.req = engine_name(self._api, answer.id)
        if end.finish_reason is None:
            end.finish_reason, end.error = answer.finish, answer.error
            if answer.finish is None and tap.streamed and tap.readable and not answer.complete and not tap.unread:
                end.finish_reason, end.error = "cut", "the stream ended before the answer did"
        tools = answer.tools
        end.tools = [tool.name for tool in tools]
        if end.finish_reason in ("cut", "abort", "error", "overflow_400"):
            return  # no agent runs a tool of which it has half
        for number, tool in enumerate(tools[:MAX_TOOLS]):
            began = TurnTool(
                t=end.t, session=self.session, turn=self.turn, agent_call_id=tool.id or f"{self.turn}-{number}",
                agent_tool=tool.name, began_us=end.t,
            )  # fmt: skip
            asks.append(began)

    def _count(self, finish: str | None) -> None:
        counts = self._teller.counts
        if finish == "abort":
            counts.left += 1
        elif finish == "cut":
            counts.cut += 1
        elif finish in ("error", "overflow_400"):
            counts.failed += 1
        else:
            counts.answered += 1


def _named(asked: Asked | None, headers: Mapping[str, str], launcher: str | None) -> tuple[str | None, SessionFrom]:
    """The session id that somebody gave, and how. vLLM takes the body's before the header's, so do we."""
    if launcher is not None:
        return launcher, "launcher"
    if asked is not None and asked.session is not None:
        return asked.session, "body"
    if header := next((value for name in SESSION_HEADERS if (value := headers.get(name, "").strip())), None):
        return safe_id(header), "header"
    if asked is not None and asked.hint is not None:
        return asked.hint, "body"
    return None, "prefix"


def engine_name(api: Api, answer_id: str | None) -> str | None:
    """What vLLM's engine calls a turn of ``/v1/responses``, for which it takes no name of ours.

    Inside it, the answer's id has a number, from 0, for each time that the model is asked; the plugin tells it without
    its prefix. None for the other APIs, where the turn's id is the same.
    """
    if api != "openai.responses" or not answer_id or not answer_id.startswith("resp_"):
        return None
    return f"{answer_id.removeprefix('resp_')}_0"
