"""The hands of the tracker: carries out its commands on cgroups and observer, and sends its records.

One object without threads; the daemon's loop calls it. Everything that decides is in :mod:`.tracker`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tidegate_collectors import hints
from tidegate_collectors.kernel import procfs_files
from tidegate_collectors.kernel.agent_protocol import Ended, Hook, RegisterCall, RegisterSession, Request
from tidegate_collectors.kernel.agent_server import Refused
from tidegate_collectors.kernel.cgroups import CgroupError, CgroupHandle, CgroupTree
from tidegate_collectors.kernel.clock import now_us
from tidegate_collectors.kernel.groups import Groups
from tidegate_collectors.kernel.hooks import Hooks
from tidegate_collectors.kernel.ledger import CallLedger
from tidegate_collectors.kernel.observer import Observer, SubjectStats
from tidegate_collectors.kernel.sampler import Sampler, Target
from tidegate_collectors.kernel.tracker import Tracker
from tidegate_collectors.kernel.tracker_model import (
    Call,
    CallFigures,
    DropCall,
    DropSession,
    MeasureCall,
    MovePid,
    Output,
    PlaceCall,
    Session,
    TrackCall,
    TrackerError,
)
from tidegate_collectors.link.peer import Peer
from tidegate_collectors.names import check_id
from tidegate_collectors.records import Record, SessionEnd

log = logging.getLogger(__name__)

_MAX_ANCESTORS = 64
_RECONCILE_US = 1_000_000
MOVE_AFTER_S = 0.015
"""A call's processes go into its group when it has lasted so long. A move waits for a grace period of the kernel and
holds up every fork meanwhile; most calls of an agent (git, grep, cat) are over before it would be of any use."""


class Collector:
    """Sessions and calls of this host, from registration to the last process.

    Args:
        tree: our cgroups, or ``None`` where there are none.
        send: takes each record; must not block.
    """

    def __init__(
        self,
        *,
        observer: Observer,
        tracker: Tracker,
        sampler: Sampler,
        tree: CgroupTree | None,
        ledger: CallLedger,
        send: Callable[[Record], None],
    ) -> None:
        self._observer = observer
        self._tracker = tracker
        self._sampler = sampler
        self._groups = Groups(tree)
        self._hooks = Hooks(tracker)
        self._ledger = ledger
        self._send = send
        self._moves: dict[tuple[str, str], tuple[float, set[int] | None]] = {}  # by call: when, and whom; None is all
        self._reconciled_us = 0
        self._ring_losses = 0

    @property
    def idle(self) -> bool:
        """No session, and nothing left to clear away."""
        return not self._tracker.sessions and not self._groups.clearing

    # --- the loop's calls ------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take the observer's events."""
        events = self._observer.read_events()
        if not events:
            return
        self._sampler.count_events(len(events))
        outputs: list[Output] = []
        for event in events:
            outputs.extend(self._tracker.feed(event))
        self.execute(outputs)

    def tick(self, now_us: int) -> None:
        """Ten times a second: samples, and what waited."""
        self.drain()
        self.execute(self._tracker.due(now_us))
        self.execute(self._hooks.due(now_us))
        for record in self._sampler.sample(self._targets(), now_us):
            self._send(record)
        self._groups.remove_emptied()
        if now_us - self._reconciled_us >= _RECONCILE_US:
            self._reconciled_us = now_us
            self._reconcile(now_us)

    def handle(self, peer: Peer, request: Request) -> dict[str, Any]:
        """A launcher's request.

        Raises:
            Refused: it is not granted.
        """
        self.drain()  # the peer's own fork may still be waiting there
        try:
            if isinstance(request, RegisterSession):
                return self._register_session(peer, request)
            if isinstance(request, RegisterCall):
                return self._register_call(peer, request)
            if isinstance(request, Hook):
                return self._hook(peer, request)
            return self._ended(peer, request)
        except (TrackerError, CgroupError, ValueError, OSError) as error:
            raise Refused(str(error)) from error

    def announce(self) -> None:
        """Say again what is open: another run begins."""
        self.execute(self._tracker.announce())
        self.execute(self._hooks.announce())

    def shutdown(self) -> None:
        """Say what will not be seen to its end, give living processes back, and remove all groups."""
        self.drain()
        self.execute(self._tracker.shutdown(now_us()))
        for session in self._tracker.sessions:
            self._ledger.finish(session.id, session.next_call)
        self._ledger.close()
        self._sampler.close()
        self._groups.close()

    # --- registrations ---------------------------------------------------------------------------------------------

    def _register_session(self, peer: Peer, request: RegisterSession) -> dict[str, Any]:
        check_id("session", request.session)
        self._tracker.check_session(request.session, peer.pid)
        stat = procfs_files.read_stat(peer.pid)
        if stat is None:
            raise TrackerError(
                f"process {peer.pid} is not visible here; collector and agent must share a pid namespace"
            )
        groups = self._groups.add_session(request.session, peer.pid)
        subject, t_us = self._tracker.new_subject(), now_us()
        try:
            self._observer.track_runtime(
                groups.runtime.id if groups else None,
                subject,
                pid=peer.pid,
                runtime_depth=request.runtime_depth,
                memcg_id=groups.runtime.memcg_id if groups else None,
            )
        except BaseException:
            # A counter may be there already: what is full or gone is found out one step later.
            self._observer.untrack(groups.runtime.id if groups else None, subject)
            self._groups.drop_session(request.session)
            raise
        outputs = self._tracker.start_session(
            request.session,
            subject=subject,
            pid=peer.pid,
            t_us=t_us,
            agent=request.agent,
            title=request.title,
            priority=request.priority,
            budget_bytes=request.budget_bytes,
            cgroup=groups.session.path if groups else None,
            launcher_pid=stat.ppid,
            first_call=self._ledger.begin(request.session),
        )
        self.execute(outputs)
        return {"session": request.session, "observer": self._observer.name, "cgroup": bool(groups)}

    def _register_call(self, peer: Peer, request: RegisterCall) -> dict[str, Any]:
        self._find_owner(peer.pid)
        hint = hints.parse(request.hint) if request.hint else None
        call, outputs = self._tracker.request_call(
            peer.pid, t_us=now_us(), argv=request.command, tool=request.tool, hint=hint, nested=request.nested
        )
        self.execute(outputs)
        self.move_due(math.inf)  # the program begins when we have answered, and is to begin in its group
        return {"session": call.session.id, "call": call.id, "hint_error": hint.error if hint else ""}

    def _find_owner(self, pid: int) -> None:
        """Make the tracker know a process of a session whose fork was not reported (lost, or not yet polled)."""
        chain: list[procfs_files.ProcStat] = []
        at = pid
        while self._tracker.owner(at) is None and len(chain) < _MAX_ANCESTORS:
            stat = procfs_files.read_stat(at)
            if stat is None or stat.ppid <= 0:
                return
            chain.append(stat)
            at = stat.ppid
        for stat in reversed(chain):
            self._tracker.take_in(stat.pid, stat.ppid, stat.comm, now_us())

    def _hook(self, peer: Peer, request: Hook) -> dict[str, Any]:
        self.execute(self._hooks.take(self._session_above(peer.pid), peer.pid, request, now_us()))
        return {}

    def _session_above(self, pid: int) -> Session:
        """The session of a process, or of the nearest process above it that is known: a poll may have missed it."""
        at = pid
        for _ in range(_MAX_ANCESTORS):
            if (owned := self._tracker.owner(at)) is not None:
                return owned[0]
            stat = procfs_files.read_stat(at)
            if stat is None or stat.ppid <= 0:
                break
            at = stat.ppid
        raise TrackerError(f"process {pid} belongs to no session of this collector")

    def _ended(self, peer: Peer, request: Ended) -> dict[str, Any]:
        self.execute(self._tracker.launcher_ended(request.session, peer.pid, request.status, now_us()))
        return {}

    # --- commands of the tracker -----------------------------------------------------------------------------------

    def execute(self, outputs: Iterable[Output]) -> None:
        """Send the records and carry out the commands in their order; moves wait, see :meth:`move_due`."""
        for output in outputs:
            if isinstance(output, Record):
                if isinstance(output, SessionEnd):
                    self._end_hooks(output)
                self._send(output)
            elif isinstance(output, PlaceCall):
                self._place_call(output)
                self._moves[output.session, output.call] = (self._move_at_s(output), None)
            elif isinstance(output, MovePid):
                _, pids = self._moves.setdefault((output.session, output.call), (self._move_at_s(output), set()))
                if pids is not None:
                    pids.add(output.pid)
            elif isinstance(output, TrackCall):
                self._track_call(output)
            elif isinstance(output, MeasureCall):
                self._measure(output)
            elif isinstance(output, DropCall):
                self._drop_call(output)
            else:
                self._drop_session(output)

    def _end_hooks(self, end: SessionEnd) -> None:
        for record in self._hooks.close(end.session or "", end.t):
            self._send(record)

    @property
    def next_move_s(self) -> float | None:
        """In how many seconds :meth:`move_due` has something to do."""
        if not self._moves:
            return None
        return max(min(due_s for due_s, _ in self._moves.values()) - time.monotonic(), 0.0)

    def _move_at_s(self, command: PlaceCall | MovePid) -> float:
        """When the call has lasted long enough, by the monotonic clock: it may have been seen late, by a poll."""
        call = self._tracker.call(command.session, command.call)
        lasted_s = (now_us() - call.t_us) / 1e6 if call is not None else 0.0
        return time.monotonic() + min(max(MOVE_AFTER_S - lasted_s, 0.0), MOVE_AFTER_S)

    def move_due(self, now_s: float) -> None:
        """Put the processes of calls that go on into their groups, all in one go.

        The first move waits for a grace period of the kernel, those right after it do not.
        """
        due = [key for key, (due_s, _) in self._moves.items() if due_s <= now_s]
        if not due:
            return
        self.drain()  # what has ended meanwhile need not be moved
        for session, call in due:
            _, pids = self._moves.pop((session, call))
            self._move(session, call, pids)

    def _track_call(self, command: TrackCall) -> None:
        try:
            self._observer.track_call(None, command.subject, command.runtime_subject, pid=command.pid)
        except OSError as error:  # it will have no figures, and its end is noticed by its absence
            log.warning("call %s of session %s is not counted: %s", command.call, command.session, error)

    def _place_call(self, command: PlaceCall) -> None:
        call = self._tracker.call(command.session, command.call)
        handle, hint = None, None
        if call is not None and not call.ended:  # over within this batch: too short for a group
            text = procfs_files.read_environ(command.pid, hints.HINT_ENV) if call.hint is None else None
            hint = hints.parse(text) if text else None
            handle = self._groups.add_call(command.session, command.call)
            if handle is not None and self._observer.memory_source == "memcg":
                self._count_by_group(handle, call)
        announced = self._tracker.call_placed(command.session, command.call, handle.id if handle else None, hint)
        self.execute(announced)
        if announced and call is not None:
            self.execute(self._hooks.call_began(call))

    def _count_by_group(self, handle: CgroupHandle, call: Call) -> None:
        """With the controller's own events, what others free (reclaim) is told apart by the group of the page."""
        memcg_id = handle.memcg_id or handle.id
        try:
            self._observer.track_call(handle.id, call.subject, call.session.subject, memcg_id=memcg_id)
        except OSError as error:
            log.warning("reclaim of call %s of session %s is not counted: %s", call.id, call.session.id, error)

    def _move(self, session: str, call: str, pids: set[int] | None) -> None:
        found = self._tracker.call(session, call)
        if found is not None:
            # Only who is of the call still: the number of a process that has ended may be somebody else's by now.
            self._groups.move(session, call, sorted(found.pids if pids is None else found.pids & pids))

    def _measure(self, command: MeasureCall) -> None:
        stats = self._observer.stats(command.subject)
        figures = CallFigures(stats)
        handle = self._groups.filled_call(command.session, command.call)
        if handle is not None:
            memory = handle.memory()
            figures = CallFigures(stats, memory.peak_bytes, handle.memory_stall_us(), memory.oom_kill)
        if stats is not None and (call := self._tracker.call(command.session, command.call)) is not None:
            self._send_last_samples(call, stats)
        self.execute(self._tracker.call_measured(command.session, command.call, figures))
        if (call := self._tracker.call(command.session, command.call)) is not None:
            self._hooks.call_ended(call)

    def _send_last_samples(self, call: Call, stats: SubjectStats) -> None:
        """What the call and its session held at its end, with their peaks: a short call falls between two ticks."""
        session = call.session
        of_call = Target("call", session.id, call.id, call.subject, None)
        self._send(self._sampler.memory_at(call.end_us, of_call, stats))
        if (session_stats := self._observer.session_stats(session.subject)) is not None:
            of_session = Target("session", session.id, None, session.subject, None)
            self._send(self._sampler.memory_at(call.end_us, of_session, session_stats))

    def _drop_call(self, command: DropCall) -> None:
        handle = self._groups.call(command.session, command.call)
        self._observer.untrack(handle.id if handle else None, command.subject)
        self._tracker.dropped(command)
        self._groups.drop_call(command.session, command.call)

    def _drop_session(self, command: DropSession) -> None:
        session = self._tracker.session(command.session)
        if session is None:
            return
        self._ledger.finish(session.id, session.next_call)
        groups = self._groups.session(command.session)
        self._observer.untrack(groups.runtime.id if groups else None, command.subject)
        self._tracker.dropped(command)
        self._groups.drop_session(command.session)

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _targets(self) -> list[Target]:
        targets = []
        for session in self._tracker.sessions:
            groups = self._groups.session(session.id)
            runtime = groups.runtime if groups else None
            targets.append(Target("runtime", session.id, None, session.subject, runtime))
            for call in session.calls.values():
                if call.announced and (call.pids or not call.ended):
                    group = self._groups.call(session.id, call.id)
                    targets.append(Target("call", session.id, call.id, call.subject, group))
            whole = groups.session if groups else None
            targets.append(Target("session", session.id, None, session.subject, whole))
            self._ledger.ensure(session.id, session.next_call)
        return targets

    def _reconcile(self, now: int) -> None:
        """Notice processes whose end was not reported, and calls of which nothing was."""
        self._forget_unheard_calls()
        gone = [pid for pid in self._tracker.pids() if not Path(f"/proc/{pid}").exists()]
        if not gone:
            return
        self.drain()
        outputs: list[Output] = []
        for pid in gone:
            outputs.extend(self._tracker.lost_exit(pid, now))
        self.execute(outputs)

    def _forget_unheard_calls(self) -> None:
        """Free the counters of calls whose every event was lost: the kernel's table of them is finite."""
        losses = self._observer.lost().get("bpf_ring", 0)
        if losses == self._ring_losses:
            return
        self._ring_losses = losses
        dead = self._observer.dead_calls()
        self.drain()  # what was reported of them comes first
        for subject in dead:
            if not self._tracker.knows(subject):
                self._observer.untrack(None, subject)
