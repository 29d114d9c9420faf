"""What a request says that matters here: model, messages, results of tools, a session id. Pure; text is not kept."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from tidegate_collectors.names import is_safe_id, safe_id_part

from .apis import Api

MAX_BODY_BYTES: Final = 32 << 20
"""A longer body is passed on without being looked into."""

MAX_ID_CHARS: Final = 128
"""Ids of tool calls and answers are cut to this."""

MAX_NAME_CHARS: Final = 256

_NONE: Final = Raw()
_EMPTY: Final = (b"", b"null")
_START_BYTES: Final = 128
_MARKS: Final = re.compile(rb',?\s*"cache_control"\s*:\s*(?:\{[^{}]*\}|null)')
_CLAUDE_SESSION: Final = re.compile(r"session_([0-9a-fA-F-]{36})")


class _Body(Struct):
    model: Raw = _NONE
    messages: Raw = _NONE
    system: Raw = _NONE
    input: Raw = _NONE
    instructions: Raw = _NONE
    prompt: Raw = _NONE
    session_id: Raw = _NONE
    prompt_cache_key: Raw = _NONE
    metadata: Raw = _NONE
    vllm_xargs: Raw = _NONE
    previous_response_id: Raw = _NONE


class _Message(Struct):
    role: str | None = None
    type: str | None = None
    content: Raw = _NONE
    tool_call_id: str | None = None
    call_id: str | None = None
    output: Raw = _NONE


class _Block(Struct):
    type: Raw = _NONE
    tool_use_id: Raw = _NONE
    content: Raw = _NONE
    is_error: Raw = _NONE


class _Named(Struct):
    session_id: Raw = _NONE
    user_id: Raw = _NONE


_body: Final = msgspec.json.Decoder(_Body)
_items: Final = msgspec.json.Decoder(list[Raw])
_message: Final = msgspec.json.Decoder(_Message)
_block: Final = msgspec.json.Decoder(_Block)
_named: Final = msgspec.json.Decoder(_Named)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a tool call, on its way to the model. ``content`` is its JSON, for its length alone."""

    id: str
    content: bytes
    failed: bool

    @property
    def chars(self) -> int | None:
        """Characters of text in it."""
        return _chars(self.content)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    Attributes:
        model: model that is asked for.
        messages: messages of the conversation; None where the API has none.
        session: session id in vLLM's own field of the body; bounded and safe.
        hint: what else in the body names the conversation; bounded and safe.
        stem: what stays the same all through a conversation: instructions and the first message.
        units: the conversation in order, as hashed pieces: one a message, or the one prompt.
        text: of a completion, the prompt, which grows without being made of messages.
        history: whether the model has spoken in it.
        results: results of tools, oldest first.
        previous: id of the answer that this request goes on from (``/v1/responses``).
    """

    model: str | None = None
    messages: int | None = None
    session: str | None = None
    hint: str | None = None
    stem: bytes = b""
    units: list[bytes] = field(default_factory=list)
    text: bytes | None = None
    history: bool = False
    results: list[Result] = field(default_factory=list)
    previous: str | None = None


def read(api: Api, body: bytes) -> Asked:
    """Look into the body of a request.

    Raises:
        ValueError: it is no JSON object, or too long to be looked into.
    """
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"more than {MAX_BODY_BYTES} bytes")
    try:
        found = _body.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(type(error).__name__) from None
    model = text_of(found.model)
    model = model and model[:MAX_NAME_CHARS]
    session, hint = text_of(found.session_id), _hint(api, found)
    session, hint = session and safe_id(session), hint and safe_id(hint)
    if api == "openai.completions":
        prompt = _prompt(bytes(found.prompt))
        return Asked(model=model, session=session, hint=hint, stem=prompt[:_START_BYTES], text=prompt)
    system = found.instructions if api == "openai.responses" else found.system
    messages = _list(found.input if api == "openai.responses" else found.messages)
    conversation = _Conversation(api)
    for raw in messages:
        conversation.take(bytes(raw))
    return Asked(
        model=model,
        messages=len(messages),
        session=session,
        hint=hint,
        stem=_steady(bytes(system)) + b"\0" + conversation.start,
        units=conversation.units,
        history=conversation.history,
        results=conversation.results,
        previous=_id(found.previous_response_id),
    )


class _Conversation:
    """Messages, one after the other. ``start``: everything up to the first of the user."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._started = False
        self.start = b""
        self.units: list[bytes] = []
        self.history = False
        self.results: list[Result] = []

    def take(self, raw: bytes) -> None:
        steady = _steady(raw)
        self.units.append(steady)
        try:
            message = _message.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            message = _Message(role="user")  # a bare string among the items of /v1/responses, or rubbish
        role, kind = message.role or "", message.type or ""
        if not self._started:
            self.start += steady + b"\0"
            self._started = role == "user"
        if role == "assistant" or kind in ("function_call", "reasoning"):
            self.history = True
        if role == "tool":
            self._result(message.tool_call_id, message.content, failed=False)
        elif kind.endswith("_call_output"):
            self._result(message.call_id, message.output, failed=False)
        elif self._api == "anthropic.messages" and b"tool_result" in raw:
            for item in _list(message.content):
                try:
                    block = _block.decode(item)
                except (msgspec.MsgspecError, RecursionError):
                    continue
                if text_of(block.type) == "tool_result":
                    self._result(text_of(block.tool_use_id), block.content, failed=bytes(block.is_error) == b"true")

    def _result(self, name: str | None, content: Raw, *, failed: bool) -> None:
        if name:
            self.results.append(Result(name[:MAX_ID_CHARS], bytes(content), failed))


def head(raw: Raw | bytes, length: int) -> bytes:
    """The first bytes of a piece of JSON."""
    return bytes(memoryview(raw)[:length])


def text_of(raw: Raw | bytes) -> str | None:
    """The string that a piece of JSON is; None when it is none, or empty."""
    if head(raw, 1) != b'"':
        return None
    try:
        text: str = msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return text or None


def safe_id(text: str) -> str:
    """A session id of 1 to 64 safe characters; other texts become one, distinct texts stay distinct."""
    if is_safe_id(text):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{safe_id_part(text)}-{digest}"


def _id(raw: Raw) -> str | None:
    text = text_of(raw)
    return text and text[:MAX_ID_CHARS]


def _list(raw: Raw) -> list[Raw]:
    if head(raw, 1) == b'"':
        return [raw]
    try:
        return _items.decode(raw) if bytes(raw) not in _EMPTY else []
    except (msgspec.MsgspecError, RecursionError):
        return []


def _steady(raw: bytes) -> bytes:
    """A message without the marks for caching, which agents move along from request to request."""
    return _MARKS.sub(b"", raw) if b"cache_control" in raw else raw


def _prompt(raw: bytes) -> bytes:
    """The inside of a prompt's JSON, so that a longer one begins with a shorter one."""
    return raw[1:-1] if raw[:1] in (b'"', b"[") else raw


def _hint(api: Api, body: _Body) -> str | None:
    """What names the conversation where the field that is meant for it does not.

    A ``metadata.user_id`` counts only with a session in it, as Claude Code writes it: else all conversations of a user
    were one.
    """
    metadata = _fields(body.metadata)
    named = text_of(_fields(body.vllm_xargs).session_id) or text_of(metadata.session_id)
    if named is None and (user := text_of(metadata.user_id)) is not None:
        inside = _CLAUDE_SESSION.search(user)
        named = inside.group(1) if inside else text_of(_fields(user.encode("utf-8", "replace")).session_id)
    if named is None and api != "anthropic.messages":
        named = text_of(body.prompt_cache_key)
    return named


def _fields(raw: Raw | bytes) -> _Named:
    if head(raw, 1) != b"{":
        return _Named()
    try:
        return _named.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return _Named()


def _chars(content: bytes) -> int | None:
    """Characters of text in a result: a string, or blocks with ``text``."""
    if content in _EMPTY:
        return 0
    try:
        value: Any = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        texts = (block.get("text") for block in value if isinstance(block, dict))
        return sum(len(text) for text in texts if isinstance(text, str))
    return None
