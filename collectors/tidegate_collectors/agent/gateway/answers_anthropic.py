"""Answers of ``/v1/messages``. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from .answers import Answer, count, error_kind, id_of, name_tool, present
from .asked import text_of

_NONE: Final = Raw()
_FINISH: Final = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


class _Usage(Struct):
    input_tokens: Raw = _NONE
    output_tokens: Raw = _NONE
    cache_read_input_tokens: Raw = _NONE
    cache_creation_input_tokens: Raw = _NONE


class _Block(Struct):
    type: Raw = _NONE
    id: Raw = _NONE
    name: Raw = _NONE


class _Message(Struct):
    id: Raw = _NONE
    content: list[_Block] | None = None
    stop_reason: Raw = _NONE
    usage: _Usage | None = None


class _Delta(Struct):
    stop_reason: Raw = _NONE


class _Event(Struct):
    type: Raw = _NONE
    message: _Message | None = None
    index: int = 0
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: Raw = _NONE


_message: Final = msgspec.json.Decoder(_Message)
_event: Final = msgspec.json.Decoder(_Event)


class AnthropicAnswer(Answer):
    """``input_tokens`` counts what was neither read from the cache nor written to it: the prompt is all three."""

    def __init__(self) -> None:
        super().__init__()
        self._input: int | None = None
        self._read: int | None = None
        self._written: int | None = None

    def whole(self, body: bytes) -> None:
        message = _message.decode(body)
        self.spoken = bool(message.content)
        self._take(message)
        self.complete = self.finish is not None

    def event(self, data: bytes) -> None:
        event = _event.decode(data)
        kind = text_of(event.type)
        if kind == "message_start" and event.message is not None:
            self._take(event.message)
        elif kind == "content_block_start" and event.content_block is not None:
            self._block(event.index, event.content_block)
        elif kind == "content_block_delta":
            self.spoken = True
        elif kind == "message_delta" and event.delta is not None:
            self._finish(event.delta.stop_reason)
        elif kind == "message_stop":
            self.complete = True
        elif kind == "error" or present(event.error):
            self.error, self.finish = error_kind(event.error), "error"
        if event.usage is not None:
            self._usage(event.usage)

    def _take(self, message: _Message) -> None:
        self.id = id_of(message.id)
        for place, block in enumerate(message.content or ()):
            self._block(place, block)
        self._finish(message.stop_reason)
        if message.usage is not None:
            self._usage(message.usage)

    def _block(self, place: int, block: _Block) -> None:
        if text_of(block.type) == "tool_use":
            self.spoken = True
            name_tool(self._tool(place), block.id, block.name)

    def _finish(self, raw: Raw) -> None:
        reason = text_of(raw)
        if reason is not None:
            self.finish = _FINISH.get(reason, reason[:64])

    def _usage(self, usage: _Usage) -> None:
        """Later events say more, or again; what one leaves out stays."""
        self._input = _newer(usage.input_tokens, self._input)
        self._read = _newer(usage.cache_read_input_tokens, self._read)
        self._written = _newer(usage.cache_creation_input_tokens, self._written)
        self.output_tokens = _newer(usage.output_tokens, self.output_tokens)
        self.cached_tokens = self._read
        if self._input is not None:
            self.prompt_tokens = self._input + (self._read or 0) + (self._written or 0)


def _newer(raw: Raw, before: int | None) -> int | None:
    found = count(raw)
    return before if found is None else found
