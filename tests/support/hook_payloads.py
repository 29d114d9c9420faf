"""What Claude Code gives its hooks, written down by hand in the shapes of its versions."""

from __future__ import annotations

from typing import Any, Final

_OLD: Final[dict[str, Any]] = {
    "session_id": "7a4d0cbe-52a9-4dd5-a0b4-6e8d8f0b1c11",
    "transcript_path": "/home/u/.claude/projects/-home-u-work/7a4d0cbe-52a9-4dd5-a0b4-6e8d8f0b1c11.jsonl",
}
_NEW: Final[dict[str, Any]] = {**_OLD, "cwd": "/home/u/work", "permission_mode": "acceptEdits"}

OLD_BEFORE: Final[dict[str, Any]] = {
    **_OLD,
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "pytest -q", "description": "Run the tests"},
}
"""1.0: no cwd, no id of the tool call."""

OLD_AFTER: Final[dict[str, Any]] = {
    **OLD_BEFORE,
    "hook_event_name": "PostToolUse",
    "tool_response": {"stdout": "4 passed", "stderr": "", "interrupted": False, "isImage": False},
}
BEFORE: Final[dict[str, Any]] = {
    **_NEW,
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {
        "command": "git diff | head -5",
        "description": "See",
        "timeout": 120000,
        "run_in_background": False,
    },
    "tool_use_id": "toolu_01ABCdefGHIjklMNOpqrSTUv",
}
AFTER: Final[dict[str, Any]] = {
    **BEFORE,
    "hook_event_name": "PostToolUse",
    "tool_response": {"stdout": "diff --git", "stderr": "warn", "interrupted": False, "noOutputExpected": False},
}
AFTER_WITHOUT_ID: Final[dict[str, Any]] = {name: value for name, value in AFTER.items() if name != "tool_use_id"}
"""Some versions give the id before the tool, and not after it."""

FAILED: Final[dict[str, Any]] = {
    **BEFORE,
    "hook_event_name": "PostToolUseFailure",
    "error": "Exit code 1\nno such file",
    "is_interrupt": False,
}
READ: Final[dict[str, Any]] = {
    **_NEW,
    "hook_event_name": "PostToolUse",
    "tool_name": "Read",
    "tool_input": {"file_path": "/home/u/work/secret-name.py", "limit": 20},
    "tool_response": {"type": "text", "file": {"filePath": "/home/u/work/secret-name.py", "content": "x = 1\n" * 9}},
    "tool_use_id": "toolu_02",
}
MCP: Final[dict[str, Any]] = {
    **_NEW,
    "hook_event_name": "PostToolUse",
    "tool_name": "mcp__github__search_issues",
    "tool_input": {"q": "is:open"},
    "tool_response": [{"type": "text", "text": "12345"}],
    "tool_use_id": "toolu_03",
}
PERMISSION: Final[dict[str, Any]] = {
    **_OLD,
    "hook_event_name": "Notification",
    "message": "Claude needs your permission to use Bash",
}
IDLE: Final[dict[str, Any]] = {
    **_NEW,
    "hook_event_name": "Notification",
    "message": "The secret of the user",
    "title": "Claude Code",
    "notification_type": "idle_prompt",
}
STOP: Final[dict[str, Any]] = {**_NEW, "hook_event_name": "Stop", "stop_hook_active": False}
PROMPT: Final[dict[str, Any]] = {**_NEW, "hook_event_name": "UserPromptSubmit", "prompt": "do something secret"}

ALL: Final = (
    OLD_BEFORE, OLD_AFTER, BEFORE, AFTER, AFTER_WITHOUT_ID, FAILED, READ, MCP, PERMISSION, IDLE, STOP, PROMPT,
)  # fmt: skip
