"""What an agent's hook is given on its standard input, as the collector's ``hook`` request. Pure; never raises.

The shape is that of Claude Code: one JSON object with ``hook_event_name``, ``session_id``, ``tool_name`` and
``tool_input``, in later versions ``tool_use_id``, and after a tool ``tool_response``. Results are counted, never sent.
Of the arguments go the command, by which the call is found, and the name of the file or address; whether they are
recorded is the collector's decision, and by default they are not.
"""

from __future__ import annotations

import json
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes a fifth of the time that a hook has
    from typing import Any

MAX_NAME_CHARS = 200
MAX_COMMAND_CHARS = 8192
MAX_DETAIL_CHARS = 512
_MAX_DEPTH = 12

_EVENTS = {
    "PreToolUse": "before",
    "PostToolUse": "after",
    "PostToolUseFailure": "failed",
    "Notification": "notification",
    "SessionStart": "turn_over",
    "Stop": "turn_over",
    "StopFailure": "turn_over",
    "SessionEnd": "turn_over",
}
_DETAILS = ("file_path", "notebook_path", "path", "pattern", "url", "query")
_ABOUT_TOOLS = ("before", "after", "failed")


def request_of(data: bytes) -> dict[str, Any]:
    """The request for what the hook was given; ``{"verb": "hook", "event": "other"}`` for what is not understood."""
    try:
        payload = json.loads(data)
        return _request(payload) if isinstance(payload, dict) else _other()
    except (ValueError, RecursionError):
        return _other()


def _other() -> dict[str, Any]:
    return {"verb": "hook", "event": "other"}


def _request(payload: dict[str, Any]) -> dict[str, Any]:
    event = _EVENTS.get(_text(payload.get("hook_event_name")), "other")
    request: dict[str, Any] = {"verb": "hook", "event": event, "agent_session": _text(payload.get("session_id"))}
    if event == "notification":
        request["about"] = _about(payload)
    if event not in _ABOUT_TOOLS:
        return request
    tool_input = payload.get("tool_input")
    request["tool"] = _text(payload.get("tool_name"))
    if identity := _text(payload.get("tool_use_id")):
        request["id"] = identity
    request["input_digest"] = _digest(tool_input)
    if isinstance(tool_input, dict):
        request.update(_arguments(tool_input))
    if event != "before" and (result := payload.get("tool_response", payload.get("error"))) is not None:
        request["result_chars"] = _chars(result)
    return request


def _arguments(tool_input: dict[str, Any]) -> dict[str, str]:
    """The command, and what the tool works on."""
    found = {}
    command = tool_input.get("command")
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        command = " ".join(command)
    if isinstance(command, str):
        found["command"] = command[:MAX_COMMAND_CHARS]
    for name in _DETAILS:
        if detail := _text(tool_input.get(name), MAX_DETAIL_CHARS):
            found["detail"] = detail
            break
    return found


def _about(payload: dict[str, Any]) -> str:
    """What a notification is about; its text is the agent's and is not sent."""
    kind = _text(payload.get("notification_type"))
    message = _text(payload.get("message"), 1000).lower()
    if "permission" in kind or "permission" in message:
        return "permission"
    if "idle" in kind or "waiting for your input" in message:
        return "waiting"
    return "other"


def _digest(tool_input: Any) -> str:
    """By which a tool's end is paired with its beginning where the agent gives no id."""
    text = json.dumps(tool_input, sort_keys=True, ensure_ascii=True).encode()
    return f"{zlib.crc32(text):08x}{len(text):x}"


def _chars(result: Any, depth: int = 0) -> int:
    """Characters of all texts in a result."""
    if isinstance(result, str):
        return len(result)
    if depth < _MAX_DEPTH and isinstance(result, dict):
        return sum(_chars(value, depth + 1) for value in result.values())
    if depth < _MAX_DEPTH and isinstance(result, list):
        return sum(_chars(value, depth + 1) for value in result)
    return 0


def _text(value: Any, limit: int = MAX_NAME_CHARS) -> str:
    return value[:limit] if isinstance(value, str) else ""
