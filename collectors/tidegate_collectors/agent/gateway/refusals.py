"""What an agent is told when there is no answer to pass on, in the shape of the API that it speaks. Pure."""

from __future__ import annotations

import json

from .apis import Api


def body_of(api: Api | None, status: int, kind: str, message: str) -> bytes:
    """The JSON of an error.

    Args:
        api: the API that was called; None for other paths, which get OpenAI's shape.
        status: HTTP status.
        kind: the error's type, for programs.
        message: what is wrong and what to do, for people.
    """
    if api == "anthropic.messages":
        anthropic = "request_too_large" if status == 413 else "api_error" if status >= 500 else "invalid_request_error"
        return json.dumps({"type": "error", "error": {"type": anthropic, "message": message}}).encode()
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": kind}}).encode()
