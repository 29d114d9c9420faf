"""What an answer says that matters here, whole or as a stream of events. Pure; text is never kept.

One class an API, each fed with the JSON of the whole answer or of one event after the other. What they do not know they
pass over, and a figure that is not there stays unknown.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw, Struct

from .asked import MAX_ID_CHARS, head, text_of

MAX_TOOLS: Final = 64
MAX_NAME_CHARS: Final = 128
_MAX_COUNT: Final = 1 << 53
_NONE: Final = Raw()
_NOTHING: Final = (b"", b"null", b'""', b"[]", b"{}")
_WORD: Final = re.compile(r"[^A-Za-z0-9_.-]")


class ToolCall(Struct):
    """A tool call that an answer asks for; ``id`` is empty where the answer gave none."""

    id: str = ""
    name: str = ""


class Answer:
    """An answer as far as it has come.

    Attributes:
        id: the engine's id of it.
        spoken: whether something of it has come that the model made.
        finish: finish reason in OpenAI's words; None as long as there is none.
        complete: whether it says of itself that it is complete.
        error: kind of an error that it tells of; never its text, which may quote the prompt.
        prompt_tokens, cached_tokens, output_tokens: None where the answer does not say.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        self.spoken = False
        self.finish: str | None = None
        self.complete = False
        self.error: str | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self._tools: dict[object, ToolCall] = {}

    @property
    def tools(self) -> list[ToolCall]:
        """Tool calls that it asks for, in its order."""
        return [tool for tool in self._tools.values() if tool.name or tool.id]

    def whole(self, body: bytes) -> None:
        """Read an answer that came in one piece. Raises ``msgspec.MsgspecError`` where it is none of this API."""
        raise NotImplementedError

    def event(self, data: bytes) -> None:
        """Read the data of one event. Raises ``msgspec.MsgspecError`` where it is none of this API."""
        raise NotImplementedError

    def _tool(self, key: object) -> ToolCall:
        """The tool call at a place of the answer; beyond the bound one that nobody will see."""
        known = self._tools.get(key)
        if known is None:
            known = ToolCall()
            if len(self._tools) < MAX_TOOLS:
                self._tools[key] = known
        return known


def name_tool(tool: ToolCall, id_: Raw, name: Raw) -> None:
    """Give a tool call what a piece of the answer says of it."""
    tool.id = tool.id or (text_of(id_) or "")[:MAX_ID_CHARS]
    tool.name = tool.name or (text_of(name) or "")[:MAX_NAME_CHARS]


def count(raw: Raw) -> int | None:
    """A number of tokens; None where it is none."""
    text = head(raw, 20)
    if not text.isdigit():
        return None
    value = int(text)
    return value if value < _MAX_COUNT else None


def present(raw: Raw) -> bool:
    """Whether a piece of JSON holds anything."""
    return head(raw, 5) not in _NOTHING


def id_of(raw: Raw) -> str | None:
    """An id, cut to a bound."""
    text = text_of(raw)
    return text and text[:MAX_ID_CHARS]


def word(raw: Raw, otherwise: str) -> str:
    """A name of a kind of error, its odd letters replaced; a number as it is."""
    text = text_of(raw) or (head(raw, 8).decode("ascii", "replace") if head(raw, 8).isdigit() else otherwise)
    return _WORD.sub("_", text[:64])


class ErrorBody(Struct):
    """The inside of an error, of all APIs."""

    type: Raw = _NONE
    code: Raw = _NONE
    message: Raw = _NONE


class _ErrorAnswer(Struct):
    error: Raw = _NONE
    code: Raw = _NONE
    type: Raw = _NONE
    message: Raw = _NONE


_error_answer: Final = msgspec.json.Decoder(_ErrorAnswer)
_error: Final = msgspec.json.Decoder(ErrorBody)

_OVERFLOW: Final = (
    "this model's maximum context length is",
    "longer than the maximum model length of",
    "exceeds model's maximum context length",
    "exceeds the model's maximum context length",
    "prompt is too long",
    "input is too long for requested model",
    "exceed context limit",
    "context_length_exceeded",
)


def error_kind(raw: Raw | bytes) -> str:
    """What kind of error it is, by its type or code; the message is not looked at."""
    try:
        found = _error.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return "error"
    return word(found.type if text_of(found.type) else found.code, "error")


def refusal_of(status: int, body: bytes) -> tuple[str, str]:
    """Finish reason and kind of an answer with an error's status.

    Returns:
        ``overflow_400`` where the prompt did not fit the model, else ``error``; and a text without the prompt's.
    """
    kind, said = "", body[:65536].decode("utf-8", "replace")
    try:
        outer = _error_answer.decode(body)
        inner = _error.decode(outer.error) if head(outer.error, 1) == b"{" else outer
        kind = word(inner.type if text_of(inner.type) else inner.code, "")
        said = f"{text_of(inner.message) or text_of(outer.error) or ''} {text_of(inner.code) or ''}"
    except (msgspec.MsgspecError, RecursionError):
        pass
    said = said.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if status == 400 and any(text in said for text in _OVERFLOW):
        return "overflow_400", "the prompt does not fit the model's context"
    return "error", f"HTTP {status}: {kind}" if kind else f"HTTP {status}"
