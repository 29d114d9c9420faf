"""How much a state may hold, and how hostile text is cut to fit."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Final

MAX_ID_CHARS: Final = 256
"""Longer session, call, host and sender names are shortened; two long names stay distinct by their checksum."""

MAX_TEXT_CHARS: Final = 2048
"""Longer texts (titles, commands, notes) are cut; the store keeps them in full."""

MAX_BODY_ITEMS: Final = 64
"""Longer lists and objects inside an event's body are cut; the store keeps them in full."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of a state. What goes over them leaves the state, never the store.

    Attributes:
        sessions: sessions kept; the oldest ended ones leave first.
        calls: calls kept a session; the oldest ended ones leave first, ``calls_total`` still counts them.
        processes: processes kept a call (and a runtime); the others are counted as omitted.
        events: events kept for the feed.
        names: hosts, senders, capabilities, kinds of loss and unknown types kept, each.
        spark_us: length of the sparkline.
        spark_points: points of the sparkline a session.
        pending: changes kept for the next :meth:`~tidegate.fold.state.State.changes`, of each kind.
        lanes: lanes of overlapping calls a session; further calls share the last lane.
    """

    sessions: int = 2000
    calls: int = 10_000
    processes: int = 256
    events: int = 100
    names: int = 256
    spark_us: int = 120_000_000
    spark_points: int = 240
    pending: int = 2000
    lanes: int = 256


def short_id(name: str) -> str:
    """The name as a key: at most :data:`MAX_ID_CHARS` characters, distinct names stay distinct."""
    if len(name) <= MAX_ID_CHARS:
        return name
    checksum = zlib.crc32(name.encode("utf-8", "surrogatepass"))
    return f"{name[: MAX_ID_CHARS - 10]}…{checksum:08x}"


def cut(text: str) -> str:
    """The text, at most :data:`MAX_TEXT_CHARS` characters long."""
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"


def cut_or_none(text: str | None) -> str | None:
    """:func:`cut`, keeping None."""
    return None if text is None else cut(text)


def cut_deep(value: Any, depth: int = 4) -> Any:
    """A JSON value with long texts cut, long lists and objects shortened and deep nesting replaced by ``"…"``."""
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, dict):
        if depth == 0:
            return "…"
        items = list(value.items())[:MAX_BODY_ITEMS]
        return {cut(str(key)): cut_deep(item, depth - 1) for key, item in items}
    if isinstance(value, list):
        return "…" if depth == 0 else [cut_deep(item, depth - 1) for item in value[:MAX_BODY_ITEMS]]
    return value
