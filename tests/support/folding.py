"""What the pages must show at an instant, worked out in the dullest way: every record from the first on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tidegate.fold import State, apply, views
from tidegate.store.rows import AnyLine, decode_stored
from tidegate.web.responses import encode

Numbered = tuple[int, AnyLine]


def records_of(recording: Path) -> list[Numbered]:
    """The records of a file with their ordinals."""
    return [(ord_, decode_stored(line)) for ord_, line in enumerate(recording.read_bytes().splitlines(), 1)]


def prefix_at(records: Iterable[Numbered], at_us: int) -> list[Numbered]:
    """The longest prefix whose greatest time is not after the instant."""
    found: list[Numbered] = []
    for ord_, record in records:
        if record.t > at_us:
            break
        found.append((ord_, record))
    return found


def folded(records: Iterable[Numbered]) -> State:
    """Their state."""
    state = State(track=False)
    for ord_, record in records:
        apply(state, ord_, record)
    return state


def as_json(view: Any) -> Any:
    """A view as a client reads it."""
    return json.loads(encode(view))


def state_at(records: Sequence[Numbered], at_us: int) -> dict[str, Any]:
    """``/api/state`` at an instant, without what only the backend knows."""
    view = views.state_view(folded(prefix_at(records, at_us)), now_us=at_us)
    return {key: value for key, value in as_json(view).items() if key not in ("run", "sources")}


class Follower:
    """A client that keeps a state by the frames of a stream, as the pages do."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.now_us: int = state["now_us"]
        self.ord: int = state["ord"]
        self.lost: dict[str, Any] = state["lost"]
        self.sessions = {session["id"]: session for session in state["sessions"]}
        self.hosts = {host["host"]: host for host in state["hosts"]}
        self.calls: dict[tuple[str, str], dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []

    def take(self, frame: dict[str, Any]) -> None:
        """One frame."""
        assert frame["ord"] >= self.ord
        assert frame["now_us"] >= self.now_us
        self.now_us, self.ord, self.lost = frame["now_us"], frame["ord"], frame["lost"]
        self.sessions.update({session["id"]: session for session in frame["sessions"]})
        self.hosts.update({host["host"]: host for host in frame["hosts"]})
        self.calls.update({(call["session"], call["id"]): call for call in frame["calls"]})
        self.events += frame["events"]
