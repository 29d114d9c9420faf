"""The agents' client, against answers that a real engine gives only on a bad day."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tidegate.demo import chat


@contextlib.contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers so, once or more; its base URL, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append({"path": self.path, "session": self.headers["X-Session-ID"], **json.loads(content)})
            self.send_response(status)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", asked
        finally:
            server.shutdown()
            thread.join(5)


def stream(*events: dict[str, Any] | str) -> bytes:
    return "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events).encode()


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


def test_a_tool_call_in_pieces_is_put_together() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": 64}}}
    body = stream(
        delta(role="assistant", content=""),
        delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "git", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"verb":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"log"}'}}]),
        delta(tool_calls=[{"index": 1, "id": "c2", "function": {"name": "view", "arguments": "[1"}}]),
        delta("tool_calls"),
        usage,
        "[DONE]",
    )
    with answering(body) as (url, asked):
        answer = chat.Engine(url, {"X-Session-ID": "s1"}).ask({"messages": []})

    assert [(call.id, call.name, call.value("verb")) for call in answer.calls] == [
        ("c1", "git", "log"),
        ("c2", "view", ""),
    ]
    assert (answer.finish, answer.prompt_tokens, answer.cached_tokens) == ("tool_calls", 70, 64)
    assert answer.ttft_s > 0
    assert (asked[0]["path"], asked[0]["session"], asked[0]["stream"]) == ("/v1/chat/completions", "s1", True)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"error": "too long"}', 400, "HTTP 400: .*too long"),
        (stream(delta(content="half")), 200, "broke off"),
        (stream({"error": {"message": "out of memory"}}), 200, "out of memory"),
        (b"data: {no json\n\n", 200, "JSONDecodeError"),
    ],
)
def test_a_bad_answer_is_an_error_with_its_reason(body: bytes, status: int, said: str) -> None:
    with answering(body, status) as (url, _), pytest.raises(chat.ChatError, match=said) as caught:
        chat.Engine(url).ask({"messages": []})

    assert caught.value.status == (400 if status == 400 else 0)


def test_nobody_there_is_an_error_without_a_status() -> None:
    with answering(b"") as (url, _):
        pass
    with pytest.raises(chat.ChatError, match="Connection refused") as caught:
        chat.Engine(url).ask({"messages": []})

    assert caught.value.status == 0


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a URL"):
        chat.Engine("ftp://somewhere")
