"""Which call of the kernel is which tool call of the agent. Pure: no clock, no I/O.

An agent's hooks tell when a tool begins and when it has ended. A call that the kernel saw begin in between, and whose
command line fits the tool's command, is that tool call. Tools that start no program (Read, Edit, ...) get a call of
their own, so that they are seen at all. What was found is said in ``call.match`` records, with how and how surely.

Nothing here is sure to come: an end without a beginning, a beginning without an end (the tool was refused, or killed),
both twice, or kernel events that arrive after the hook's word of the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from tidegate_collectors.kernel.agent_protocol import Hook
from tidegate_collectors.kernel.hook_model import CATEGORIES, INSTANT, SPANNING, Bracket, Seen
from tidegate_collectors.kernel.hook_text import HOW, Command, Fit
from tidegate_collectors.kernel.tracker_calls import CallNaming
from tidegate_collectors.records import CallEnd, CallMatch, CallStart, Record

SETTLE_US: Final = 300_000
"""How long after a tool's end the kernel's word of its processes may still arrive."""

SLACK_US: Final = 20_000
"""How much too early a call's start may be told: files of /proc know it in hundredths of a second."""

NO_END_US: Final = 60_000_000
"""So long after its processes are gone nobody waits for a tool's end any more."""

INSTANT_US: Final = 2_000_000
FORGET_US: Final = 6 * 3600 * 1_000_000
MAX_OPEN: Final = 64
MAX_SEEN: Final = 256
MAX_MATCHED: Final = 256
"""Further processes of one tool are calls without its name. All bounds are such that nobody can keep us busy."""

MAX_DONE: Final = 1024
_LATE_END_US: Final = 2_000_000
_SHELLS: Final = frozenset(["sh", "bash", "dash", "zsh", "ash", "ksh", "fish"])


class HookMatcher:
    """The hooks' word and the kernel's, of one session.

    Args:
        session: its id.
        naming: how commands are named; decides what of an argument is recorded.
        new_id: gives the id of a further call.
    """

    def __init__(self, session: str, naming: CallNaming, new_id: Callable[[], str]) -> None:
        self._session = session
        self._naming = naming
        self._new_id = new_id
        self._open: list[Bracket] = []
        self._settling: list[Bracket] = []
        self._seen: deque[Seen] = deque(maxlen=MAX_SEEN)
        self._done: dict[tuple[str, str], None] = {}
        self._made_up = 0

    # --- what the hooks tell ---------------------------------------------------------------------------------------

    def take(self, hook: Hook, t_us: int, started_us: int) -> list[Record]:
        """The word of a hook about tools, at ``t_us``; the hook itself was started at ``started_us``."""
        if hook.event == "before":
            return self._before(hook, t_us)
        if hook.event in ("after", "failed"):
            return self._after(hook, t_us, started_us)
        if hook.event == "turn_over":
            return self._turn_over(hook.agent_session, t_us)
        return []

    def _before(self, hook: Hook, t_us: int) -> list[Record]:
        if hook.id and ((hook.agent_session, hook.id) in self._done or self._find(hook, exactly=True)):
            return []  # the hook is installed twice
        records = self._make_room(hook.agent_session, t_us)
        bracket = self._bracket(hook, t_us)
        self._open.append(bracket)
        if not bracket.command.starts_processes and bracket.tool not in SPANNING:
            return [*records, *self._start_own(bracket, "it runs within the agent")]
        for seen in self._seen:  # their fork may be told a little earlier than it was
            if seen.bracket is None and seen.t_us >= t_us - SLACK_US and bracket.command.fit(seen.argv) >= Fit.PART:
                records.extend(self._match(seen))
        return records

    def _make_room(self, agent_session: str, t_us: int) -> list[Record]:
        """Give up tools whose end will not be told: failed readers, and the oldest of too many."""
        stale = [
            item
            for item in self._open
            if item.tool in INSTANT and item.agent_session == agent_session and t_us - (item.began_us or 0) > INSTANT_US
        ]
        if not stale and len(self._open) >= MAX_OPEN:
            stale = self._open[:1]
        return [record for item in stale for record in self._abandon(item, t_us)]

    def _after(self, hook: Hook, t_us: int, started_us: int) -> list[Record]:
        if hook.id and (hook.agent_session, hook.id) in self._done:
            return []
        bracket = self._find(hook)
        if bracket is None:
            return self._end_only(hook, t_us)
        self._open.remove(bracket)
        self._remember(bracket)
        # The tool had ended when this hook was started. From files of /proc that may seem earlier than its beginning.
        bracket.ended_us = t_us = started_us if started_us > (bracket.began_us or 0) else t_us
        bracket.result_chars, bracket.failed = hook.result_chars, hook.event == "failed"
        if bracket.own is not None:
            return [*self._told_own(bracket, t_us), *self._end_own(bracket)]
        if bracket.tool in SPANNING:
            return []
        self._settling.append(bracket)
        return self._settle(self._settling[0]) if len(self._settling) > MAX_OPEN else []

    def _turn_over(self, agent_session: str, t_us: int) -> list[Record]:
        """The agent waits for its user: no tool of it runs, whether its end was told or not."""
        records: list[Record] = []
        for bracket in [item for item in self._open if item.agent_session == agent_session]:
            records.extend(self._abandon(bracket, t_us))
        return records

    def _end_only(self, hook: Hook, t_us: int) -> list[Record]:
        """Its beginning was not told: a call with the very command that goes on or has just ended is taken for it."""
        bracket = self._bracket(hook, None)
        self._remember(bracket)
        bracket.ended_us, bracket.result_chars, bracket.failed = t_us, hook.result_chars, hook.event == "failed"
        for seen in reversed(self._seen):
            recent = seen.ended_us is None or seen.ended_us >= t_us - _LATE_END_US
            if seen.bracket is None and recent and (fit := bracket.command.fit(seen.argv)) >= Fit.CONTAINED:
                return [self._attach(seen, bracket, f"{HOW[fit]}; its beginning was not told", t_us, sure=False)]
        return []

    def _bracket(self, hook: Hook, began_us: int | None) -> Bracket:
        identity = hook.id
        if not identity:
            self._made_up += 1
            identity = f"hook-{self._made_up}"
        return Bracket(
            hook.agent_session, hook.tool, identity, hook.input_digest, Command(hook.tool, hook.command), hook.detail,
            began_us,
        )  # fmt: skip

    def _find(self, hook: Hook, *, exactly: bool = False) -> Bracket | None:
        """The open tool call that this is about: by its id; where one of the two words has none, by tool and input."""
        ours = [item for item in self._open if item.agent_session == hook.agent_session]
        found = next((item for item in ours if item.id == hook.id), None)
        if found is not None or exactly:
            return found
        alike = [item for item in ours if item.tool == hook.tool and item.digest == hook.input_digest]
        return next((item for item in alike if not hook.id or item.id.startswith("hook-")), None)

    def _remember(self, bracket: Bracket) -> None:
        if len(self._done) >= MAX_DONE:
            self._done.pop(next(iter(self._done)))
        self._done[bracket.agent_session, bracket.id] = None

    # --- what the kernel tells -------------------------------------------------------------------------------------

    def call_began(self, call: str, t_us: int, argv: tuple[str, ...], within: str | None = None) -> list[Record]:
        """A call was announced; ``t_us``: time of its fork; ``within``: the call of which it was a part before."""
        seen = Seen(call, t_us, argv)
        outer = next((item for item in self._seen if item.id == within), None) if within is not None else None
        self._seen.append(seen)
        if outer is not None and (bracket := outer.bracket) is not None and len(bracket.matched) < MAX_MATCHED:
            sure = next(sure for item, _, sure in bracket.matched if item is outer)
            return [self._attach(seen, bracket, f"a part of call {within}", t_us, sure=sure)]
        return self._match(seen)

    def call_ended(self, call: str, t_us: int) -> None:
        """A call's first process is gone."""
        for seen in reversed(self._seen):
            if seen.id == call:
                seen.ended_us = t_us
                return

    def _match(self, seen: Seen) -> list[Record]:
        """Find its tool call by the command text; whoever cannot be found so waits for the tool's end."""
        fits = [(bracket.command.fit(seen.argv), bracket) for bracket in self._around(seen)]
        best = max((fit for fit, _ in fits), default=Fit.NONE)
        if best < Fit.PART:
            return []
        alike = [bracket for fit, bracket in fits if fit == best]
        alike = [bracket for bracket in alike if not bracket.over] or alike
        bracket = min(alike, key=lambda item: len(item.matched))  # the oldest of those that have fewest
        how = HOW[best] if len(alike) == 1 else f"{HOW[best]}; {len(alike)} such at once, by their order"
        return [self._attach(seen, bracket, how, seen.t_us, sure=best >= Fit.CONTAINED and len(alike) == 1)]

    def _around(self, seen: Seen) -> list[Bracket]:
        """Tool calls that may have started it, oldest first."""
        brackets = [item for item in (*self._settling, *self._open) if item.command.starts_processes]
        return [item for item in brackets if item.spans(seen.t_us, SLACK_US) and len(item.matched) < MAX_MATCHED]

    def _attach(self, seen: Seen, bracket: Bracket, how: str, t_us: int, *, sure: bool) -> CallMatch:
        seen.bracket = bracket
        bracket.matched.append((seen, how, sure))
        return self._told(bracket, len(bracket.matched), t_us)

    # --- what follows from time ------------------------------------------------------------------------------------

    def due(self, now_us: int) -> list[Record]:
        """What waited long enough."""
        records: list[Record] = []
        for bracket in [item for item in self._settling if now_us - (item.ended_us or 0) >= SETTLE_US]:
            records.extend(self._settle(bracket))
        for bracket in [item for item in self._open if self._is_forgotten(item, now_us)]:
            records.extend(self._abandon(bracket, now_us))
        return records

    @staticmethod
    def _is_forgotten(bracket: Bracket, now_us: int) -> bool:
        if now_us - (bracket.began_us or 0) >= FORGET_US:
            return True
        return bracket.over and all(now_us - (seen.ended_us or 0) >= NO_END_US for seen, _, _ in bracket.matched)

    def announce(self) -> list[Record]:
        """What is open, for a run that begins in the middle; after the calls of the kernel."""
        records: list[Record] = []
        for bracket in self._open:
            if bracket.own is not None:
                records.extend(self._start_own(bracket, "it runs within the agent"))
            records.extend(self._told(bracket, position + 1, seen.t_us) for position, (seen, _, _) in
                           enumerate(bracket.matched) if seen.ended_us is None)  # fmt: skip
        return records

    def close(self, t_us: int) -> list[Record]:
        """The session is over, or its collector."""
        records: list[Record] = []
        for bracket in list(self._settling):
            records.extend(self._settle(bracket))
        for bracket in list(self._open):
            records.extend(self._abandon(bracket, t_us))
        return records

    def _settle(self, bracket: Bracket) -> list[Record]:
        """All that may have been its processes is known now."""
        self._settling.remove(bracket)
        end_us = bracket.ended_us or 0
        if bracket.matched:
            return [self._told(bracket, number + 1, end_us) for number in range(len(bracket.matched))]
        found = [seen for seen in self._seen if seen.bracket is None and bracket.spans(seen.t_us, SLACK_US)]
        chosen = [seen for seen in found if bracket.command.fit(seen.argv) == Fit.PROGRAM]
        how = HOW[Fit.PROGRAM]
        if not chosen and bracket.command.text:
            chosen, how = [seen for seen in found if all(item.over for item in self._around(seen))], HOW[Fit.NONE]
            shells = [seen for seen in chosen if seen.argv and seen.argv[0].rpartition("/")[2] in _SHELLS]
            chosen = shells or chosen
        if chosen:
            return [self._attach(seen, bracket, how, end_us, sure=False) for seen in chosen]
        return [*self._start_own(bracket, "no process was seen"), *self._end_own(bracket)]

    def _abandon(self, bracket: Bracket, t_us: int) -> list[Record]:
        """Nobody will tell its end."""
        self._open.remove(bracket)
        self._remember(bracket)
        if bracket.own is None:
            return []  # what it started ends by itself
        return [CallEnd(t=t_us, session=self._session, call=bracket.own, lost=True)]

    # --- records ---------------------------------------------------------------------------------------------------

    def _told(self, bracket: Bracket, position: int, t_us: int) -> CallMatch:
        seen, how, sure = bracket.matched[position - 1]
        return CallMatch(
            t=t_us, session=self._session, call=seen.id, agent_tool=bracket.tool, agent_call_id=bracket.id,
            confidence="exact" if sure else "likely", how=how, position=position, began_us=bracket.began_us,
            ended_us=bracket.ended_us, result_chars=bracket.result_chars, failed=bracket.failed,
        )  # fmt: skip

    def _start_own(self, bracket: Bracket, why: str) -> list[Record]:
        """A call for a tool without a process."""
        bracket.own, bracket.why = bracket.own or self._new_id(), why
        t_us = bracket.began_us or 0
        if bracket.command.text:
            named = self._naming(["sh", "-c", bracket.command.text])
            tool, category = named.tool, named.category
        else:
            named = self._naming([bracket.tool, bracket.detail] if bracket.detail else [bracket.tool])
            tool, category = bracket.tool, CATEGORIES.get(bracket.tool, "other")
        start = CallStart(
            t=t_us, session=self._session, call=bracket.own, tool=tool, category=category, command=named.command,
            boundary="hook",
        )  # fmt: skip
        return [start, *self._told_own(bracket, t_us)]

    def _told_own(self, bracket: Bracket, t_us: int) -> list[Record]:
        return [CallMatch(
            t=t_us, session=self._session, call=bracket.own, agent_tool=bracket.tool, agent_call_id=bracket.id,
            how=bracket.why, began_us=bracket.began_us, ended_us=bracket.ended_us,
            result_chars=bracket.result_chars, failed=bracket.failed,
        )]  # fmt: skip

    def _end_own(self, bracket: Bracket) -> list[Record]:
        end_us, began_us = bracket.ended_us or 0, bracket.began_us or 0
        return [CallEnd(
            t=end_us, session=self._session, call=bracket.own, duration_us=max(end_us - began_us, 0),
            result_chars=bracket.result_chars,
        )]  # fmt: skip
