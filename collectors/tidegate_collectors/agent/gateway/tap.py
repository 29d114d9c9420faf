"""The copy of an answer that is looked into while the answer itself goes its way. Bounded; no I/O."""

from __future__ import annotations

import zlib
from typing import Final, Protocol

import msgspec

from .answers import Answer, refusal_of
from .answers_anthropic import AnthropicAnswer
from .answers_openai import OpenAiAnswer
from .answers_responses import ResponsesAnswer
from .apis import Api
from .sse import EventReader

MAX_BODY_BYTES: Final = 16 << 20
"""A longer answer in one piece is not looked into."""

_MAX_UNPACKED_BYTES: Final = 16 << 20
"""What all of a compressed answer may unpack to."""

_ANSWERS: Final[dict[Api, type[Answer]]] = {
    "openai.chat": OpenAiAnswer,
    "openai.completions": OpenAiAnswer,
    "openai.responses": ResponsesAnswer,
    "anthropic.messages": AnthropicAnswer,
}


class Tap:
    """Looks into one answer.

    Args:
        api: how it is to be read.
        status: HTTP status.
        content_type: its header.
        encoding: the header ``Content-Encoding``.

    Attributes:
        answer: what is known of it so far.
        readable: false from the moment when something was met that cannot be followed.
        streamed: whether it is a stream of events.
        unread: events that were no JSON of this API, or too long.
    """

    def __init__(self, api: Api, status: int, content_type: str, encoding: str) -> None:
        self.answer = _ANSWERS[api]()
        self.readable = True
        self.streamed = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self.unread = 0
        self._status = status
        self._events = EventReader()
        self._body = bytearray()
        self._unpacked = 0
        self._unpacker = _unpacker(encoding)
        if self._unpacker is None and encoding.strip().lower() not in ("", "identity"):
            self.readable = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the answer, as they came over the wire."""
        if not self.readable:
            return
        if self._unpacker is not None:
            chunk = self._unpack(self._unpacker, chunk)
        if self.streamed and self._status < 400:
            for data in self._events.feed(chunk):
                self._event(data)
        elif len(self._body) + len(chunk) <= MAX_BODY_BYTES:
            self._body += chunk
        else:
            self.readable = False
            self._body.clear()

    def end(self, *, whole: bool) -> None:
        """No more comes. ``whole``: the connection says that everything has come."""
        self.unread += self._events.passed_over
        answer = self.answer
        if self._status >= 400:
            answer.finish, answer.error = refusal_of(self._status, bytes(self._body))
        elif not self.streamed and self.readable and whole:
            try:
                answer.whole(bytes(self._body))
            except (msgspec.MsgspecError, RecursionError):
                self.readable = False
                self.unread += 1
        self._body.clear()

    def _event(self, data: bytes) -> None:
        try:
            self.answer.event(data)
        except (msgspec.MsgspecError, RecursionError):
            self.unread += 1

    def _unpack(self, unpacker: _Unpacker, chunk: bytes) -> bytes:
        try:
            data = unpacker.decompress(chunk, _MAX_UNPACKED_BYTES - self._unpacked + 1)
        except zlib.error:
            self.readable = False
            return b""
        self._unpacked += len(data)
        if self._unpacked > _MAX_UNPACKED_BYTES:
            self.readable = False
            return b""
        return data


class _Unpacker(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _unpacker(encoding: str) -> _Unpacker | None:
    return zlib.decompressobj(wbits=47) if encoding.strip().lower() in ("gzip", "x-gzip", "deflate") else None
