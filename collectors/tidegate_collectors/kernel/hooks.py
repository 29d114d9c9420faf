"""What the hooks of all sessions' agents tell. Pure; see :mod:`.hook_match` for what is made of it."""

from __future__ import annotations

from tidegate_collectors.kernel.agent_protocol import Hook
from tidegate_collectors.kernel.hook_match import HookMatcher
from tidegate_collectors.kernel.tracker import Tracker
from tidegate_collectors.kernel.tracker_model import Call, Session, TrackerError
from tidegate_collectors.records import Note, Record

_NOTES = {
    "permission": "the agent asks its user for permission",
    "waiting": "the agent waits for its user",
    "other": "the agent notifies its user",
}


class Hooks:
    """One matcher for each session whose agent has hooks; the others cost nothing."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._matchers: dict[str, HookMatcher] = {}

    def take(self, session: Session, pid: int, hook: Hook, t_us: int) -> list[Record]:
        """A hook, process ``pid`` of this session, has spoken.

        Raises:
            TrackerError: the session is over.
        """
        if session.ended:
            raise TrackerError(f"session {session.id} has ended")
        started_us = self._tracker.note_hook(pid, t_us)
        if hook.event == "other":
            return []
        if hook.event == "notification":
            return [Note(t=t_us, session=session.id, text=_NOTES[hook.about], by="hook")]
        matcher = self._matchers.get(session.id)
        if matcher is None:
            matcher = self._matchers[session.id] = HookMatcher(
                session.id, self._tracker.naming, lambda: self._tracker.new_call_id(session)
            )
        return matcher.take(hook, t_us, started_us)

    def call_began(self, call: Call) -> list[Record]:
        """A call was announced."""
        matcher = self._matchers.get(call.session.id)
        return matcher.call_began(call.id, call.t_us, call.argv, call.within) if matcher is not None else []

    def call_ended(self, call: Call) -> None:
        """A call's first process is gone."""
        if (matcher := self._matchers.get(call.session.id)) is not None:
            matcher.call_ended(call.id, call.end_us)

    def due(self, now_us: int) -> list[Record]:
        """What waited long enough."""
        return [record for matcher in self._matchers.values() for record in matcher.due(now_us)]

    def announce(self) -> list[Record]:
        """What is open, for a run that begins in the middle."""
        return [record for matcher in self._matchers.values() for record in matcher.announce()]

    def close(self, session: str, t_us: int) -> list[Record]:
        """A session is over, or its collector; comes before its ``session.end``."""
        matcher = self._matchers.pop(session, None)
        return matcher.close(t_us) if matcher is not None else []
