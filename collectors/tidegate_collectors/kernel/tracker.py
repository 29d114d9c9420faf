"""What the events mean: sessions, calls, processes left behind, and the records that say so.

A pure state machine. It has no clock and does no I/O: events and registrations go in, records and commands come out, in
the order in which they are to be sent and carried out.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate_collectors.hints import Hint
from tidegate_collectors.kernel.observer import Event, EventKind
from tidegate_collectors.kernel.tracker_calls import (
    call_end,
    call_start,
    session_start,
)
from tidegate_collectors.kernel.tracker_events import EventReader
from tidegate_collectors.kernel.tracker_model import (
    UNKNOWN_STATUS,
    Call,
    CallFigures,
    Output,
    Process,
    Session,
    TrackCall,
    TrackerError,
)
from tidegate_collectors.records import Priority, Record, SessionEnd

LAUNCHER_GRACE_US = 1_000_000
"""How long the observer's and the launcher's word of a session's end wait for each other."""


class Tracker(EventReader):
    """All sessions of one collector: registrations, events and answers in, records and commands out."""

    # --- registrations ---------------------------------------------------------------------------------------------

    def check_session(self, session: str, pid: int) -> None:
        """See whether a session may begin.

        Raises:
            TrackerError: the id is in use, or the process belongs to a session already.
        """
        if session in self._sessions:
            state = "has ended but left processes behind" if self._sessions[session].ended else "is running"
            raise TrackerError(f"session {session} {state}; choose another --session")
        if (owned := self.owner(pid)) is not None:
            raise TrackerError(f"process {pid} is part of session {owned[0].id} already; sessions do not nest")

    def start_session(
        self, session: str, *, subject: int, pid: int, t_us: int, agent: str = "", title: str = "",
        priority: Priority = "normal", budget_bytes: int | None = None, cgroup: str | None = None,
        launcher_pid: int | None = None, first_call: int = 1,
    ) -> list[Output]:  # fmt: skip
        """Begin a session whose root is ``pid``; numbers of its calls go on from ``first_call``.

        Raises:
            TrackerError: see :meth:`check_session`.
        """
        self.check_session(session, pid)
        new = Session(
            session, subject, pid, t_us, agent, title, priority, budget_bytes, cgroup, launcher_pid, first_call, {pid}
        )
        self._sessions[session] = self._runtimes[subject] = new
        self._processes[pid] = Process(pid, 0, subject, t_us)
        return [session_start(new)]

    def request_call(
        self, pid: int, *, t_us: int, argv: Sequence[str], tool: str | None = None, hint: Hint | None = None,
        nested: bool = True,
    ) -> tuple[Call, list[Output]]:  # fmt: skip
        """An explicit boundary: ``pid`` is about to become the command ``argv``.

        When the kernel saw the wrapper start, its call is this one; otherwise a new call begins.

        Raises:
            TrackerError: the process belongs to no session, is a session's root, or is in a call and not ``nested``.
        """
        owned = self.owner(pid)
        if owned is None:
            raise TrackerError(f"process {pid} belongs to no session of this collector; start one with: tidegate run")
        session, call = owned
        if pid == session.pid:
            raise TrackerError(f"process {pid} is the root of session {session.id}; a call is a process it starts")
        if call is not None and call.pid != pid and not nested:
            raise TrackerError(f"process {pid} is part of call {call.id} already")
        if call is None or call.pid != pid:
            process = self._processes[pid]
            self._leave(process.subject, pid)
            outer = call.id if call is not None else None
            call = self._add_call(session, self.new_subject(), pid, t_us)
            call.within = outer
            process.subject = call.subject
            track: list[Output] = [TrackCall(session.id, call.id, call.subject, session.subject, pid)]
        elif call.announced or call.held_until_us is None:
            return call, []  # it was announced under its own name, and that is what the records say
        else:
            track = []
        self._name(call, argv)
        call.boundary, call.tool, call.hint = "wrapper", tool or call.tool, hint
        return call, [*track, *self.reveal(call)]

    def take_in(self, pid: int, ppid: int, comm: str, t_us: int) -> None:
        """Count ``pid`` to whatever its parent belongs to: its fork was not reported, and it speaks to us already."""
        parent = self._processes.get(ppid)
        if parent is not None and pid not in self._processes:
            self._add_process(Event(EventKind.FORK, t_us, parent.subject, pid, ppid, comm=comm))

    def launcher_ended(self, session: str, peer_pid: int, status: int, t_us: int) -> list[Output]:
        """The launcher waited for the session's root and says how it ended.

        Raises:
            TrackerError: no such session, or the peer did not launch it.
        """
        found = self._sessions.get(session)
        if found is None:
            return []  # the observer was first and nothing is left of it
        if peer_pid != found.launcher_pid:
            raise TrackerError(f"process {peer_pid} did not launch session {session}")
        found.launcher_status, found.launcher_us = status, t_us
        if found.root_gone_us is not None and not found.ended:
            return self._end_session(found, status, found.root_gone_us)
        return []

    # --- answers to commands ---------------------------------------------------------------------------------------

    def call_placed(self, session: str, call: str, cgroup_id: int | None, hint: Hint | None = None) -> list[Record]:
        """The group is there (or there is none): announce the call."""
        found = self.call(session, call)
        if found is None:
            return []
        found.cgroup_id = cgroup_id
        found.hint = found.hint or hint
        if found.announced:
            return []
        found.announced = True
        return [call_start(found)]

    def call_measured(self, session: str, call: str, figures: CallFigures) -> list[Record]:
        """The figures of a call that ended."""
        found = self.call(session, call)
        return [call_end(found, figures, self._window_us)] if found is not None else []

    def announce(self) -> list[Record]:
        """Sessions and calls that are open, for a run that begins in the middle."""
        records: list[Record] = []
        for session in self._sessions.values():
            if not session.ended:
                records.append(session_start(session))
            records.extend(call_start(call) for call in session.calls.values() if call.announced and not call.ended)
        return records

    def shutdown(self, t_us: int) -> list[Output]:
        """The collector goes: what it will not see the end of."""
        outputs: list[Output] = []
        for session in self.sessions:
            for call in session.calls.values():
                if not call.ended and call.announced:
                    call.ended, call.end_us = True, t_us
                    outputs.append(call_end(call, None, self._window_us))
            if not session.ended:
                outputs.append(SessionEnd(t=t_us, session=session.id, lost=True))
        return outputs

    def due(self, now_us: int) -> list[Output]:
        """What waited long enough."""
        outputs: list[Output] = []
        for session in self.sessions:
            for call in session.calls.values():
                if call.held_until_us is not None and now_us >= call.held_until_us:
                    outputs.extend(self.reveal(call))
            if session.ended:
                continue
            if session.root_gone_us is not None and now_us - session.root_gone_us >= LAUNCHER_GRACE_US:
                outputs.extend(self._end_session(session, UNKNOWN_STATUS, session.root_gone_us))
            elif session.launcher_status is not None and now_us - session.launcher_us >= LAUNCHER_GRACE_US:
                outputs.extend(self.lost_exit(session.pid, session.launcher_us))
        return outputs
