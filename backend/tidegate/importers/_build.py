"""What all importers share: order of time, bounds of values, names of calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from tidegate_collectors.categories import classify
from tidegate_collectors.records import (
    CallEnd,
    CallMatch,
    CallStart,
    Capability,
    Category,
    Note,
    Record,
    RunMeta,
    SessionEnd,
    SessionStart,
    TurnEnd,
    TurnStart,
)  # fmt: skip

from ._files import MAX_T_US

MAX_ID_CHARS: Final = 128
_MAX_VALUE: Final = 1 << 53
_MAX_EXIT: Final = 255

_TOOLS: Final[dict[str, Category]] = {
    "Read": "read", "NotebookRead": "read", "Edit": "edit", "MultiEdit": "edit", "Write": "edit",
    "NotebookEdit": "edit", "Grep": "search", "Glob": "search", "LS": "search", "WebFetch": "network",
    "WebSearch": "network",
}  # fmt: skip

SHELLS: Final = frozenset({"Bash", "bash", "shell", "Shell", "execute_bash"})
"""Tools whose input is a command line."""

_RANKS: Final[dict[type, int]] = {
    RunMeta: -9, SessionStart: -8, Capability: -7, TurnStart: 2, TurnEnd: 3, CallStart: 4, CallMatch: 6, Note: 6,
    SessionEnd: 8,
}  # fmt: skip
"""Order of records of one instant: an answer that ends there asks for the call that begins there."""


def in_order(records: Iterable[Record]) -> list[Record]:
    """The records in order of time; at one instant what ends comes before what begins, and all of it in its session."""
    return sorted(records, key=_key)


def _key(record: Record) -> tuple[int, int]:
    if isinstance(record, CallEnd):  # a call without length must not end before it begins
        return record.t, 1 if record.duration_us else 5
    return record.t, _RANKS.get(type(record), 0)


def named_call(tool: str, arguments: object) -> tuple[str, Category, str | None]:
    """The tool's name, category and command of a call, from what the agent asked for.

    The command has only the words that the rules of the categories know: arguments are not kept.
    """
    name = printable(tool, 64)
    if tool in SHELLS:
        command = arguments.get("command") if isinstance(arguments, dict) else None
        if not isinstance(command, str) or not command.strip():
            return name, "other", None
        found = classify(["bash", "-c", command])
        return name, found.category, found.summary or None
    return name, _TOOLS.get(tool, "other"), None


def printable(text: str, limit: int) -> str:
    """One line that a page can show, at most ``limit`` characters."""
    clean = "".join(char if char.isprintable() else "?" for char in text[:limit])
    return clean if len(text) <= limit else clean[: limit - 1] + "…"


def identifier(text: str, fallback: str = "import") -> str:
    """A run or session id out of a name of somebody else's."""
    return re.sub(r"[^A-Za-z0-9._/-]+", "-", text).strip("-/.")[:MAX_ID_CHARS] or fallback


def micros(seconds: object) -> int | None:
    """Microseconds since the epoch of seconds since the epoch; None for what is no time."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < MAX_T_US:  # NaN neither
        return None
    t_us = round(seconds * 1e6)
    return t_us if 0 < t_us < MAX_T_US else None


def iso_micros(text: object) -> int | None:
    """Microseconds since the epoch of an ISO time with its zone; None for anything else, one without a zone too."""
    if not isinstance(text, str) or len(text) > 64:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    try:
        delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:
        return None
    t_us = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    return t_us if 0 < t_us < MAX_T_US else None


def count(value: object) -> int | None:
    """A number that counts something: a whole one, not negative, that the store and a browser can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_VALUE:
        return None
    return int(value)


def exit_code(value: int | None) -> int | None:
    """An exit code; None for what cannot be one."""
    return value if value is not None and 0 <= value <= _MAX_EXIT else None


def text_of(value: Any, key: str) -> str:
    """A text within a JSON object; "" where there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
