"""Which blocks a session has, and where each of them is. Counted as they change, never searched.

A session's account changes by :meth:`Residency.move` alone, one state into another, and each such change is told: so
the transitions of a session always add up to its residency.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate_collectors.engine.decision import Action, Inputs
from tidegate_collectors.records import KvState

ON_DEVICE: Final = frozenset({"device_active", "device_cached", "device_pinned", "device_and_host"})
STATES: Final[tuple[KvState, ...]] = ("device_active", "device_cached", "device_pinned", "device_and_host", "host")


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
    """One session. Times are monotonic seconds.

    Attributes:
        blocks: keys of its blocks with their state, in the order in which they came.
        prompt: keys of what its last turn left, in order of the prompt.
        lost: keys of it that were there and are nowhere.
        counts: blocks by state.
        running: its requests that run.
    """

    id: str
    blocks: dict[Any, KvState] = field(default_factory=dict)
    prompt: list[Any] = field(default_factory=list)
    lost: set[Any] = field(default_factory=set)
    counts: dict[KvState, int] = field(default_factory=dict)
    evicted_s: float | None = None
    pinned: list[Any] = field(default_factory=list)
    deadline_s: float | None = None
    running: int = 0
    waiting: Waiting | None = None

    def residency(self) -> dict[str, int]:
        """Blocks by state; those of a host tier are there when it has any."""
        found: dict[str, int] = {
            state: self.counts.get(state, 0)
            for state in STATES
            if state not in ("device_and_host", "host") or self.counts.get(state)
        }
        return found | {"gone": len(self.lost)}


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

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, session: str) -> Session | None:
        """The session of that id."""
        return self._sessions.get(session)

    def touch(self, session: str) -> Session:
        """The session, made when it is new."""
        known = self._sessions.get(session)
        if known is None:
            known = self._sessions[session] = Session(session)
        else:
            self._sessions.move_to_end(session)
        return known

    def surplus(self, session: str) -> Session | None:
        """The session that has to be forgotten before this one can be remembered; None while there is room."""
        if session in self._sessions or len(self._sessions) < self._most:
            return None
        idle = next((one for one in self._sessions.values() if not one.running and not one.pinned), None)
        return idle or next((one for one in self._sessions.values() if not one.running), None)

    def forget(self, session: Session) -> None:
        """Forget a session whose blocks have all been moved to ``gone``."""
        self._sessions.pop(session.id, None)

    def holders(self, key: Any) -> list[Session]:
        """Sessions that have the block."""
        return [self._sessions[name] for name in self._holders.get(key, ())]

    def by_state(self, session: Session, keys: Iterable[Any], to: KvState) -> dict[KvState, list[Any]]:
        """Those of the keys that are not in state ``to``, by the state they are in; ``gone``: it does not have them."""
        found: dict[KvState, list[Any]] = {}
        for key in dict.fromkeys(keys):
            state: KvState = session.blocks.get(key, "gone")
            if state != to:
                found.setdefault(state, []).append(key)
        return found

    def move(self, session: Session, keys: list[Any], from_: KvState, to: KvState, *, lost: bool = False) -> None:
        """Blocks of the session go from one state into another.

        Args:
            session: whose account it is.
            keys: distinct, all of them in state ``from_``.
            from_: the state they are in.
            to: another one.
            lost: with ``to`` gone: the session could have used them still.
        """
        if from_ == "gone":
            session.lost.difference_update(keys)
            for key in keys:
                self._holders.setdefault(key, set()).add(session.id)
        else:
            session.counts[from_] -= len(keys)
        if to == "gone":
            for key in keys:
                del session.blocks[key]
                self._release(session, key)
            if lost:
                session.lost.update(keys)
        else:
            session.blocks.update(dict.fromkeys(keys, to))
            session.counts[to] = session.counts.get(to, 0) + len(keys)

    def _release(self, session: Session, key: Any) -> None:
        holders = self._holders.get(key)
        if holders is not None:
            holders.discard(session.id)
            if not holders:
                del self._holders[key]

    def shared(self, session: Session) -> int:
        """How many of its blocks on the device other sessions have too."""
        return sum(len(self._holders[key]) > 1 for key, state in session.blocks.items() if state in ON_DEVICE)

    def shared_with_others(self, key: Any) -> bool:
        """Whether more than one session has that block."""
        return len(self._holders.get(key, ())) > 1
