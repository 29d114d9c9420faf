"""Answers of ``/v1/chat/completions`` and ``/v1/completions``. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from .answers import Answer, count, error_kind, id_of, name_tool, present
from .asked import text_of

_NONE: Final = Raw()


class _Function(Struct):
    name: Raw = _NONE


class _ToolPiece(Struct):
    index: int | None = None
    id: Raw = _NONE
    function: _Function | None = None


class _Piece(Struct):
    content: Raw = _NONE
    reasoning: Raw = _NONE
    reasoning_content: Raw = _NONE
    tool_calls: list[_ToolPiece] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Piece | None = None
    message: _Piece | None = None
    text: Raw = _NONE
    finish_reason: Raw = _NONE


class _Details(Struct):
    cached_tokens: Raw = _NONE


class _Usage(Struct):
    prompt_tokens: Raw = _NONE
    completion_tokens: Raw = _NONE
    prompt_tokens_details: _Details | None = None


class _Chunk(Struct):
    id: Raw = _NONE
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Raw = _NONE


_chunk: Final = msgspec.json.Decoder(_Chunk)


class OpenAiAnswer(Answer):
    """A chunk of the stream and the whole answer look alike: ``delta`` in one, ``message`` in the other."""

    def whole(self, body: bytes) -> None:
        self.event(body)
        self.complete = self.finish is not None

    def event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.complete = True
            return
        chunk = _chunk.decode(data)
        if present(chunk.error):
            self.error = error_kind(chunk.error)
            self.finish = "error"
        self.id = self.id or id_of(chunk.id)
        for choice in chunk.choices or ():
            self._choice(choice)
        if (usage := chunk.usage) is not None:
            self.prompt_tokens = count(usage.prompt_tokens)
            self.output_tokens = count(usage.completion_tokens)
            details = usage.prompt_tokens_details
            self.cached_tokens = None if details is None else count(details.cached_tokens)

    def _choice(self, choice: _Choice) -> None:
        piece = choice.delta or choice.message
        if piece is not None:
            for place, call in enumerate(piece.tool_calls or ()):
                tool = self._tool((choice.index, place if call.index is None else call.index))
                name_tool(tool, call.id, call.function.name if call.function else _NONE)
            if piece.tool_calls or any(map(present, (piece.content, piece.reasoning, piece.reasoning_content))):
                self.spoken = True
        if present(choice.text):
            self.spoken = True
        finish = text_of(choice.finish_reason)
        if finish is not None and self.finish is None:
            self.finish = "tool_calls" if finish == "function_call" else finish[:64]
