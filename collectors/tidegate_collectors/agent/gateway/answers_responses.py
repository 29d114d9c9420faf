"""Answers of ``/v1/responses``. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from .answers import Answer, count, error_kind, id_of, name_tool, present
from .asked import text_of

_NONE: Final = Raw()
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class _Item(Struct):
    type: Raw = _NONE
    call_id: Raw = _NONE
    name: Raw = _NONE


class _Details(Struct):
    cached_tokens: Raw = _NONE


class _Usage(Struct):
    input_tokens: Raw = _NONE
    output_tokens: Raw = _NONE
    input_tokens_details: _Details | None = None


class _Incomplete(Struct):
    reason: Raw = _NONE


class _Response(Struct):
    id: Raw = _NONE
    status: Raw = _NONE
    output: list[_Item] | None = None
    usage: _Usage | None = None
    incomplete_details: _Incomplete | None = None
    error: Raw = _NONE


class _Event(Struct):
    type: Raw = _NONE
    response: _Response | None = None
    item: _Item | None = None
    output_index: int = 0
    error: Raw = _NONE
    code: Raw = _NONE


_response: Final = msgspec.json.Decoder(_Response)
_event: Final = msgspec.json.Decoder(_Event)


class ResponsesAnswer(Answer):
    """Events name what they are; the last one repeats the whole answer."""

    def whole(self, body: bytes) -> None:
        response = _response.decode(body)
        self._take(response)
        self.spoken = bool(response.output)
        self._end(response)

    def event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            return
        event = _event.decode(data)
        kind = text_of(event.type) or ""
        if event.response is not None:
            self._take(event.response)
        if event.item is not None and kind.startswith("response.output_item."):
            self._item(event.output_index, event.item)
        if kind.endswith(".delta"):
            self.spoken = True
        if kind in _ENDS and event.response is not None:
            self._end(event.response)
        elif kind == "error" or present(event.error):
            self.error, self.finish = error_kind(event.error if present(event.error) else data), "error"

    def _take(self, response: _Response) -> None:
        self.id = id_of(response.id) or self.id
        if (usage := response.usage) is not None:
            self.prompt_tokens = count(usage.input_tokens)
            self.output_tokens = count(usage.output_tokens)
            details = usage.input_tokens_details
            self.cached_tokens = None if details is None else count(details.cached_tokens)

    def _item(self, place: int, item: _Item) -> None:
        if text_of(item.type) in ("function_call", "custom_tool_call", "local_shell_call"):
            tool = self._tool(place)
            name_tool(tool, item.call_id, item.name)
            tool.name = tool.name or text_of(item.type) or ""

    def _end(self, response: _Response) -> None:
        for place, item in enumerate(response.output or ()):
            self._item(place, item)
        self.complete = True
        status = text_of(response.status)
        if present(response.error) or status == "failed":
            self.error, self.finish = error_kind(response.error), "error"
        elif status == "cancelled":
            self.finish = "abort"
        elif status == "incomplete":
            reason = text_of(response.incomplete_details.reason) if response.incomplete_details else None
            self.finish = "length" if reason in (None, "max_output_tokens") else reason and reason[:64]
        elif status in ("queued", "in_progress"):
            self.complete = False
        else:
            self.finish = "tool_calls" if self._tools else "stop"
