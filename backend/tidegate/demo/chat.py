"""One request to an OpenAI-compatible engine and its streamed answer, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

_TIMEOUT_S = 120.0
_MAX_ERROR_BYTES = 2000


class ChatError(Exception):
    """The engine or what is before it refused. ``status`` is 0 when there was no answer at all."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}" if status else text)
        self.status = status


@dataclass(slots=True)
class ToolCall:
    """A tool that the answer asks for. ``arguments`` is JSON text, as it came."""

    id: str = ""
    name: str = ""
    arguments: str = ""

    def told(self) -> dict[str, Any]:
        """As the conversation has it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    def value(self, key: str) -> str:
        """One of the arguments, empty when there is none of that name."""
        try:
            found = json.loads(self.arguments).get(key, "")
        except (ValueError, AttributeError):
            return ""
        return found if isinstance(found, str) else ""


@dataclass(slots=True)
class Answer:
    """What came: ``finish`` is the finish reason; ``ttft_s`` the time to the first bit of the answer, in seconds."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    finish: str = ""
    ttft_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Engine:
    """Where to ask.

    Args:
        base_url: ends in ``/v1``.
        headers: sent with every request.
    """

    def __init__(self, base_url: str, headers: dict[str, str] | None = None) -> None:
        parts = urllib.parse.urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{base_url!a}: expected a URL like http://127.0.0.1:8000/v1")
        self._host, self._port = parts.hostname, parts.port or 80
        self._path = parts.path.rstrip("/")
        self._headers = headers or {}

    def ask(self, body: dict[str, Any]) -> Answer:
        """Send a chat request and read the whole answer.

        Raises:
            ChatError: it was refused, cannot be reached, or broke off.
        """
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        began = time.monotonic()
        try:
            connection.request(
                "POST", f"{self._path}/chat/completions", json.dumps(asked),
                {"Content-Type": "application/json", **self._headers},
            )  # fmt: skip
            with connection.getresponse() as response:
                if response.status != 200:
                    raise ChatError(response.status, response.read(_MAX_ERROR_BYTES).decode("utf-8", "replace"))
                return _read(_events(response), began)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ChatError(0, f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()


def tokens_of(engine_url: str, texts: list[str]) -> list[int]:
    """Token ids of some texts that are one token each, by vLLM's ``/tokenize``.

    Raises:
        ChatError: it was refused, or a text is several tokens.
    """
    parts = urllib.parse.urlsplit(engine_url)
    found = []
    for text in texts:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        try:
            body = json.dumps({"prompt": text, "add_special_tokens": False})
            connection.request("POST", "/tokenize", body, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                answer = response.read(1 << 20)
            if response.status != 200:
                raise ChatError(response.status, answer[:_MAX_ERROR_BYTES].decode("utf-8", "replace"))
            (token,) = json.loads(answer)["tokens"]
            found.append(int(token))
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise ChatError(0, f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()
    return found


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events; each is one line here.

    Raises:
        ValueError: it ended before its end, or holds something else.
    """
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            response.read()  # the end of the body: who leaves before it looks as if he had lost interest
            return
        event = json.loads(data)
        if "error" in event:
            raise ValueError(str(event["error"])[:300])
        yield event
    raise ValueError("the answer broke off")


def _read(events: Iterator[dict[str, Any]], began: float) -> Answer:
    answer = Answer()
    for event in events:
        usage = event.get("usage")
        if usage:
            answer.prompt_tokens = usage.get("prompt_tokens") or 0
            answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            text, pieces = delta.get("content"), delta.get("tool_calls")
            if (text or pieces) and not answer.ttft_s:
                answer.ttft_s = time.monotonic() - began
            answer.text += text or ""
            for piece in pieces or ():
                _add(answer.calls, piece)
            answer.finish = choice.get("finish_reason") or answer.finish
    return answer


def _add(calls: list[ToolCall], piece: dict[str, Any]) -> None:
    """A tool call comes in pieces: its name once, its arguments bit by bit."""
    index = int(piece.get("index") or 0)
    while len(calls) <= index < 64:
        calls.append(ToolCall())
    call, function = calls[index], piece.get("function") or {}
    call.id = piece.get("id") or call.id
    call.name = function.get("name") or call.name
    call.arguments += function.get("arguments") or ""
