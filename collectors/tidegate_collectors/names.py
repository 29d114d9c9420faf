"""Ids that become names of directories and parts of addresses. They are chosen by agents, so they are hostile text."""

from __future__ import annotations

MAX_ID_CHARS = 64
_ALLOWED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def is_safe_id(text: str) -> bool:
    """Whether ``text`` may be a session or call id: 1 to 64 of ``A-Z a-z 0-9 . _ -``, and not ``.`` or ``..``."""
    return 0 < len(text) <= MAX_ID_CHARS and _ALLOWED.issuperset(text) and text not in (".", "..")


def check_id(kind: str, text: str) -> str:
    """Return ``text`` when it is a safe id.

    Args:
        kind: what it is the id of, for the message (``session``, ``call``).

    Raises:
        ValueError: it is not; the message shows at most 80 characters of it, escaped.
    """
    if is_safe_id(text):
        return text
    shown = ascii(text[:80]) + ("..." if len(text) > 80 else "")
    raise ValueError(f"{kind} id {shown} is refused: use 1 to {MAX_ID_CHARS} of A-Z a-z 0-9 . _ - and not . or ..")


def safe_id_part(text: str, max_chars: int = 32) -> str:
    """The letters of ``text`` that an id may hold, others replaced by ``-``; never empty."""
    kept = "".join(char if char in _ALLOWED else "-" for char in text[:max_chars]).strip(".-")
    return kept or "agent"
