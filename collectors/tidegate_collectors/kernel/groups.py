"""The cgroups of the sessions and calls of now: made, filled, and removed when they are empty.

Everything works without a tree too; then there are no groups, and nobody need ask.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidegate_collectors.kernel.cgroups import CgroupError, CgroupHandle, CgroupTree, SessionGroups

log = logging.getLogger(__name__)


class Groups:
    """Handles by session and call, above a :class:`.cgroups.CgroupTree` or none."""

    def __init__(self, tree: CgroupTree | None) -> None:
        self._tree = tree
        self._sessions: dict[str, SessionGroups] = {}
        self._calls: dict[tuple[str, str], CgroupHandle] = {}
        self._filled: set[tuple[str, str]] = set()
        self._to_remove: dict[str, list[CgroupHandle]] = {}

    @property
    def clearing(self) -> bool:
        """Whether groups wait for their last process to leave."""
        return bool(self._to_remove)

    def session(self, session: str) -> SessionGroups | None:
        """The groups of a session, where it has some."""
        return self._sessions.get(session)

    def call(self, session: str, call: str) -> CgroupHandle | None:
        """The group of a call, where it has one."""
        return self._calls.get((session, call))

    def filled_call(self, session: str, call: str) -> CgroupHandle | None:
        """The same, but only when a process of it arrived there: otherwise its counters say nothing."""
        return self.call(session, call) if (session, call) in self._filled else None

    def add_session(self, session: str, pid: int) -> SessionGroups | None:
        """Make a session's groups and put its root process into the runtime.

        Raises:
            CgroupError: see :meth:`.cgroups.CgroupTree.add_session`.
        """
        if self._tree is None:
            return None
        groups = self._tree.add_session(session)
        for handle in self._to_remove.pop(session, ()):  # the same directories, in use again
            handle.close()
        self._sessions[session] = groups
        self._tree.remember_home(session, pid)
        try:
            groups.runtime.move(pid)
        except CgroupError:
            self.drop_session(session)
            raise
        return groups

    def add_call(self, session: str, call: str) -> CgroupHandle | None:
        """Make a call's group; ``None`` where that does not work."""
        if self._tree is None or session not in self._sessions:
            return None
        try:
            handle = self._calls[session, call] = self._tree.add_call(session, call)
        except CgroupError as error:
            log.warning("call %s of session %s has no cgroup: %s", call, session, error)
            return None
        return handle

    def move(self, session: str, call: str, pids: Iterable[int]) -> None:
        """Put processes into a call's group; those that are gone are passed over."""
        handle = self.call(session, call)
        for pid in pids if handle is not None else ():
            try:
                if handle is not None and handle.move(pid):
                    self._filled.add((session, call))
            except CgroupError as error:
                log.warning("%s", error)

    def drop_call(self, session: str, call: str) -> None:
        """Remove a call's group, now or when its last process has left it."""
        self._filled.discard((session, call))
        handle = self._calls.pop((session, call), None)
        if handle is not None and not handle.remove():
            self._to_remove.setdefault(session, []).append(handle)

    def drop_session(self, session: str) -> None:
        """Remove a session's groups, now or when the last process has left them."""
        groups = self._sessions.pop(session, None)
        if groups is not None:
            groups.runtime.close()
            self._to_remove.setdefault(session, []).append(groups.session)
            self.remove_emptied()

    def remove_emptied(self) -> None:
        """Remove what is empty by now: an exiting process leaves its group some time after its exit event."""
        for session, handles in list(self._to_remove.items()):
            left = [handle for handle in handles if not self._remove(session, handle)]
            if left:
                self._to_remove[session] = left
            else:
                del self._to_remove[session]

    def close(self) -> None:
        """Remove all groups; living processes go back to where their sessions came from."""
        if self._tree is None:
            return
        if stays := self._tree.give_back():
            shown = ", ".join(f"{item.directory} (processes {list(item.pids)}: {item.reason})" for item in stays[:8])
            more = f" and {len(stays) - 8} more" if len(stays) > 8 else ""
            log.warning("groups that stay: %s%s; the next start removes those that are empty by then", shown, more)
        self._tree.close()

    def _remove(self, session: str, handle: CgroupHandle) -> bool:
        if self._tree is None or handle.path != session:
            return handle.remove()
        if not self._tree.remove_session(session):
            return False
        handle.close()
        return True
