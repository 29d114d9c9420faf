"""A tracker with a daemon that does nothing but answer, and short words for events."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TypeVar

from tidegate_collectors.kernel.observer import FIRST_KERNEL_SUBJECT, Event, EventKind
from tidegate_collectors.kernel.tracker import Tracker
from tidegate_collectors.kernel.tracker_calls import Named
from tidegate_collectors.kernel.tracker_model import (
    CallFigures,
    Command,
    DropCall,
    DropSession,
    MeasureCall,
    Output,
    PlaceCall,
)
from tidegate_collectors.records import Record

C1 = FIRST_KERNEL_SUBJECT
ROOT = 10
LAUNCHER = 9

_R = TypeVar("_R", bound=Record)


def naming(argv: Sequence[str]) -> Named:
    """Every command is of category other, and its command line is recorded."""
    return Named("other", argv[0].rpartition("/")[2], shlex.join(argv))


class Rig:
    """One session ``s`` with root process 10 and subject 1; ``records`` is all that was sent."""

    def __init__(self, *, first_call: int = 1) -> None:
        self.tracker = Tracker(naming, window_us=100_000)
        self.records: list[Record] = []
        self.commands: list[Command] = []
        self.dropped: list[str] = []
        self.figures = CallFigures()
        self.cgroups = True
        self._next_group = 501
        self.start("s", ROOT, first_call=first_call)

    def start(self, session: str, pid: int, *, first_call: int = 1) -> int:
        """Register a session; returns its subject."""
        self.tracker.check_session(session, pid)
        subject = self.tracker.new_subject()
        outputs = self.tracker.start_session(
            session,
            subject=subject,
            pid=pid,
            t_us=1000,
            agent="agent",
            priority="low",
            budget_bytes=5 << 20,
            cgroup=session,
            launcher_pid=LAUNCHER,
            first_call=first_call,
        )
        self.carry_out(outputs)
        return subject

    def feed(self, *events: Event) -> None:
        """Give the tracker events, carrying out what each one asks for."""
        for event in events:
            self.carry_out(self.tracker.feed(event))

    def feed_batch(self, events: Iterable[Event]) -> None:
        """The same, but carry out only after the last one, as the daemon does."""
        outputs: list[Output] = []
        for event in events:
            outputs.extend(self.tracker.feed(event))
        self.carry_out(outputs)

    def carry_out(self, outputs: Iterable[Output]) -> None:
        """Answer commands in their order."""
        for output in outputs:
            if isinstance(output, Record):
                self.records.append(output)
                continue
            self.commands.append(output)
            if isinstance(output, PlaceCall):
                group = self._next_group if self.cgroups else None
                self._next_group += 1
                self.records.extend(self.tracker.call_placed(output.session, output.call, group))
            elif isinstance(output, MeasureCall):
                self.records.extend(self.tracker.call_measured(output.session, output.call, self.figures))
            elif isinstance(output, DropCall | DropSession):
                self.tracker.dropped(output)
                self.dropped.append(output.call if isinstance(output, DropCall) else output.session)

    def of(self, kind: type[_R]) -> list[_R]:
        """The records of one type."""
        return [record for record in self.records if isinstance(record, kind)]


def fork(t_us: int, subject: int, pid: int, ppid: int = ROOT, *, cgroup: int = 0) -> Event:
    """``ppid`` forked ``pid``."""
    return Event(EventKind.FORK, t_us, subject, pid, ppid, cgroup_id=cgroup, comm="parent")


def call(t_us: int, subject: int, pid: int, *argv: str, runtime: int = 1) -> Event:
    """``pid``, forked by the runtime at ``t_us``, became a call."""
    comm = argv[0].rpartition("/")[2][:15]
    return Event(EventKind.CALL, t_us, subject, pid, ROOT, a=runtime, comm=comm, argv=argv)


def execd(t_us: int, subject: int, pid: int, comm: str) -> Event:
    """``pid`` runs a new program."""
    return Event(EventKind.EXEC, t_us, subject, pid, ROOT, comm=comm)


def exited(t_us: int, subject: int, pid: int, status: int = 0) -> Event:
    """``pid`` is gone with this wait status."""
    return Event(EventKind.EXIT, t_us, subject, pid, ROOT, a=status, b=4096)
