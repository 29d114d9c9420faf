"""Which blocks a session left in the pool, and where they are now. Counted as they change, never searched."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from tidegate_collectors.engine.decision import Action, Inputs


@dataclass(slots=True)
class Waiting:
    """What was decided when the session's last turn ended, until it comes back."""

    seq: int
    action: Action
    inputs: Inputs
    boundary: str
    tool: str
    ended_s: float
    reach_s: float | None


@dataclass(slots=True)
class Session:
    """One session. ``hashes`` are the keys of its blocks, in order of the prompt; times are monotonic seconds."""

    id: str
    hashes: list[Any] = field(default_factory=list)
    gone: set[Any] = field(default_factory=set)
    evicted_s: float | None = None
    pinned: list[Any] = field(default_factory=list)
    deadline_s: float | None = None
    running: int = 0
    waiting: Waiting | None = None


class Residency:
    """The sessions, the newest last, and who has which block.

    Args:
        most: sessions that are remembered; the one that was heard of longest ago, and does not run, makes room.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._holders: dict[Any, set[str]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Any:
        return iter(list(self._sessions.values()))

    def get(self, session: str) -> Session | None:
        """The session of that id."""
        return self._sessions.get(session)

    def touch(self, session: str) -> tuple[Session, Session | None]:
        """The session, made when it is new; and the one that had to be forgotten for it."""
        known = self._sessions.get(session)
        if known is not None:
            self._sessions.move_to_end(session)
            return known, None
        forgotten: Session | None = None
        if len(self._sessions) >= self._most:
            idle = next((one for one in self._sessions.values() if not one.running and not one.pinned), None)
            forgotten = idle or next((one for one in self._sessions.values() if not one.running), None)
            if forgotten is not None:
                self.forget(forgotten)
        known = self._sessions[session] = Session(session)
        return known, forgotten

    def forget(self, session: Session) -> None:
        """Forget a session; its pins are the caller's to release."""
        self.left(session, [])
        self._sessions.pop(session.id, None)

    def left(self, session: Session, hashes: list[Any]) -> None:
        """The session's blocks are these from now on, all of them there."""
        for key in session.hashes:
            holders = self._holders.get(key)
            if holders is not None:
                holders.discard(session.id)
                if not holders:
                    del self._holders[key]
        session.hashes = list(dict.fromkeys(hashes))
        session.gone.clear()
        session.evicted_s = None
        for key in session.hashes:
            self._holders.setdefault(key, set()).add(session.id)

    def evicted(self, key: Any, now_s: float) -> list[Session]:
        """A block left the device; the sessions that had it."""
        lost: list[Session] = []
        for name in self._holders.get(key, ()):
            session = self._sessions[name]
            if key not in session.gone:
                session.gone.add(key)
                if session.evicted_s is None:
                    session.evicted_s = now_s
                lost.append(session)
        return lost

    def shared(self, session: Session) -> int:
        """How many of its blocks on the device other sessions have too."""
        return sum(len(self._holders.get(key, ())) > 1 for key in session.hashes if key not in session.gone)

    def shared_with_others(self, session: Session, key: Any) -> bool:
        """Whether another session has that block too."""
        return bool(self._holders.get(key, set()) - {session.id})

    def counts(self, session: Session) -> dict[str, int]:
        """Its blocks by state. Those of a session that runs count as active, its new ones come with the turn's end."""
        held = len(session.hashes) - len(session.gone)
        pinned = min(len(session.pinned), held) if not session.running else 0
        return {
            "device_active": held if session.running else 0,
            "device_cached": 0 if session.running else held - pinned,
            "device_pinned": pinned,
            "gone": len(session.gone),
        }
