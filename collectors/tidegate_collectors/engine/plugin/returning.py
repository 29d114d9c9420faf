"""Sessions that come back: what they find, what came of the decision they waited under, or that they never came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tidegate_collectors.engine.plugin import telling
from tidegate_collectors.engine.plugin.accounts import Accounts
from tidegate_collectors.engine.plugin.counters import Counters
from tidegate_collectors.engine.plugin.deciding import Decider
from tidegate_collectors.engine.plugin.residency import Session
from tidegate_collectors.engine.plugin.sender import Sender
from tidegate_collectors.engine.plugin.turns import Turn


class Returning:
    """Of one engine."""

    def __init__(
        self, engine: str, accounts: Accounts, decider: Decider, counters: Counters, link: Callable[[], Sender]
    ) -> None:
        self._engine = engine
        self._accounts = accounts
        self._decider = decider
        self._counters = counters
        self._link = link

    def begin(self, turn: Turn, now_s: float, cached: int) -> None:
        """A turn's request runs for the first time; ``cached`` tokens of its prompt were there."""
        turn.began_s = now_s
        request = turn.request
        session = self._accounts.table.touch(turn.session)
        prefill = getattr(request, "prefill_stats", None)
        turn.cached_host_tokens = min(cached, int(getattr(prefill, "num_external_cached_tokens", 0) or 0))
        turn.cached_device_tokens = cached - turn.cached_host_tokens
        known = telling.common_blocks(session.prompt, request.block_hashes)
        turn.known_tokens = min(known * self._accounts.block_tokens, max(0, request.num_prompt_tokens - 1))
        turn.recomputed_tokens = max(0, turn.known_tokens - cached)
        self._counters.recomputed(turn.recomputed_tokens)
        self._decider.queued(turn, request.num_prompt_tokens)
        self._accounts.begins(session, turn, cached, turn.cached_host_tokens)

    def touched_nothing(self, turn: Turn, session: Session, running: Iterable[Turn]) -> None:
        """A turn ended before it began: the session waits as before, or another turn is its return."""
        other = next((other for other in running if other.session == turn.session), None)
        if other is not None:
            other.waiting = other.waiting or turn.waiting
        else:
            session.waiting = session.waiting or turn.waiting
        self._accounts.pins.remind(session)

    def missed(self, turn: Turn, tokens: int) -> None:
        """Tokens that were to come from the host could not be read, in the step that the turn began in."""
        if turn.began_s is None:
            return
        turn.cached_host_tokens = max(0, turn.cached_host_tokens - tokens)
        again = max(0, turn.known_tokens - turn.cached_device_tokens - turn.cached_host_tokens)
        self._counters.recomputed(again - turn.recomputed_tokens)
        turn.recomputed_tokens = again

    def answers(self, turn: Turn, now_s: float) -> None:
        """Its first token is there."""
        turn.first_s = now_s
        self._link().send(telling.turn_first_token(turn))
        if turn.waiting is not None:
            self.outcome(turn)

    def outcome(self, turn: Turn) -> None:
        """What came of the decision that its session waited under."""
        waiting, turn.waiting = turn.waiting, None
        session = self._accounts.table.touch(turn.session)
        self._link().send(telling.outcome(self._engine, turn, waiting, session.evicted_s))

    def give_up(self, session: Session) -> None:
        """Its session is not waited for any more, and forgotten."""
        waiting = session.waiting
        if waiting is not None:
            session.waiting = None
            self._decider.gave_up(waiting)
            if waiting.boundary != "terminal":
                self._link().send(telling.gave_up(self._engine, session, waiting, time.monotonic()))
        self._accounts.forgets(session)

    def give_up_all(self) -> None:
        """None is."""
        for session in self._accounts.table:
            self.give_up(session)
