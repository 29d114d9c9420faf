"""A decision as a record, with what can really be done of it; and doing that."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate_collectors.engine.fitting import Calibration
from tidegate_collectors.engine.plugin import telling, turns
from tidegate_collectors.engine.plugin.accounts import Accounts
from tidegate_collectors.engine.plugin.deciding import Decider
from tidegate_collectors.engine.plugin.host_tier_offload import Move, Offloading
from tidegate_collectors.engine.plugin.residency import Session, Waiting
from tidegate_collectors.engine.plugin.turns import Turn
from tidegate_collectors.records import KvDecision


class Enforcer:
    """Of one engine.

    Args:
        engine: its name.
        accounts: of its sessions.
        decider: decides.
        offloading: moves blocks to the host.
    """

    def __init__(self, engine: str, accounts: Accounts, decider: Decider, offloading: Offloading) -> None:
        self._engine = engine
        self._accounts = accounts
        self._decider = decider
        self._offloading = offloading
        self._chosen: list[Any] = []
        self._move: Move | None = None

    def decide(
        self, session: Session, turn: Turn, tool: str | None, now_s: float, queue: telling.Queue,
        calibration: Calibration, *, enforces: bool,
    ) -> KvDecision:  # fmt: skip
        """The decision on a session whose turn has just ended, to be sent, and then to be enforced."""
        accounts, pins = self._accounts, self._accounts.pins
        extra = turns.extra_of(turn.request)
        host = self._offloading.view(session)
        taken = self._decider.decide(session, tool, extra, accounts.pool, pins.room(), queue, calibration, host)
        blocks = accounts.resident(session)
        self._chosen = []
        if enforces and taken.action == "PIN":
            self._chosen = blocks[: pins.room()]
        elif enforces and taken.action == "DROP":
            self._chosen = accounts.droppable(blocks)
        elif enforces and taken.action == "OFFLOAD":
            self._move = self._offloading.prepare(session, blocks)
            self._chosen = blocks if self._move is not None else []
        acts = taken.action != "KEEP"
        record = KvDecision(
            t=telling.now_us(), session=session.id, turn=turn.id, engine=self._engine, boundary=taken.inputs.boundary,
            action=taken.action, enforced=bool(self._chosen) if acts else enforces, blocks=len(blocks),
            done_blocks=len(self._chosen) if acts and enforces else None, tool=tool,
            inputs=msgspec.to_builtins(taken.inputs), costs=taken.costs, margin_s=taken.margin_s, ttl_s=taken.ttl_s,
            predicted=taken.predicted, rule=taken.inputs.rule, rule_action=taken.rule_action,
            overridden_by=taken.overridden_by,
        )  # fmt: skip
        self._waiting = Waiting(
            -1, taken.action, taken.inputs, taken.inputs.boundary, tool or "", now_s, taken.reach_s
        )  # fmt: skip
        return record

    def enforce(self, session: Session, record: KvDecision, now_s: float) -> None:
        """Do what was decided; ``record`` was sent, so its seq is known. The session waits under it."""
        self._waiting.seq = record.seq
        session.waiting = self._waiting
        blocks, self._chosen = self._chosen, []
        move, self._move = self._move, None
        if not blocks:
            if record.action == "OFFLOAD" and record.done_blocks is not None and record.blocks:
                self._offloading.refused(session, record.blocks, record.seq)
            return
        if record.action == "PIN" and record.ttl_s:
            self._accounts.pin(session, blocks, record.ttl_s, now_s, record.seq)
        elif record.action == "DROP":
            self._accounts.drop(session, blocks, record.seq)
        elif record.action == "OFFLOAD" and move is not None:
            self._offloading.begin(session, move, record.seq)
