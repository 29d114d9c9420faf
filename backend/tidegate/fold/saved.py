"""What the last snapshot of a state holds, so that the next one writes only what changed since."""

from __future__ import annotations

from typing import Final

from .model import Session

GROUP_SESSIONS: Final = 16
"""Sessions that one part of a snapshot covers, by their number."""


class Saved:
    """Parts as they were last written.

    Attributes:
        ord: record after which the last snapshot was taken, 0 before the first.
        groups: groups of sessions, with the ordinals of the snapshots they were written with.
        stale: groups that lost a session since.
    """

    __slots__ = ("groups", "ord", "stale")

    def __init__(self) -> None:
        self.ord = 0
        self.groups: dict[int, int] = {}
        self.stale: set[int] = set()

    def dropped(self, session: Session) -> None:
        """A session left the state."""
        self.stale.add(session.no // GROUP_SESSIONS)
