"""What happens in the engine, decided and told: the plugin's centre. Only the engine's own thread calls it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from tidegate_collectors import __version__
from tidegate_collectors.engine.plugin import sender, telling, tools, turns
from tidegate_collectors.engine.plugin.accounts import Accounts
from tidegate_collectors.engine.plugin.counters import Counters
from tidegate_collectors.engine.plugin.deciding import Decider
from tidegate_collectors.engine.plugin.enforcing import Enforcer
from tidegate_collectors.engine.plugin.host_tier_offload import Offloading
from tidegate_collectors.engine.plugin.host_tier_side import side_of
from tidegate_collectors.engine.plugin.measuring import Measuring
from tidegate_collectors.engine.plugin.returning import Returning
from tidegate_collectors.engine.plugin.sampling import Sampler
from tidegate_collectors.engine.plugin.settings import SettingError, Settings, engine_name, from_environment
from tidegate_collectors.engine.plugin.turns import Turn
from tidegate_collectors.records import EngineMode

log = logging.getLogger("vllm.tidegate")

_FAULTS_TO_OFF: Final = 3


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
        self.name = engine_name(settings, scheduler)
        self.mode = settings.mode
        self.closed = threading.Event()
        self._faults = 0
        self._reason = telling.unable(scheduler)
        if self._reason:
            self.mode = "off"
        self._overlapping = bool(getattr(scheduler.scheduler_config, "async_scheduling", False))
        self._turns: dict[str, Turn] = {}
        self._unanswered: set[str] = set()
        self._freeing: list[Any] = []
        self._suffixed = turns.suffixed()
        self._link: sender.Sender
        self.accounts = Accounts(
            scheduler, most=settings.sessions, pin_cap=settings.pin_cap, engine=self.name, link=lambda: self._link,
            turn_of=self._turns.get,
        )  # fmt: skip
        self.measuring = Measuring(telling.kv_bytes_per_token(scheduler), overlapping=self._overlapping)
        self.decider = Decider(settings, self.accounts.block_tokens)
        self.offloading = Offloading(
            side_of(scheduler.connector), self.name, self.accounts, self.measuring, self._turns.get,
            lambda turn, tokens: self.returning.missed(turn, tokens), lambda: self._link,
        )  # fmt: skip
        self.enforcer = Enforcer(self.name, self.accounts, self.decider, self.offloading)
        self.counters = Counters(scheduler, follows=self.mode != "off")
        self.returning = Returning(self.name, self.accounts, self.decider, self.counters, lambda: self._link)
        self.sampler = Sampler(
            scheduler, self.name, self.accounts, self.counters, self.measuring, self._turns, self.offloading,
            lambda: self._link,
        )  # fmt: skip
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
        self.counters.own_us += (time.perf_counter_ns() - began_ns) / 1000

    def _fault(self, where: str, error: Exception) -> None:
        log.exception("tidegate: a fault in the plugin (%s); the engine goes on", where)
        self._faults += 1
        mode = "off" if self._faults >= _FAULTS_TO_OFF else "observe"
        if mode == self.mode or self.mode == "off":
            return
        self.mode = mode  # type: ignore[assignment]
        try:
            self._let_go("command")
            if mode == "off":
                self._turns.clear()
                self.returning.give_up_all()
                self.counters.recomputed_tokens = None
            reason = f"a fault in {where}: {type(error).__name__}; the engine's log has more"
            self._link.send(EngineMode(t=telling.now_us(), engine=self.name, mode=self.mode, reason=reason))
        except Exception:
            log.exception("tidegate: and another one while it was told")
            self.accounts.pins.drop_all()
            self.offloading.drop_all()

    def wants_tick(self) -> bool:
        """Whether something is due while the engine may be idle. Called from the timer's thread: reads only."""
        return self.sampler.stepped or time.monotonic() > self.accounts.pins.next_s

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
        forgotten = self.accounts.table.surplus(name)
        if forgotten is not None:
            self.returning.give_up(forgotten)
        session = self.accounts.table.touch(name)
        session.running += 1
        now_s = time.monotonic()
        turn = Turn(request, name, turns.turn_id(request.request_id, suffixed=self._suffixed), now_s)
        if session.running == 1 and session.waiting is not None:
            turn.waiting, session.waiting = session.waiting, None
            self.decider.came_back(turn.waiting, now_s)
        self._turns[request.request_id] = turn
        self._link.send(telling.turn_start(turn))

    def before_step(self) -> None:
        """Pins that have run out are released, copies that have ended are told."""
        self.offloading.settle()
        if self.accounts.unpin_due(time.monotonic()):
            self.sampler.stepped = True  # the pool has changed: the next sample says so, also in an idle engine

    def after_schedule(self, output: Any) -> None:
        """A step was planned: requests that begin in it, or come again, have their cached tokens."""
        now_s = time.monotonic()
        self.sampler.stepped = True
        self.counters.planned(output, now_s, overlapping=self._overlapping)
        self.accounts.settle()
        for new in output.scheduled_new_reqs:
            turn = self._turns.get(new.req_id)
            if turn is not None and turn.began_s is None:
                self.returning.begin(turn, now_s, int(new.num_computed_tokens))
                self._unanswered.add(new.req_id)
            elif turn is not None:  # for vLLM's newer model runner one that was preempted is a new one
                self._resumes(turn, int(new.num_computed_tokens))
        again = output.scheduled_cached_reqs
        for name in again.resumed_req_ids:
            turn = self._turns.get(name)
            if turn is not None:
                self._resumes(turn, int(again.num_computed_tokens[again.req_ids.index(name)]))
        self.measuring.planned(output, now_s)
        self.offloading.waits(now_s, blocked=bool(self._scheduler.waiting))
        if not output.total_num_scheduled_tokens and not self._scheduler.running:
            self.accounts.relieve(telling.blocks_of_head(self._scheduler, self.accounts.block_tokens))

    def _resumes(self, turn: Turn, cached_tokens: int) -> None:
        self.accounts.begins(self.accounts.table.touch(turn.session), turn, cached_tokens)

    def after_output(self) -> None:
        """A step is over."""
        now_s = time.monotonic()
        self.measuring.over(now_s)
        self.counters.over(now_s)
        self.offloading.settle()
        for name in list(self._unanswered):
            turn = self._turns.get(name)
            if turn is None:
                self._unanswered.discard(name)
            elif turn.request.num_output_tokens > 0:
                self._unanswered.discard(name)
                self.returning.answers(turn, now_s)
        self.accounts.settle()
        self._sample_if_due()

    def before_free(self, request: Any) -> None:
        """A request has ended, or is preempted: its blocks, while it still has them."""
        self._freeing = []
        turn = self._turns.get(request.request_id)
        if turn is not None and turn.began_s is not None:
            self.accounts.grows(self.accounts.table.touch(turn.session), turn)
            self._freeing = self.accounts.keys_of(request)

    def preempted(self, request: Any) -> None:
        """A request was thrown out of the batch; its blocks are left to LRU until it runs again."""
        self.counters.preemptions += 1
        turn = self._turns.get(request.request_id)
        if turn is not None and turn.began_s is not None:
            turn.counted = 0
            session = self.accounts.table.touch(turn.session)
            self.accounts.leaves(session, self._freeing, "preemption", others=turns.beside(turn, self._turns.values()))

    def finished(self, request: Any) -> None:
        """Its blocks are free; the session waits, and what becomes of them is decided."""
        self.counters.finished(request)
        turn = self._turns.pop(request.request_id, None)
        self._unanswered.discard(request.request_id)
        if turn is None:
            return
        session = self.accounts.table.touch(turn.session)
        session.running = max(0, session.running - 1)
        now_s = time.monotonic()
        aborted = str(getattr(request.status, "name", "")).endswith("ABORTED")
        tool = None if aborted else tools.asked_by(request, self._scheduler)
        self._link.send(telling.turn_end(turn, now_s, tool))
        if turn.began_s is None:
            self.returning.touched_nothing(turn, session, self._turns.values())
            return
        if turn.waiting is not None:  # it never answered
            self.returning.outcome(turn)
        if session.running == 0:
            self.accounts.settles_at(session, self._freeing)
        cause = "aborted" if aborted else "finished"
        self.accounts.leaves(session, self._freeing, cause, others=turns.beside(turn, self._turns.values()))
        if session.running == 0:
            record = self.enforcer.decide(
                session, turn, tool, now_s, telling.queue_of(self._scheduler), self.measuring.fitted(),
                enforces=self.mode == "enforce",
            )  # fmt: skip
            self._link.send(record)
            self.enforcer.enforce(session, record, now_s)

    def before_reset(self) -> None:
        """The prefix cache is about to be emptied: held blocks would make it fail."""
        self._let_go("reset")

    def after_reset(self) -> None:
        """Whatever cannot be found any more is gone."""
        self.accounts.was_reset()
        self.offloading.settle()

    def looked_up(self, stats: Any) -> None:
        """vLLM has made its statistics of a step."""
        self.counters.looked_up(stats)

    def close(self) -> None:
        """The engine shuts down."""
        if self.closed.is_set():
            return
        self.closed.set()
        try:
            self._let_go("command")
            self._turns.clear()
            self.returning.give_up_all()
            self._link.send(telling.engine_end(self.name))
            # In a thread of its own: a second signal to this process would break off the wait, and the good-bye too.
            closer = threading.Thread(target=self._link.close, name="tidegate-close")
            closer.start()
            closer.join()
        except Exception:
            log.exception("tidegate: a fault while the plugin ended")

    # --- a turn ------------------------------------------------------------------------------------------------------

    def _let_go(self, cause: str) -> None:
        """Hold nothing any more."""
        self.accounts.unpin_all(cause)
        self.offloading.release_all(cause)

    # --- telling -----------------------------------------------------------------------------------------------------

    def _sample_if_due(self) -> None:
        self.sampler.sample_if_due(follows=self.mode != "off")

    def _introduce(self) -> None:
        for record in telling.introduction(
            self._scheduler, self._settings, self.name, self.mode, self._reason, self.accounts.pool.blocks,
            self.offloading.total_bytes() or 0, self.offloading.unable(),
        ):  # fmt: skip
            self._link.send(record)
