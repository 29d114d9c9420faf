"""What the tracker knows: sessions, calls and processes, and who belongs to whom. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate_collectors.kernel.observer import Event
from tidegate_collectors.kernel.own_programs import without_shim
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
        self._named_calls: dict[tuple[str, str], Call] = {}
        self._processes: dict[int, Process] = {}
        self._quiet: dict[tuple[str, str], Call] = {}
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
        return self._named_calls.get((session, call))

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

    def knows(self, subject: int) -> bool:
        """Whether it is a runtime or call that is still followed."""
        return subject in self._calls or subject in self._runtimes

    def new_subject(self) -> int:
        """A subject number that this tracker has not given out before."""
        subject = self._next_subject
        self._next_subject += 1
        return subject

    @property
    def naming(self) -> CallNaming:
        """How calls are named."""
        return self._naming

    @staticmethod
    def new_call_id(session: Session) -> str:
        """The next id of a call in this session."""
        call_id = f"c{session.next_call}"
        session.next_call += 1
        return call_id

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

    def _leave(self, subject: int, pid: int) -> None:
        """A process is no longer one of the subject's. Costs the same with ten thousand calls as with one."""
        session, call = self._place(subject)
        (call.pids if call is not None else session.pids).discard(pid)
        if call is not None and call.ended and not call.pids and not call.dropped:
            call.dropped = True
            session.open_calls -= 1
            session.emptied.append(call)

    def _add_call(self, session: Session, subject: int, pid: int, t_us: int) -> Call:
        call = Call(session, self.new_call_id(session), subject, pid, t_us, pids={pid})
        session.open_calls += 1
        session.calls[subject] = self._calls[subject] = self._named_calls[session.id, call.id] = call
        return call

    def _name(self, call: Call, argv: Sequence[str]) -> None:
        call.argv = without_shim(argv)
        named = self._naming(call.argv)
        call.tool, call.category, call.command = named.tool, named.category, named.command

    def _sweep(self, session: Session) -> list[Output]:
        """Forget what has no process left."""
        outputs: list[Output] = [DropCall(session.id, call.id, call.subject) for call in session.emptied]
        session.emptied.clear()
        if session.ended and not session.pids and not session.open_calls and not session.dropped:
            session.dropped = True
            outputs.append(DropSession(session.id, session.subject))
        return outputs

    def dropped(self, output: DropCall | DropSession) -> None:
        """The daemon carried out a drop; only now are its records complete and may the id be used again."""
        session = self._sessions.get(output.session)
        if session is None:
            return
        subjects = [output.subject]
        if isinstance(output, DropSession):
            subjects.extend(session.calls)
            del self._sessions[output.session]
            self._runtimes.pop(output.subject, None)
            self._forget(session.pids, output.subject)
        for subject in subjects:
            call = session.calls.pop(subject, None)
            self._calls.pop(subject, None)
            if call is not None:
                self._named_calls.pop((session.id, call.id), None)
                self._quiet.pop((session.id, call.id), None)
                self._forget(call.pids, subject)

    def _forget(self, pids: set[int], subject: int) -> None:
        """Processes that came to a subject after its end was decided: a lost event made it look empty."""
        for pid in pids:
            process = self._processes.get(pid)
            if process is not None and process.subject == subject:
                del self._processes[pid]
