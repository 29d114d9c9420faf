"""OFFLOAD: a session's blocks are held, copied to the host, and their places on the device given up.

While blocks are being copied, and wherever a copy is beside them, their state is ``device_and_host``; it is
``device_active`` while a request uses them, with or without a copy. A copy stays in the host tier after the session has
come back, until it is the least recently used one: the next OFFLOAD copies what is new only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate_collectors.engine.plugin import telling
from tidegate_collectors.engine.plugin.accounts import Accounts
from tidegate_collectors.engine.plugin.host_tier_side import Emptied, HostSide, Moved
from tidegate_collectors.engine.plugin.host_tier_view import HostView
from tidegate_collectors.engine.plugin.measuring import Measuring
from tidegate_collectors.engine.plugin.residency import Session
from tidegate_collectors.engine.plugin.sender import Sender
from tidegate_collectors.engine.plugin.turns import Turn
from tidegate_collectors.records import Capability, KvTransfer

HOW: str = "start vLLM with --kv-transfer-config, see docs/engine.md, Host tier"


@dataclass(slots=True, eq=False)
class Move:
    """Blocks of a session on their way; ``pending``: jobs that copy them, ``evicted``: who made room."""

    session: str
    blocks: list[Any]
    pending: set[int]
    job: int | None = None
    evicted: list[Any] = field(default_factory=list)
    decision_seq: int = -1


@dataclass(slots=True)
class _Owner:
    session: str
    decision_seq: int
    exposed_s: float = 0.0


class Offloading:
    """Of one engine.

    Args:
        host: the scheduler's side of the tier; None without one.
        engine: its name.
        accounts: of its sessions.
        measuring: learns what copies cost.
        turn_of: the turn of a request id, None for one of no session.
        missed: told of a turn, and of tokens that could not be brought to it.
        link: where records go.
    """

    def __init__(
        self, host: HostSide | None, engine: str, accounts: Accounts, measuring: Measuring,
        turn_of: Callable[[str], Turn | None], missed: Callable[[Turn, int], None], link: Callable[[], Sender],
    ) -> None:  # fmt: skip
        self._host = host
        self._engine = engine
        self._accounts = accounts
        self._measuring = measuring
        self._turn_of = turn_of
        self._missed = missed
        self._link = link
        self._moves: list[Move] = []
        self._owners: dict[int, _Owner] = {}
        self._stepped_s = time.monotonic()
        self._told_unable = self.unable()
        if host is not None:
            accounts.copied = host.table.has
            accounts.discard = host.table.forget

    def unable(self) -> str:
        """Why nothing can be offloaded; empty when something can."""
        if self._host is None:
            return f"no host tier: {HOW}"
        return self._host.unable

    def used_bytes(self) -> int | None:
        """Of the tier; None without one."""
        return None if self._host is None else self._host.used_bytes()

    def total_bytes(self) -> int | None:
        """Of the tier; None without one."""
        return None if self._host is None else self._host.total_bytes()

    def view(self, session: Session) -> HostView | None:
        """What a decision on a session has to know; None: nothing can be offloaded."""
        host = self._host
        if host is None or host.unable:
            return None
        table, size = host.table, host.block_tokens
        saved = sum(table.has(key) for key in session.prompt)
        return HostView(
            total_tokens=table.slots * size, free_tokens=(table.slots - table.used()) * size,
            ahead_tokens=max(0, table.used() - saved) * size,
            write_tokens_per_s=table.written_per_s(time.monotonic()) * size,
            unsaved_tokens=(len(session.prompt) - saved) * size, bytes_per_token=host.block_bytes / size,
        )  # fmt: skip

    # --- what is done --------------------------------------------------------------------------------------------

    def prepare(self, session: Session, blocks: Sequence[Any]) -> Move | None:
        """Hold blocks and have copied what is not in the tier yet; None, and nothing is done, without room for it."""
        host = self._host
        if host is None or host.unable or not blocks:
            return None
        table, keys = host.table, [block.block_hash for block in blocks]
        new = [(block.block_hash, block.block_id) for block in blocks if not table.has(block.block_hash)]
        new = [(key, number) for key, number in new if table.writer(key) is None]
        writers = {table.writer(key) for key in keys}
        move = Move(session.id, list(blocks), {job for job in writers if job is not None})
        if new:
            begun = host.store(new, keep=keys)
            if begun is None:
                return None
            move.job, move.evicted = begun
            move.pending.add(move.job)
        table.touch(keys)
        self._accounts.pool.hold(move.blocks)
        self._moves.append(move)
        return move

    def begin(self, session: Session, move: Move, decision_seq: int) -> None:
        """Tell of it, now that its decision has been told."""
        move.decision_seq = decision_seq
        if move.job is not None:
            self._owners[move.job] = _Owner(session.id, decision_seq)
        self._gave_up(move.evicted, "host_evicted", victim_of=session.id)
        keys = [block.block_hash for block in move.blocks]
        self._accounts.shift(session, keys, "device_and_host", "decision", decision_seq=decision_seq)
        if not move.pending:
            self._finish(move)

    def refused(self, session: Session, blocks: int, decision_seq: int) -> None:
        """There was no room; it was tried all the same."""
        self._link().send(
            KvTransfer(
                t=telling.now_us(), session=session.id, engine=self._engine, direction="out", ok=False,
                error=f"no room in the host tier for {blocks} blocks beside those that are being copied",
                decision_seq=decision_seq,
            )
        )  # fmt: skip

    def waits(self, now_s: float, *, blocked: bool) -> None:
        """A step was planned; ``blocked``: somebody waits, maybe for what is held here."""
        passed_s, self._stepped_s = now_s - self._stepped_s, now_s
        if blocked:
            for owner in self._owners.values():
                owner.exposed_s += passed_s

    def settle(self) -> None:
        """Whatever has ended by now is told, and has its consequences."""
        host = self._host
        if host is None:
            return
        for end in host.ends():
            if isinstance(end, Emptied):
                self._gave_up(end.keys, "reset")
            else:
                self._gave_up(end.lost, "failed")
                self._moved(end)
        if host.unable != self._told_unable:
            self._told_unable = host.unable
            self.release_all("failed")
            self._link().send(
                Capability(
                    t=telling.now_us(), plane="engine", name="engine.offload", available=False, reason=host.unable[:400]
                )
            )  # fmt: skip

    def release_all(self, cause: str) -> None:
        """Hold nothing any more; what is being copied is thrown away."""
        moves, self._moves = self._moves, []
        if self._host is not None:
            self._host.abandon_stores()
        for move in moves:
            self._accounts.pool.let(move.blocks)
            self._not_copied(move, cause)

    def drop_all(self) -> None:
        """Hold nothing any more, telling nobody: for when telling went wrong."""
        moves, self._moves = self._moves, []
        for move in moves:
            self._accounts.pool.let(move.blocks)
        if self._host is not None:
            self._host.abandon_stores()

    # --- what comes of it ----------------------------------------------------------------------------------------

    def _moved(self, end: Moved) -> None:
        owner = self._owners.pop(end.job, None)
        turn = self._turn_of(end.request) if end.request is not None else None
        waiting = None if turn is None else turn.waiting
        session = owner.session if owner is not None else turn.session if turn is not None else None
        waited_s = min(owner.exposed_s, end.copy_s) if owner is not None and not end.inline else end.waited_s
        if end.error is None and end.direction == "out":
            self._measuring.saved(end.size_bytes, end.copy_s, waited_s)
        elif end.error is None:
            self._measuring.restored(end.size_bytes, end.waited_s)
        elif turn is not None and end.direction == "in":
            self._missed(turn, end.blocks * self._accounts.block_tokens)
        self._link().send(
            KvTransfer(
                t=telling.now_us(), session=session, turn=None if turn is None else turn.id, engine=self._engine,
                direction=end.direction, bytes=end.size_bytes, blocks=end.blocks,
                tokens=end.blocks * self._accounts.block_tokens, duration_us=round(end.copy_s * 1e6),
                exposed_us=round(waited_s * 1e6), ok=end.error is None, error=end.error,
                decision_seq=owner.decision_seq if owner is not None else None if waiting is None else waiting.seq,
            )
        )  # fmt: skip
        if end.direction == "out":
            self._copied(end.keys)
            for move in [move for move in self._moves if end.job in move.pending]:
                move.pending.discard(end.job)
                if not move.pending:
                    self._finish(move)

    def _finish(self, move: Move) -> None:
        """All copies of a move have ended. Its session may have come back meanwhile: then its blocks stay."""
        self._moves.remove(move)
        accounts = self._accounts
        accounts.pool.let(move.blocks)
        session = accounts.table.get(move.session)
        if session is None:
            return
        self._not_copied(move, "failed")
        waits = not session.running and session.waiting is not None and session.waiting.seq == move.decision_seq
        if waits and all(accounts.copied(block.block_hash) for block in move.blocks):
            accounts.leaves_device(session, accounts.droppable(move.blocks), move.decision_seq)

    def _not_copied(self, move: Move, cause: str) -> None:
        session = self._accounts.table.get(move.session)
        if session is not None:
            keys = [block.block_hash for block in move.blocks]
            left = [
                key for key in keys
                if session.blocks.get(key) == "device_and_host" and not self._accounts.copied(key)
            ]  # fmt: skip
            self._accounts.shift(session, left, "device_cached", cause)

    def _copied(self, keys: Iterable[Any]) -> None:
        """Copies are there: also other sessions have them, of the blocks that they share."""
        for session, own in self._by_holder(keys):
            cached = [key for key in own if session.blocks.get(key) == "device_cached"]
            self._accounts.shift(session, cached, "device_and_host", "decision")

    def _gave_up(self, keys: Iterable[Any], cause: str, **more: Any) -> None:
        """Copies are there no more."""
        for session, own in self._by_holder(keys):
            both = [key for key in own if session.blocks.get(key) == "device_and_host"]
            self._accounts.shift(session, both, "device_cached", cause, **more)
            self._accounts.loses(session, [key for key in own if session.blocks.get(key) == "host"], cause, **more)

    def _by_holder(self, keys: Iterable[Any]) -> list[tuple[Session, list[Any]]]:
        found: dict[str, tuple[Session, list[Any]]] = {}
        for key in keys:
            for session in self._accounts.table.holders(key):
                found.setdefault(session.id, (session, []))[1].append(key)
        return list(found.values())
