"""One turn, out of what the gateway and the engine say of it.

Both may have seen the same turn. The gateway knows what the agent got (times, status, finish, tools), the engine where
the tokens of the prompt came from and how long each phase took; where both speak of one figure, the one that is nearer
to it counts, whichever came first. Pure, and used by the fold (sums, the newest turns) and by the API (all turns).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from msgspec import Struct, field

from tidegate_collectors.records import TurnEnd, TurnFirstToken, TurnStart

from .limits import cut, cut_or_none, short_id

AnyTurnRecord: TypeAlias = TurnStart | TurnFirstToken | TurnEnd

_FROM_ENGINE: Final = (
    "prompt_tokens", "cached_tokens", "cached_device_tokens", "cached_host_tokens", "recomputed_tokens",
    "output_tokens", "stable_prefix_tokens", "queue_us", "prefill_us", "decode_us", "preemptions",
)  # fmt: skip
_MAX_TOOLS: Final = 32
FAILED: Final = frozenset({"error", "overflow_400", "cut"})
"""Finish reasons of a turn that went wrong."""


class Turn(Struct, array_like=True):
    """A turn. ``engine`` and ``gateway``: who has spoken of it. ``other_id`` is what the other one calls it."""

    id: str
    other_id: str | None = None
    engine: bool = False
    gateway: bool = False
    started_us: int | None = None
    first_token_us: int | None = None
    ended_us: int | None = None
    ttft_us: int | None = None
    ttft_by_gateway: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_device_tokens: int | None = None
    cached_host_tokens: int | None = None
    recomputed_tokens: int | None = None
    output_tokens: int | None = None
    stable_prefix_tokens: int | None = None
    queue_us: int | None = None
    prefill_us: int | None = None
    decode_us: int | None = None
    preemptions: int | None = None
    finish_reason: str | None = None
    finish_by_gateway: bool = False
    http_status: int | None = None
    error: str | None = None
    tools: list[str] = field(default_factory=list)
    model: str | None = None
    api: str | None = None
    session_from: str | None = None
    messages: int | None = None

    @property
    def failed(self) -> bool:
        """Whether the agent got no whole answer, as far as anybody saw."""
        return (self.http_status or 0) >= 400 or self.finish_reason in FAILED

    def take(self, record: AnyTurnRecord) -> None:
        """What a record says of it."""
        gateway = record.by == "gateway"
        self.gateway = self.gateway or gateway
        self.engine = self.engine or not gateway
        match record:
            case TurnStart():
                self._start(record)
            case TurnFirstToken():
                self._first_token(record, gateway)
            case TurnEnd():
                self._end(record, gateway)

    def _start(self, record: TurnStart) -> None:
        # The agent's turn begins where it was seen first.
        self.started_us = record.t if self.started_us is None else min(self.started_us, record.t)
        if record.prompt_tokens is not None and (self.prompt_tokens is None or record.by != "gateway"):
            self.prompt_tokens = record.prompt_tokens
        self.messages = record.messages if record.messages is not None else self.messages
        self.model = cut_or_none(record.model) or self.model
        self.api = cut_or_none(record.api) or self.api
        self.session_from = record.session_from or self.session_from

    def _first_token(self, record: TurnFirstToken, gateway: bool) -> None:
        if self.ttft_us is None or gateway or not self.ttft_by_gateway:
            self.ttft_us, self.ttft_by_gateway = record.ttft_us, gateway
            self.first_token_us = record.t

    def _end(self, record: TurnEnd, gateway: bool) -> None:
        if gateway or self.ended_us is None or not self.finish_by_gateway:
            self.ended_us = record.t
        for name in _FROM_ENGINE:
            value = getattr(record, name)
            if value is not None and (getattr(self, name) is None or not gateway):
                setattr(self, name, value)
        if record.finish_reason is not None and (gateway or not self.finish_by_gateway):
            self.finish_reason, self.finish_by_gateway = cut(record.finish_reason), gateway
        elif gateway:
            self.finish_by_gateway = True
        self.http_status = record.http_status if record.http_status is not None else self.http_status
        self.error = cut_or_none(record.error) or self.error
        if record.tools and (gateway or not self.tools):
            self.tools = [cut(tool) for tool in record.tools[:_MAX_TOOLS]]

    def merge(self, other: Turn) -> None:
        """Become one with what the other witness calls by another name; ``other`` is forgotten by the caller."""
        engine, gateway = (self, other) if other.gateway else (other, self)
        for name in _FROM_ENGINE:
            value = getattr(engine, name)
            setattr(self, name, getattr(gateway, name) if value is None else value)
        starts = [turn.started_us for turn in (self, other) if turn.started_us is not None]
        self.started_us = min(starts, default=None)
        for name in ("ttft_us", "first_token_us", "ended_us", "finish_reason", "http_status", "error"):
            value = getattr(gateway, name)
            setattr(self, name, getattr(engine, name) if value is None else value)
        self.tools = gateway.tools or engine.tools
        for name in ("model", "api", "session_from", "messages"):
            setattr(self, name, getattr(gateway, name) or getattr(engine, name))
        self.engine = self.gateway = True
        self.ttft_by_gateway = gateway.ttft_us is not None
        self.finish_by_gateway = gateway.ended_us is not None
        self.other_id = other.id


class Turns(Struct, array_like=True):
    """Turns by id, in order of their first record, at most ``limit``; those that have ended leave first."""

    limit: int = 0
    by_id: dict[str, Turn] = field(default_factory=dict)
    other_ids: dict[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self.by_id.values())

    def get(self, turn_id: str) -> Turn | None:
        """The turn that either witness calls so."""
        return self.by_id.get(turn_id) or self.by_id.get(self.other_ids.get(turn_id, ""))

    def open(self, turn_id: str) -> tuple[Turn, bool]:
        """The turn of that id, and whether it is new."""
        found = self.get(turn_id)
        if found is not None:
            return found, False
        if self.limit and len(self.by_id) >= self.limit:
            self._make_room()
        turn = self.by_id[turn_id] = Turn(turn_id)
        return turn, True

    def join(self, turn: Turn, req: str) -> Turn | None:
        """The gateway says that the engine calls ``turn`` by the name ``req``: the two become one.

        Returns:
            the turn that was one of its own until now; None where there is nothing to join.
        """
        if req in (turn.id, turn.other_id):
            return None
        other = self.by_id.get(req)
        if other is None or other is turn or other.gateway == turn.gateway:
            if req not in self.by_id and turn.other_id is None:
                turn.other_id = req
                self.other_ids[req] = turn.id
            return None
        turn.merge(other)
        del self.by_id[other.id]
        self.other_ids[other.id] = turn.id
        return other

    def _make_room(self) -> None:
        name = next((turn.id for turn in self if turn.ended_us is not None), None) or next(iter(self.by_id))
        other = self.by_id.pop(name).other_id
        if other is not None:
            self.other_ids.pop(other, None)


def turn_of(turns: Turns, record: AnyTurnRecord) -> tuple[Turn, bool, Turn | None]:
    """Take a record into the turns.

    Returns:
        its turn; whether it is new; and the turn that has become one with it by this record.
    """
    name = short_id(record.turn or record.req or "")
    turn, new = turns.open(name)
    turn.take(record)
    other = None
    if record.by == "gateway" and record.req is not None:
        other = turns.join(turn, short_id(record.req))
    return turn, new, other
