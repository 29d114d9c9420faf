"""What the tracker knows: sessions, calls and processes, and who belongs to whom. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate_collectors.kernel.observer import Event
from tidegate_collectors.kernel.tracker_calls import CallNaming
from tidegate_collectors.kernel.tracker_model import Call, DropCall, DropSession, Output, Process, Session


class Book:
    """All sessions of one collector, and the processes and calls in them.

    Args:
        naming: turns a command line into category, tool and what of the command may be recorded.
    """

    def __init__(self, naming: CallNaming) -> None:
        self._naming = naming
        self._sessions: dict[str, Session] = {}
        self._runtimes: dict[int, Session] = {}
        self._calls: dict[int, Call] = {}
        self._processes: dict[int, Process] = {}
        self._next_subject = 1

    @property
    def sessions(self) -> list[Session]:
        """Sessions with living processes, the ended ones among them, oldest first."""
        return list(self._sessions.values())

    def session(self, session: str) -> Session | None:
        """A session by its id."""
        return self._sessions.get(session)

    def call(self, session: str, call: str) -> Call | None:
        """A call, running or with processes left behind."""
        found = self._sessions.get(session)
        return next((item for item in found.calls.values() if item.id == call), None) if found else None

    def owner(self, pid: int) -> tuple[Session, Call | None] | None:
        """Whose process this is: the session, and the call unless it belongs to the runtime."""
        process = self._processes.get(pid)
        if process is None:
            return None
        if process.subject in self._calls:
            call = self._calls[process.subject]
            return call.session, call
        return self._runtimes[process.subject], None

    def pids(self) -> list[int]:
        """All processes believed to live."""
        return list(self._processes)

    def new_subject(self) -> int:
        """A subject number that this tracker has not given out before."""
        subject = self._next_subject
        self._next_subject += 1
        return subject

    def _place(self, subject: int) -> tuple[Session, Call | None]:
        call = self._calls.get(subject)
        return (call.session, call) if call is not None else (self._runtimes[subject], None)

    def _add_process(self, event: Event) -> Process:
        process = self._processes[event.pid] = Process(event.pid, event.ppid, event.subject, event.t_us, event.comm)
        self._members(event.subject).add(event.pid)
        return process

    def _members(self, subject: int) -> set[int]:
        session, call = self._place(subject)
        return call.pids if call is not None else session.pids

    def _add_call(self, session: Session, subject: int, pid: int, t_us: int) -> Call:
        call = Call(session, f"c{session.next_call}", subject, pid, t_us, pids={pid})
        session.next_call += 1
        session.calls[subject] = self._calls[subject] = call
        return call

    def _name(self, call: Call, argv: Sequence[str]) -> None:
        named = self._naming(argv)
        call.tool, call.category, call.command = named.tool, named.category, named.command

    def _sweep(self, session: Session) -> list[Output]:
        """Forget what has no process left."""
        outputs: list[Output] = []
        open_calls = 0
        for call in session.calls.values():
            if not call.ended or call.pids:
                open_calls += 1
            elif not call.dropped:
                call.dropped = True
                outputs.append(DropCall(session.id, call.id, call.subject))
        if session.ended and not session.pids and not open_calls and not session.dropped:
            session.dropped = True
            outputs.append(DropSession(session.id, session.subject))
        return outputs

    def dropped(self, output: DropCall | DropSession) -> None:
        """The daemon carried out a drop; only now are its records complete and may the id be used again."""
        session = self._sessions.get(output.session)
        if session is None:
            return
        subjects = {output.subject}
        if isinstance(output, DropSession):
            subjects.update(session.calls)
            del self._sessions[output.session]
        for subject in subjects:
            session.calls.pop(subject, None)
            self._calls.pop(subject, None)
            self._runtimes.pop(subject, None)
        for pid in [pid for pid, process in self._processes.items() if process.subject in subjects]:
            del self._processes[pid]
