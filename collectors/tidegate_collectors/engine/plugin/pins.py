"""The pins that are held, their share of the pool and when they run out."""

from __future__ import annotations

import math
from typing import Any

from tidegate_collectors.engine.plugin.pool import PoolWatch
from tidegate_collectors.engine.plugin.residency import Session


class Pins:
    """All pins of one engine.

    Args:
        pool: whose blocks are held.
        cap: share of the pool that they may hold together.

    Attributes:
        next_s: when the next one is due, monotonic seconds. Another thread may read it.
    """

    def __init__(self, pool: PoolWatch, cap: float) -> None:
        self._pool = pool
        self._cap = cap
        self._sessions: dict[str, Session] = {}
        self.next_s = math.inf

    def room(self) -> int:
        """Blocks that may be pinned still."""
        return max(0, int(self._cap * self._pool.blocks) - self._pool.held())

    def oldest(self) -> Session | None:
        """The session whose pin was made first."""
        return next(iter(self._sessions.values()), None)

    def hold(self, session: Session, blocks: list[Any], deadline_s: float) -> list[Any]:
        """Pin the beginning of these blocks, as much as there is room for; what is held."""
        blocks = blocks[: self.room()]
        if blocks:
            self._pool.pin(session, blocks)
            session.deadline_s = deadline_s
            self._sessions[session.id] = session
            self.remind(session)
        return blocks

    def release(self, session: Session) -> list[Any]:
        """Give a session's blocks back to the LRU order; their keys."""
        self._sessions.pop(session.id, None)
        return self._pool.unpin(session)

    def drop_all(self) -> None:
        """Give all back, telling nobody: for when telling went wrong."""
        for session in self.sessions():
            self.release(session)

    def sessions(self) -> list[Session]:
        """Sessions with pins, the oldest pin first."""
        return list(self._sessions.values())

    def remind(self, session: Session) -> None:
        """A pin may be due, now that its session does not run."""
        if session.deadline_s is not None:
            self.next_s = min(self.next_s, session.deadline_s)

    def due(self, now_s: float) -> list[Session]:
        """Sessions whose pins have run out. That of one that runs is left: its request may want the blocks."""
        if now_s <= self.next_s:
            return []
        idle = [session for session in self._sessions.values() if not session.running]
        due = [session for session in idle if session.deadline_s is not None and now_s > session.deadline_s]
        left = (session.deadline_s for session in idle if session not in due)
        self.next_s = min((deadline_s for deadline_s in left if deadline_s is not None), default=math.inf)
        return due
