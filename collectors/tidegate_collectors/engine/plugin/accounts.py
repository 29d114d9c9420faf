"""The accounts of sessions: what their requests take, make and leave, and what is evicted, held and dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tidegate_collectors.engine.plugin import telling
from tidegate_collectors.engine.plugin.pins import Pins
from tidegate_collectors.engine.plugin.pool import PoolWatch
from tidegate_collectors.engine.plugin.residency import Residency, Session
from tidegate_collectors.engine.plugin.sender import Sender
from tidegate_collectors.engine.plugin.turns import Turn
from tidegate_collectors.records import KvState


class Accounts:
    """Of one engine. Only the engine's thread calls it.

    Args:
        scheduler: vLLM's, built.
        most: sessions that are remembered.
        pin_cap: share of the pool that pins may hold.
        engine: its name.
        link: where transitions go.
        turn_of: the turn of a request id, None for one of no session.

    Attributes:
        copied: whether the host tier has a copy of a key's block.
        discard: gives copies up.
    """

    def __init__(
        self, scheduler: Any, *, most: int, pin_cap: float, engine: str, link: Callable[[], Sender],
        turn_of: Callable[[str], Turn | None],
    ) -> None:  # fmt: skip
        self._manager = scheduler.kv_cache_manager
        self._engine = engine
        self._link = link
        self._turn_of = turn_of
        self.block_tokens = int(scheduler.block_size)
        self.table = Residency(most)
        self.pool = PoolWatch(scheduler, self._evicted, time.monotonic)
        self.pins = Pins(self.pool, pin_cap)
        self._evictions: dict[tuple[str, str | None], set[Any]] = {}
        self.copied: Callable[[Any], bool] = lambda _: False
        self.discard: Callable[[Iterable[Any]], object] = lambda _: None

    # --- what requests do ----------------------------------------------------------------------------------------

    def begins(self, session: Session, turn: Turn, cached_tokens: int, host_tokens: int = 0) -> None:
        """A request of the session was scheduled for the first time, or again: its cached blocks are active.

        Args:
            session: whose it is.
            turn: its turn.
            cached_tokens: of its prompt, those that were there.
            host_tokens: of them, the last ones, which came from the host.
        """
        self.settle()
        keys = self._keys(turn.request)
        found = keys[: cached_tokens // self.block_tokens]
        released = self.pins.release(session)
        device = len(found) - host_tokens // self.block_tokens
        restored = [key for i, key in enumerate(found) if i >= device or session.blocks.get(key) == "host"]
        self.shift(session, restored, "device_active", "restored")
        self.shift(session, found, "device_active", "admitted")
        left = [key for key in released if session.blocks.get(key) == "device_pinned"]
        self._rests(session, left, "admitted")
        turn.counted = len(found)
        self.grows(session, turn)

    def grows(self, session: Session, turn: Turn) -> None:
        """What a running request has computed since is active, too."""
        keys = self._keys(turn.request)
        self.shift(session, keys[turn.counted :], "device_active", "computed")
        turn.counted = len(keys)

    def leaves(self, session: Session, keys: Sequence[Any], cause: str, *, others: Iterable[Turn] = ()) -> None:
        """A request gave its blocks back.

        Args:
            session: whose it was.
            keys: of its blocks.
            cause: finished, aborted or preemption.
            others: turns of the session that still run, and keep what they have.
        """
        self.settle()
        kept: set[Any] = set()
        for turn in others:
            kept.update(self._keys(turn.request))
        own = [key for key in dict.fromkeys(keys) if key not in kept and session.blocks.get(key) == "device_active"]
        self._rests(session, own, cause)

    def _rests(self, session: Session, keys: Sequence[Any], cause: str) -> None:
        """Blocks are left to the LRU order."""
        self.shift(session, [key for key in keys if self.copied(key)], "device_and_host", cause)
        self.shift(session, [key for key in keys if not self.copied(key)], "device_cached", cause)

    def settles_at(self, session: Session, keys: Sequence[Any]) -> None:
        """The last running turn of the session left these: what it had beside them it will not ask for again."""
        session.prompt = list(dict.fromkeys(keys))
        wanted = set(session.prompt)
        old = [key for key in session.blocks if key not in wanted]
        self.shift(session, old, "gone", "superseded")
        session.lost.clear()
        session.evicted_s = None

    def keys_of(self, request: Any) -> list[Any]:
        """Keys of the full blocks that a request has now."""
        return self._keys(request)

    def _keys(self, request: Any) -> list[Any]:
        groups = self._manager.get_blocks(request.request_id).blocks
        keys: list[Any] = []
        for block in groups[0] if groups else ():
            if block.block_hash is None:
                if not block.is_null:
                    break
                continue
            keys.append(block.block_hash)
        return keys

    # --- evictions -----------------------------------------------------------------------------------------------

    def _evicted(self, key: Any, taker: str | None) -> None:
        turn = self._turn_of(taker) if taker is not None else None
        victim_of = None if turn is None else turn.session
        for session in self.table.holders(key):
            self._evictions.setdefault((session.id, victim_of), set()).add(key)

    def settle(self) -> None:
        """Tell of the evictions so far; a block that was computed again meanwhile is there."""
        if not self._evictions:
            return
        evictions, self._evictions = self._evictions, {}
        for (name, victim_of), keys in evictions.items():
            session = self.table.get(name)
            if session is not None:
                gone = [key for key in keys if key in session.blocks and not self.pool.has(key)]
                self.loses(session, gone, "lru", victim_of=victim_of)

    def loses(self, session: Session, keys: Sequence[Any], cause: str, **more: Any) -> None:
        """Blocks of the session left the device: gone, but for copies in the host tier."""
        if not keys:
            return
        copied = [key for key in keys if session.blocks.get(key, "host") != "host" and self.copied(key)]
        self.shift(session, copied, "host", cause, **more)
        rest = [key for key in keys if key in session.blocks and not self.copied(key)]
        if rest:
            session.evicted_s = session.evicted_s or time.monotonic()
        self.shift(session, rest, "gone", cause, lost=True, **more)

    def was_reset(self) -> None:
        """The prefix cache was emptied: whatever cannot be found any more is gone."""
        self.settle()
        for session in self.table:
            lost = [
                key for key, state in session.blocks.items()
                if state in ("device_cached", "device_pinned", "device_and_host") and not self.pool.has(key)
            ]  # fmt: skip
            self.loses(session, lost, "reset")

    def forgets(self, session: Session) -> None:
        """The table is full, or the engine ends: what is known of the session is given up."""
        self.settle()
        self.pins.release(session)
        self.shift(session, list(session.blocks), "gone", "forgotten")
        self.table.forget(session)

    # --- what is done --------------------------------------------------------------------------------------------

    def resident(self, session: Session) -> list[Any]:
        """Blocks of the session that can be found, from the beginning of its prompt to the first that is not there."""
        return self.pool.resident(session.prompt)

    def droppable(self, blocks: Sequence[Any]) -> list[Any]:
        """Those that no other session has, and nobody holds."""
        return [block for block in blocks if block.ref_cnt == 0 and not self.table.shared_with_others(block.block_hash)]

    def pin(self, session: Session, blocks: Sequence[Any], ttl_s: float, now_s: float, decision_seq: int) -> None:
        """Hold blocks, as many as there is room for."""
        held = self.pins.hold(session, list(blocks), now_s + ttl_s)
        until_us = telling.now_us() + round(ttl_s * 1e6)
        keys = [block.block_hash for block in held]
        self.shift(session, keys, "device_pinned", "decision", decision_seq=decision_seq, until_us=until_us)

    def drop(self, session: Session, blocks: Sequence[Any], decision_seq: int) -> None:
        """Evict blocks at once, and their copies."""
        self.discard([block.block_hash for block in blocks])
        self.leaves_device(session, blocks, decision_seq)

    def leaves_device(self, session: Session, blocks: Sequence[Any], decision_seq: int) -> None:
        """Evict blocks at once; those with a copy in the host tier are there still."""
        self.loses(session, self.pool.drop(list(blocks)), "decision", decision_seq=decision_seq)

    def unpin(self, session: Session, cause: str) -> None:
        """Give the session's pinned blocks back to the LRU order."""
        keys = self.pins.release(session)
        self._rests(session, [key for key in keys if session.blocks.get(key) == "device_pinned"], cause)

    def relieve(self, needed: int | None) -> None:
        """Nothing runs, and a request that needs so many blocks could: where we hold them, the oldest pin goes.

        Args:
            needed: None when there is no such request.
        """
        session = self.pins.oldest()
        if session is not None and needed is not None and needed > self.pool.free_blocks():
            self.unpin(session, "pressure")

    def unpin_due(self, now_s: float) -> bool:
        """Give back what has run out; whether there was any."""
        due = self.pins.due(now_s)
        for session in due:
            self.unpin(session, "ttl")
        return bool(due)

    def unpin_all(self, cause: str) -> None:
        """Give all pins back."""
        for session in self.pins.sessions():
            self.unpin(session, cause)

    def shift(
        self, session: Session, keys: Iterable[Any], to: KvState, cause: str, *, lost: bool = False, **more: Any
    ) -> None:
        """Bring blocks of a session into a state, and tell it; ``more`` are fields of the transitions."""
        for from_, group in self.table.by_state(session, keys, to).items():
            self.table.move(session, group, from_, to, lost=lost)
            # To count the shared ones takes a look at every block, which is too much for each step of an answer.
            shared = None if cause == "computed" else self.table.shared(session)
            self._link().send(
                telling.transition(
                    self._engine, session, from_, to, len(group), cause, self.block_tokens,
                    residency=session.residency(), shared_blocks=shared, **more,
                )
            )  # fmt: skip
