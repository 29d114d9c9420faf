"""What happens in the engine, decided and told: the plugin's centre. Only the engine's own thread calls it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tidegate_collectors import __version__
from tidegate_collectors.engine.plugin import sender, telling, tools, turns
from tidegate_collectors.engine.plugin.deciding import Decider
from tidegate_collectors.engine.plugin.measuring import Measuring
from tidegate_collectors.engine.plugin.pins import Pins
from tidegate_collectors.engine.plugin.pool import PoolWatch
from tidegate_collectors.engine.plugin.residency import Residency, Session, Waiting
from tidegate_collectors.engine.plugin.settings import SettingError, Settings, from_environment
from tidegate_collectors.engine.plugin.turns import Turn
from tidegate_collectors.records import Capability, EngineMode, KvDecision, Note

log = logging.getLogger("vllm.tidegate")

_FAULTS_TO_OFF: Final = 3
_SAMPLE_S: Final = 1.0
_IDLE_SAMPLE_S: Final = 0.25
"""The last sample before the engine is idle comes sooner: nothing would say for a long time that it is."""


def attach(scheduler: Any, settings: Settings | None = None, link: sender.Sender | None = None) -> Plane | None:
    """The plane of a scheduler; None, with the reason in the log, when it cannot be. Never raises."""
    try:
        return Plane(scheduler, settings or from_environment(), link)
    except SettingError as error:
        log.error("tidegate: the plugin does not start, the engine runs as without it: %s", error)
    except Exception:
        log.exception("tidegate: the plugin does not start, the engine runs as without it")
    return None


class Plane:
    """One engine's plane.

    Args:
        scheduler: vLLM's scheduler, built.
        settings: of the plugin.
        link: where records go; by default the backend of this machine.

    Attributes:
        mode: what is done; a fault of ours lowers it.
        closed: set when the engine shuts down.
    """

    def __init__(self, scheduler: Any, settings: Settings, link: sender.Sender | None) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self.mode = settings.mode
        self.closed = threading.Event()
        self._faults = 0
        self._reason = _unable(scheduler)
        if self._reason:
            self.mode = "off"
        self.table = Residency(settings.sessions)
        self.pool = PoolWatch(scheduler, self._evicted, time.monotonic)
        self.pins = Pins(self.pool, settings.pin_cap)
        self.block_tokens = int(scheduler.block_size)
        overlapping = bool(getattr(scheduler.scheduler_config, "async_scheduling", False))
        self.measuring = Measuring(telling.kv_bytes_per_token(scheduler), overlapping=overlapping)
        self.decider = Decider(settings, self.block_tokens)
        self._turns: dict[str, Turn] = {}
        self._unanswered: set[str] = set()
        self._freeing: list[Any] = []
        self._evictions: dict[tuple[str, str | None], int] = {}
        self._totals = telling.Totals()
        self._sampled_s = 0.0
        self._stepped = False
        self._link: sender.Sender
        if link is None:
            self._link = client = sender.connect(__version__, lambda _: self._introduce())
            client.start()  # its thread calls us, who must be complete by then
        else:
            self._link = link
            self._introduce()

    # --- faults and time ---------------------------------------------------------------------------------------------

    def guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call one of our hooks. A fault in it lowers the mode and is told; the engine goes on."""
        began_ns = time.perf_counter_ns()
        try:
            call(*arguments)
        except Exception as error:
            self._fault(call.__name__, error)
        self._totals.own_us += (time.perf_counter_ns() - began_ns) / 1000

    def _fault(self, where: str, error: Exception) -> None:
        log.exception("tidegate: a fault in the plugin (%s); the engine goes on", where)
        self._faults += 1
        mode = "off" if self._faults >= _FAULTS_TO_OFF else "observe"
        if mode == self.mode or self.mode == "off":
            return
        self.mode = mode  # type: ignore[assignment]
        try:
            self.pins.release_all()
            reason = f"a fault in {where}: {type(error).__name__}; the engine's log has more"
            self._link.send(EngineMode(t=_now_us(), engine=self._settings.name, mode=self.mode, reason=reason))
        except Exception:
            log.exception("tidegate: and another one while it was told")

    def wants_tick(self) -> bool:
        """Whether something is due while the engine may be idle. Called from the timer's thread: reads only."""
        return self._stepped or time.monotonic() > self.pins.next_s

    def tick(self) -> None:
        """What is due by now, in the engine's thread."""
        self.guarded(self.before_step)
        self.guarded(self._sample_if_due)

    # --- hooks -------------------------------------------------------------------------------------------------------

    def arrived(self, request: Any) -> None:
        """A request came."""
        name = turns.session_of(request)
        if name is None or self.mode == "off" or request.request_id in self._turns:
            return
        session, forgotten = self.table.touch(name)
        if forgotten is not None:
            self._forget(forgotten)
        session.running += 1
        now_s = time.monotonic()
        turn = Turn(request, name, turns.turn_id(request.request_id), now_s)
        if session.running == 1 and session.waiting is not None:
            turn.waiting, session.waiting = session.waiting, None
            self.decider.came_back(turn.waiting, now_s)
        self._turns[request.request_id] = turn
        self._link.send(telling.turn_start(turn))

    def before_step(self) -> None:
        """Pins that have run out are released."""
        for session, blocks in self.pins.release_due(time.monotonic()):
            self._change(session, "device_pinned", "device_cached", blocks, "ttl")
            self._stepped = True  # the pool has changed: the next sample says so, also in an idle engine

    def after_schedule(self, output: Any) -> None:
        """A step was planned: requests that begin in it have their cached tokens."""
        now_s = time.monotonic()
        self._stepped = True
        self._totals.steps += 1
        for new in output.scheduled_new_reqs:
            turn = self._turns.get(new.req_id)
            if turn is not None and turn.began_s is None:
                self._begin(turn, now_s, int(new.num_computed_tokens))
        self.measuring.planned(output, now_s)
        if not output.total_num_scheduled_tokens and not self._scheduler.running:
            self._relieve()

    def after_output(self) -> None:
        """A step is over."""
        now_s = time.monotonic()
        self.measuring.over(now_s)
        for name in list(self._unanswered):
            turn = self._turns.get(name)
            if turn is None:
                self._unanswered.discard(name)
            elif turn.request.num_output_tokens > 0:
                self._unanswered.discard(name)
                self._answers(turn, now_s)
        self._tell_evictions()
        self._sample_if_due()

    def before_free(self, request: Any) -> None:
        """A request has ended: what its blocks are, while it still has them."""
        self._freeing = []
        if request.request_id in self._turns:
            groups = self._scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
            self._freeing = [block.block_hash for block in groups[0] if block.block_hash is not None] if groups else []

    def finished(self, request: Any) -> None:
        """Its blocks are free; the session waits, and what becomes of them is decided."""
        turn = self._turns.pop(request.request_id, None)
        self._unanswered.discard(request.request_id)
        if turn is None:
            return
        session, _ = self.table.touch(turn.session)
        session.running = max(0, session.running - 1)
        now_s = time.monotonic()
        aborted = str(getattr(request.status, "name", "")).endswith("ABORTED")
        tool = None
        if not aborted:
            tool = tools.named(turns.extra_of(request)) or tools.recognised(self._tokenizer(), request.output_token_ids)
        self._totals.finished(turn)
        self._link.send(telling.turn_end(turn, now_s, tool))
        if turn.began_s is None:  # it touched nothing: the session waits as before
            session.waiting = session.waiting or turn.waiting
            self.pins.remind(session)
            return
        if turn.waiting is not None:  # it never answered
            self._outcome(turn)
        self.table.left(session, self._freeing)
        self._change(
            session, "device_active", "device_cached", len(session.hashes), "aborted" if aborted else "finished"
        )
        if session.running == 0:
            self._decide(session, turn, tool, now_s)

    def before_reset(self) -> None:
        """The prefix cache is about to be emptied: held blocks would make it fail."""
        for session, blocks in self.pins.release_all():
            self._change(session, "device_pinned", "device_cached", blocks, "reset")

    def after_reset(self) -> None:
        """Whatever cannot be found any more is gone."""
        for session in self.table:
            found = len(self.pool.resident(session))
            lost = [key for key in session.hashes[found:] if key not in session.gone]
            if lost:
                session.gone.update(lost)
                session.evicted_s = session.evicted_s or time.monotonic()
                self._change(session, "device_cached", "gone", len(lost), "reset")

    def close(self) -> None:
        """The engine shuts down."""
        if self.closed.is_set():
            return
        self.closed.set()
        try:
            self.pins.release_all()
            self._link.send(telling.engine_end(self._settings.name))
            self._link.close()
        except Exception:
            log.exception("tidegate: a fault while the plugin ended")

    # --- a turn ------------------------------------------------------------------------------------------------------

    def _begin(self, turn: Turn, now_s: float, cached: int) -> None:
        turn.began_s = now_s
        request = turn.request
        session, _ = self.table.touch(turn.session)
        prefill = getattr(request, "prefill_stats", None)
        turn.cached_host_tokens = min(cached, int(getattr(prefill, "num_external_cached_tokens", 0) or 0))
        turn.cached_device_tokens = cached - turn.cached_host_tokens
        known = telling.common_blocks(session.hashes, request.block_hashes)
        had = min(known * self.block_tokens, max(0, request.num_prompt_tokens - 1))
        turn.recomputed_tokens = max(0, had - cached)
        self.decider.queued(turn, request.num_prompt_tokens)
        self._unanswered.add(request.request_id)
        if session.pinned:
            self.pins.release(session)
        if session.hashes:
            blocks = len(session.hashes) - len(session.gone)
            if blocks:
                self._change(session, "device_cached", "device_active", blocks, "admitted")

    def _answers(self, turn: Turn, now_s: float) -> None:
        turn.first_s = now_s
        self._link.send(telling.turn_first_token(turn))
        if turn.waiting is not None:
            self._outcome(turn)

    def _outcome(self, turn: Turn) -> None:
        waiting, turn.waiting = turn.waiting, None
        session, _ = self.table.touch(turn.session)
        self._link.send(telling.outcome(self._settings.name, turn, waiting, session.evicted_s))

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _decide(self, session: Session, turn: Turn, tool: str | None, now_s: float) -> None:
        extra = turns.extra_of(turn.request)
        queue = telling.queue_of(self._scheduler)
        taken = self.decider.decide(session, tool, extra, self.pool, self.pins.room(), queue, self.measuring.fitted())
        enforced = self.mode == "enforce" and taken.action in ("PIN", "DROP", "KEEP")
        blocks = self.pool.resident(session)
        action = taken.action
        record = KvDecision(
            t=_now_us(), session=session.id, turn=turn.id, engine=self._settings.name, boundary=taken.inputs.boundary,
            action=action, enforced=enforced, blocks=len(blocks), tool=tool,
            inputs=msgspec.to_builtins(taken.inputs), costs=taken.costs, margin_s=taken.margin_s, ttl_s=taken.ttl_s,
            predicted=taken.predicted, rule=taken.inputs.rule, overridden_by=taken.overridden_by,
        )  # fmt: skip
        self._link.send(record)
        session.waiting = Waiting(
            record.seq, action, taken.inputs, taken.inputs.boundary, tool or "", now_s, taken.reach_s
        )  # fmt: skip
        if enforced and action == "PIN" and taken.ttl_s:
            self._pin(session, blocks, taken.ttl_s, now_s, record.seq)
        elif enforced and action == "DROP":
            self._drop(session, blocks, record.seq)

    def _pin(self, session: Session, blocks: list[Any], ttl_s: float, now_s: float, seq: int) -> None:
        held = self.pins.hold(session, blocks, now_s + ttl_s)
        if not held:
            return
        until_us = _now_us() + round(ttl_s * 1e6)
        self._change(
            session, "device_cached", "device_pinned", held, "decision", decision_seq=seq, until_us=until_us
        )  # fmt: skip

    def _drop(self, session: Session, blocks: list[Any], seq: int) -> None:
        spared = [block for block in blocks if not self.table.shared_with_others(session, block.block_hash)]
        keys = self.pool.drop(spared)
        session.gone.update(keys)
        if keys:
            self._change(session, "device_cached", "gone", len(keys), "decision", decision_seq=seq)

    def _relieve(self) -> None:
        """Nothing runs, a request that could cannot get its blocks, and we hold some: the oldest pin goes."""
        needed = telling.blocks_of_head(self._scheduler, self.block_tokens)
        if needed is None or needed <= self.pool.free_blocks():
            return
        session = self.pins.oldest()
        if session is not None:
            self._change(session, "device_pinned", "device_cached", self.pins.release(session), "pressure")

    # --- telling -----------------------------------------------------------------------------------------------------

    def _evicted(self, key: Any, taker: str | None) -> None:
        now_s = time.monotonic()
        turn = self._turns.get(taker) if taker is not None else None
        for session in self.table.evicted(key, now_s):
            place = session.id, turn.session if turn is not None else None
            self._evictions[place] = self._evictions.get(place, 0) + 1

    def _tell_evictions(self) -> None:
        if not self._evictions:
            return
        evictions, self._evictions = self._evictions, {}
        for (name, victim_of), blocks in evictions.items():
            session = self.table.get(name)
            if session is not None:
                self._change(session, "device_cached", "gone", blocks, "lru", victim_of=victim_of)

    def _change(self, session: Session, from_: str, to: str, blocks: int, cause: str, **more: Any) -> None:
        more |= {"residency": self.table.counts(session), "shared_blocks": self.table.shared(session)}
        name = self._settings.name
        self._link.send(telling.transition(name, session, from_, to, blocks, cause, self.block_tokens, **more))

    def _forget(self, session: Session) -> None:
        """The table is full: what is known of a session that has been away longest is given up."""
        blocks = self.pins.release(session)
        if session.waiting is not None:
            self.decider.gave_up(session.waiting)
        from_ = "device_pinned" if blocks else "device_cached"
        name = self._settings.name
        self._link.send(telling.transition(name, session, from_, "gone", 0, "forgotten", self.block_tokens))

    def _tokenizer(self) -> Any:
        return getattr(self._scheduler.structured_output_manager, "tokenizer", None)

    def _sample_if_due(self) -> None:
        now_s = time.monotonic()
        idle = not self._scheduler.running and not self._turns
        if now_s - self._sampled_s < (_IDLE_SAMPLE_S if idle and self._stepped else _SAMPLE_S):
            return
        if idle:
            self._stepped = False
        self._sampled_s = now_s
        self._tell_evictions()
        calibration = self.measuring.due(self._settings.name, _now_us(), now_s)
        if calibration is not None:
            self._link.send(calibration)
        self._link.send(telling.sample(self._settings.name, self._scheduler, self.pool, self._totals, len(self.table)))

    def _introduce(self) -> None:
        settings = self._settings
        self._link.send(telling.engine_start(self._scheduler, settings, self.mode, self.pool.blocks, self.block_tokens))
        can = not self._reason
        for name, available, reason in (
            ("engine.residency", can, self._reason),
            ("engine.pin", can, self._reason),
            ("engine.drop", can, self._reason),
            ("engine.offload", False, "no host tier: this version of the plugin does not move blocks yet"),
        ):
            self._link.send(Capability(t=_now_us(), plane="engine", name=name, available=available, reason=reason))
        if self._reason:
            self._link.send(Note(t=_now_us(), text=f"engine {settings.name}: {self._reason}", by="engine"))


def _unable(scheduler: Any) -> str:
    """Why sessions cannot be followed in this engine; empty when they can."""
    groups = len(scheduler.kv_cache_config.kv_cache_groups)
    if groups != 1:
        return f"the model has {groups} groups of KV blocks; only models with one are followed"
    if not scheduler.kv_cache_manager.enable_caching:
        return "prefix caching is off, so no block can be used again; start vLLM with --enable-prefix-caching"
    return ""


def _now_us() -> int:
    return time.time_ns() // 1000
