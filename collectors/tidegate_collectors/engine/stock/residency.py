"""Where blocks are, as KV events tell it. Pure, and bounded.

A block is its hash and its group. It counts for the session whose request stored it first while it is anywhere: events
name no owner, and say nothing of who uses it. Two requests that compute the same block at once have a copy each; it is
on the device until the last one is removed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidegate_collectors.engine.stock.events import Cleared, Event, Hash, Removed, Stored
from tidegate_collectors.records import KvState

MAX_BLOCKS: Final = 1 << 19
"""Some 150 MB."""

MAX_GONE: Final = 1 << 17
MAX_SESSIONS: Final = 4096

Key: TypeAlias = tuple[Hash, int]
Changes: TypeAlias = dict[tuple[str, KvState, KvState, str], int]


@dataclass(frozen=True, slots=True)
class Change:
    """``blocks`` of a session changed their state. ``cause`` is one of ``KvTransition``'s."""

    session: str
    from_: KvState
    to: KvState
    cause: str
    blocks: int


@dataclass(slots=True)
class _Block:
    session: str | None
    copies: int = 0  # on the device
    host: bool = False

    @property
    def state(self) -> KvState:
        if self.copies:
            return "device_and_host" if self.host else "device_cached"
        return "host" if self.host else "gone"


class Residency:
    """The table. ``complete``: it knows of every block, because it has seen all events since the engine began."""

    def __init__(
        self, max_blocks: int = MAX_BLOCKS, max_gone: int = MAX_GONE, max_sessions: int = MAX_SESSIONS
    ) -> None:
        self._max_blocks, self._max_gone, self._max_sessions = max_blocks, max_gone, max_sessions
        self._blocks: OrderedDict[Key, _Block] = OrderedDict()
        self._gone: OrderedDict[Key, str] = OrderedDict()
        self._sessions: OrderedDict[str, dict[KvState, int]] = OrderedDict()
        self.device_blocks = 0
        self.host_blocks = 0
        self.block_tokens: int | None = None
        self.complete = False

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def sessions(self) -> tuple[str, ...]:
        """Sessions that are known, the one that was not heard of for longest first."""
        return tuple(self._sessions)

    def of(self, session: str) -> dict[str, int]:
        """Blocks of the session by state; ``gone``: had before and are nowhere, as far as that is remembered."""
        return {state: count for state, count in self._sessions.get(session, {}).items() if count > 0}

    def apply(self, events: tuple[Event, ...]) -> list[Change]:
        """Take events in; returns what changed for sessions, alike changes added up, in the order of the events."""
        changes: Changes = {}
        for event in events:
            if isinstance(event, Stored):
                self._stored(event, changes)
            elif isinstance(event, Removed):
                self._removed(event, changes)
            elif isinstance(event, Cleared):
                self._cleared(changes)
        return [Change(*key, blocks) for key, blocks in changes.items()]

    def forget(self) -> list[Change]:
        """Events were lost, so that nothing that is known here need be true any more."""
        found = [
            Change(session, state, "gone", "forgotten", count)
            for session, states in self._sessions.items()
            for state, count in states.items()
            if count > 0 and state != "gone"
        ]
        self.clear()
        return found

    def clear(self) -> None:
        """Begin anew, knowing nothing."""
        self._blocks.clear()
        self._gone.clear()
        self._sessions.clear()
        self.device_blocks = self.host_blocks = 0
        self.block_tokens = None
        self.complete = False

    # --- events ------------------------------------------------------------------------------------------------------

    def _stored(self, event: Stored, changes: Changes) -> None:
        host = event.medium != "GPU"
        if not host:
            self.block_tokens = event.block_tokens
        for hash_ in event.hashes:
            key = (hash_, event.group)
            block = self._blocks.get(key)
            if block is None:
                self._forget_gone(key)
                block = self._blocks[key] = _Block(event.session)
                if event.session is not None:
                    self._session(event.session, changes)
            before = block.state
            if host:
                self.host_blocks += not block.host
                block.host = True
            else:
                block.copies += 1
                self.device_blocks += 1
            self._note(block.session, before, block.state, "restored" if before == "host" else "computed", changes)
        while len(self._blocks) > self._max_blocks:
            self._drop_oldest(changes)

    def _removed(self, event: Removed, changes: Changes) -> None:
        host = event.medium != "GPU"
        for hash_ in event.hashes:
            key = (hash_, event.group)
            block = self._blocks.get(key)
            if block is None:
                continue  # it was stored before we listened
            before = block.state
            if host:
                self.host_blocks -= block.host
                block.host = False
            elif block.copies:
                block.copies -= 1
                self.device_blocks -= 1
            self._left(key, block, before, "host_evicted" if host else "lru", changes)

    def _cleared(self, changes: Changes) -> None:
        for key, block in list(self._blocks.items()):
            if block.copies:
                before = block.state
                self.device_blocks -= block.copies
                block.copies = 0
                self._left(key, block, before, "reset", changes)

    # --- books -------------------------------------------------------------------------------------------------------

    def _left(
        self, key: Key, block: _Block, before: KvState, cause: str,
        changes: Changes,
    ) -> None:  # fmt: skip
        after = block.state
        self._note(block.session, before, after, cause, changes)
        if after != "gone":
            return
        del self._blocks[key]
        if block.session is not None and before != "gone" and block.session in self._sessions:
            self._gone[key] = block.session
            while len(self._gone) > self._max_gone:
                self._forget_gone(next(iter(self._gone)))

    def _note(
        self, session: str | None, before: KvState, after: KvState, cause: str,
        changes: Changes,
    ) -> None:  # fmt: skip
        if session is None or before == after:
            return
        states = self._sessions.get(session)
        if states is None or (before != "gone" and not states.get(before)):
            return  # given up, or was when the block was stored
        if before != "gone":  # one that comes back has left those that are gone already
            states[before] -= 1
        states[after] = states.get(after, 0) + 1
        self._sessions.move_to_end(session)
        key = (session, before, after, cause)
        changes[key] = changes.get(key, 0) + 1

    def _session(self, session: str, changes: Changes) -> None:
        self._sessions.setdefault(session, {})
        self._sessions.move_to_end(session)
        while len(self._sessions) > self._max_sessions:
            oldest, states = self._sessions.popitem(last=False)  # its blocks still count in the pool
            for state, count in states.items():
                if count > 0 and state != "gone":
                    key: tuple[str, KvState, KvState, str] = (oldest, state, "gone", "forgotten")
                    changes[key] = changes.get(key, 0) + count

    def _forget_gone(self, key: Key) -> None:
        session = self._gone.pop(key, None)
        states = self._sessions.get(session) if session is not None else None
        if states and states.get("gone"):
            states["gone"] -= 1

    def _drop_oldest(self, changes: Changes) -> None:
        key, block = next(iter(self._blocks.items()))
        before = block.state
        self.device_blocks -= block.copies
        self.host_blocks -= block.host
        block.copies, block.host = 0, False
        self._left(key, block, before, "forgotten", changes)
        self.complete = False
