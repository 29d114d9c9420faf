"""What single events mean for the book of sessions: the records and commands that follow from each. Pure."""

from __future__ import annotations

from collections.abc import Callable

from tidegate_collectors.kernel.observer import Event, EventKind
from tidegate_collectors.kernel.own_programs import is_exec_wrapper, is_hook, shim_at
from tidegate_collectors.kernel.tracker_book import Book
from tidegate_collectors.kernel.tracker_calls import CallNaming, session_end
from tidegate_collectors.kernel.tracker_model import (
    UNKNOWN_STATUS,
    Call,
    MeasureCall,
    MovePid,
    Output,
    PlaceCall,
    Process,
    Session,
    exit_of,
)
from tidegate_collectors.records import MemBurst, MemEvent, ProcExec, ProcExit, Record

HOLD_US = 2_000_000
"""How long a wrapper may take to say what it runs before its call is announced without that."""

_HOOK_PIDS = 64
_MAX_UNTOLD = 64
"""More records about one process and its children than a hook of ours can be the reason of."""


class EventReader(Book):
    """The book, kept up to date by events.

    Args:
        naming: see :class:`.tracker_book.Book`.
        window_us: length of the burst window, for the records.
    """

    def __init__(self, naming: CallNaming, *, window_us: int) -> None:
        super().__init__(naming)
        self._window_us = window_us
        self.strays = 0
        """Events of subjects that belong to no session known here."""
        self._hook_pids: dict[int, int] = {}

    def feed(self, event: Event) -> list[Output]:
        """Take one event of the observer."""
        outputs = self._feed(event)
        return self._without_untold(outputs) if self._quiet else outputs

    def _feed(self, event: Event) -> list[Output]:
        handler = self._handlers.get(event.kind)
        if handler is None:
            return []
        if event.subject in self._calls or event.subject in self._runtimes:
            return handler(self, event)
        # A new call; or an end, which is taken from anybody's mouth: the kernel may have dropped a subject we hold.
        if (event.kind == EventKind.CALL and event.a in self._runtimes) or (
            event.kind == EventKind.EXIT and event.pid in self._processes
        ):
            return handler(self, event)
        if event.kind in (EventKind.FORK, EventKind.EXEC):
            return self._lost_call(handler, event)
        self.strays += 1
        return []

    def _lost_call(self, handler: Callable[[EventReader, Event], list[Output]], event: Event) -> list[Output]:
        """A call whose first event was lost: it begins with what is seen of it first, known by its short name only."""
        outputs: list[Output] = []
        process = self._processes.get(event.pid)
        if process is not None and (process.subject in self._calls or event.kind == EventKind.FORK):
            outputs = self.lost_exit(event.pid, event.t_us)  # another process has the number now
        owned = self.owner(event.pid) or self.owner(event.ppid)
        if owned is None or owned[0].dropped or event.pid == owned[0].pid:  # the root is no call, whatever is said
            self.strays += 1
            return outputs
        session = owned[0]
        if (process := self._processes.pop(event.pid, None)) is not None:
            self._leave(process.subject, event.pid)
        call = self._add_call(session, event.subject, event.pid, event.t_us)
        call.seen = 0 if event.kind == EventKind.FORK else 1
        self._name(call, (event.comm,))
        return [*outputs, PlaceCall(session.id, call.id, call.subject, call.pid), *handler(self, event)]

    def _fork(self, event: Event) -> list[Output]:
        known = self._processes.get(event.pid)
        outputs: list[Output] = []
        if known is not None:
            if known.t_us >= event.t_us:
                return []  # its call was reported first, with the time of this fork
            outputs = self.lost_exit(event.pid, event.t_us)
        self._add_process(event)
        call = self._calls.get(event.subject)
        if call is None:
            return outputs
        call.seen += 1
        if call.cgroup_id is not None and event.cgroup_id not in (0, call.cgroup_id):
            outputs.append(MovePid(call.session.id, call.id, event.pid))
        return outputs

    def _exec(self, event: Event) -> list[Output]:
        process = self._processes.get(event.pid)
        if process is None:
            process = self._add_process(event)
        elif process.fresh and process.comm == event.comm:
            process.fresh = False
            return []
        process.comm, process.fresh = event.comm, False
        return [self._exec_record(event)]

    def _exec_record(self, event: Event) -> ProcExec:
        session, call = self._place(event.subject)
        return ProcExec(
            t=event.t_us, session=session.id, call=call.id if call else None,
            pid=event.pid, ppid=event.ppid, comm=event.comm,
        )  # fmt: skip

    def _call(self, event: Event) -> list[Output]:
        session = self._runtimes.get(event.a)
        taken = event.subject in self._calls or event.subject in self._runtimes
        if session is None or taken or event.pid == session.pid:
            return []
        outputs: list[Output] = []
        known = self._processes.get(event.pid)
        if known is not None and known.subject != session.subject:
            outputs = self.lost_exit(event.pid, event.t_us)
        session.pids.discard(event.pid)
        call = self._add_call(session, event.subject, event.pid, event.t_us)
        self._processes[event.pid] = Process(event.pid, event.ppid, event.subject, event.t_us, event.comm, fresh=True)
        argv = event.argv or (event.comm,)
        self._name(call, argv)
        if is_hook(argv):
            self._hold_quiet(call, event)
        elif is_exec_wrapper(argv) or shim_at(argv) is not None:
            call.held_until_us = event.t_us + HOLD_US
        else:
            outputs.append(PlaceCall(session.id, call.id, call.subject, call.pid))
        outputs.append(self._exec_record(event))
        return outputs

    def _hold_quiet(self, call: Call, event: Event) -> None:
        """It looks like an agent's hook, which is no call: what there is to say of it waits until it has spoken."""
        call.held_until_us, call.quiet = event.t_us + HOLD_US, True
        told_us = self._hook_pids.pop(event.pid, None)  # a poll may find it after it has spoken
        call.hook = told_us is not None and abs(told_us - event.t_us) <= HOLD_US
        self._quiet[call.session.id, call.id] = call

    def note_hook(self, pid: int, t_us: int) -> int:
        """This process of a session says at ``t_us`` that it is an agent's hook; returns when it began, if known."""
        process = self._processes.get(pid)
        call = self._calls.get(process.subject) if process is not None else None
        if call is not None and call.quiet:
            call.hook = True
            return min(call.t_us, t_us)
        if len(self._hook_pids) >= _HOOK_PIDS:
            self._hook_pids.pop(next(iter(self._hook_pids)))
        self._hook_pids[pid] = t_us
        return t_us

    def reveal(self, call: Call) -> list[Output]:
        """A held call is a call after all: what was not said of it, and its announcement."""
        untold, call.untold, call.quiet, call.held_until_us = call.untold, [], False, None
        self._quiet.pop((call.session.id, call.id), None)
        return [*untold, PlaceCall(call.session.id, call.id, call.subject, call.pid)]

    def _without_untold(self, outputs: list[Output]) -> list[Output]:
        """Keep back what is said of calls that look like hooks. One that takes much memory, or many processes, is none:
        nobody hides for long behind our name."""
        told: list[Output] = []
        for output in outputs:
            call = None
            if isinstance(output, Record) and output.session is not None and output.call is not None:
                call = self._quiet.get((output.session, output.call))
            if call is None:
                told.append(output)
                continue
            call.untold.append(output)  # type: ignore[arg-type]  # it is a record, else there were no call
            if isinstance(output, MemBurst | MemEvent) or len(call.untold) > _MAX_UNTOLD:
                told.extend(self.reveal(call))
        return told

    def _exit(self, event: Event) -> list[Output]:
        process = self._processes.pop(event.pid, None)
        # The subject we hold decides: an explicit boundary may be newer than what the kernel's event carries.
        subject = process.subject if process is not None else event.subject
        if subject not in self._calls and subject not in self._runtimes:
            return []
        session, call = self._place(subject)
        exit_code, signal = exit_of(event.a)
        outputs: list[Output] = []
        if call is not None and call.held_until_us is not None and event.pid == call.pid:
            left = call.pids - {event.pid}
            if call.hook and left:  # told in another order, or it left something behind: a call, when that lasts
                call.pid = min(left)
            else:
                call.held_until_us = None
                outputs.extend([] if call.hook else self.reveal(call))
        outputs.append(
            ProcExit(
                t=event.t_us,
                session=session.id,
                call=call.id if call else None,
                pid=event.pid,
                exit_code=exit_code,
                signal=signal,
                hiwater_bytes=event.b or None,
                left_behind=call.ended if call else session.ended,
            )
        )
        measure = call is not None and event.pid == call.pid and not call.ended
        if call is not None and measure:
            call.ended, call.status, call.end_us = True, event.a, event.t_us
        self._leave(subject, event.pid)
        if call is not None and measure and not (call.quiet and call.hook):
            outputs.append(MeasureCall(session.id, call.id, call.subject))
        if call is None and event.pid == session.pid and not session.ended:
            outputs.extend(self._root_gone(session, event))
        return outputs + self._sweep(session)

    def _root_gone(self, session: Session, event: Event) -> list[Output]:
        status = event.a if event.a >= 0 else session.launcher_status
        if status is not None:
            return self._end_session(session, status, event.t_us)
        session.root_gone_us = event.t_us
        if session.launcher_pid is None:
            return self._end_session(session, UNKNOWN_STATUS, event.t_us)
        return []

    def _end_session(self, session: Session, status: int, t_us: int) -> list[Output]:
        session.ended = True
        return [session_end(session, status, t_us), *self._sweep(session)]

    def _burst(self, event: Event) -> list[Output]:
        session, call = self._place(event.subject)
        if call is not None:
            call.bursts += 1
        return [
            MemBurst(
                t=event.t_us,
                session=session.id,
                call=call.id if call else None,
                grown_bytes=max(event.a, 0),
                window_us=self._window_us,
                total_bytes=max(event.b, 0),
                pid=event.pid or None,
            )
        ]

    def _oom(self, event: Event) -> list[Output]:
        session, call = self._place(event.subject)
        session.oom_pids.add(event.pid)
        if call is not None:
            call.ooms += 1
        return [MemEvent(t=event.t_us, session=session.id, call=call.id if call else None, oom_kill=1, pid=event.pid)]

    def _attach(self, event: Event) -> list[Output]:
        if event.pid not in self._processes:
            self._add_process(event)
        return []

    _handlers: dict[EventKind, Callable[[EventReader, Event], list[Output]]] = {
        EventKind.FORK: _fork,
        EventKind.EXEC: _exec,
        EventKind.CALL: _call,
        EventKind.EXIT: _exit,
        EventKind.BURST: _burst,
        EventKind.OOM: _oom,
        EventKind.ATTACH: _attach,
    }

    def lost_exit(self, pid: int, t_us: int) -> list[Output]:
        """A process is gone without an event."""
        process = self._processes.get(pid)
        if process is None:
            return []
        gone = Event(EventKind.EXIT, t_us, process.subject, pid, process.ppid, a=UNKNOWN_STATUS, comm=process.comm)
        return self._exit(gone)
