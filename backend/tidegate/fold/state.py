"""The state of everything observed: a pure function of the records, bounded however many there were.

No clock, no I/O, no randomness: the same records in the same order give the same state, in whatever batches they come,
live, in a replay and after a seek. Times are microseconds UTC, sizes bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidegate_collectors.records import Record

from . import ticks
from .changes import Changes, Tracker
from .engine import Engine
from .events import EventView
from .limits import Limits, cut, short_id
from .model import Call, Host, LostCount, Processes, Run, Session, Source, new_session
from .saved import Saved
from .sessions import find_again

OTHER: Final = "(other)"
"""Key under which names beyond the bound are counted together."""


class State:
    """What the records so far say.

    Args:
        limits: how much is kept.
        track: whether :meth:`changes` is wanted; a replay that nobody streams saves the work.

    Attributes:
        ord: ordinal of the last record.
        last_t_us: greatest time seen in a record, 0 before the first.
        run: the run.
        sessions: sessions by id, in order of their first record.
        hosts: hosts by name.
        engines: inference engines by name, in order of their first record.
        sources: senders by src.
        lost: counts of lost records by (where, of).
        capabilities: latest word on each capability, by (host, plane, name).
        unknown_types: lines of unknown type by type.
        events: the newest events, oldest first.
        sessions_total: sessions so far; what left the state is counted too.
        saved: what the last snapshot holds.
    """

    def __init__(self, limits: Limits | None = None, *, track: bool = True) -> None:
        self.limits = limits or Limits()
        self.ord = 0
        self.last_t_us = 0
        self.run = Run()
        self.sessions: dict[str, Session] = {}
        self.hosts: dict[str, Host] = {}
        self.engines: dict[str, Engine] = {}
        self.sources: dict[str, Source] = {}
        self.lost: dict[tuple[str, str], LostCount] = {}
        self.capabilities: dict[tuple[str, str, str], tuple[bool, str]] = {}
        self.unknown_types: dict[str, int] = {}
        self.events: deque[EventView] = deque(maxlen=self.limits.events)
        self.machine: dict[str, tuple[str | None, int | None, int | None]] = {}
        self.sessions_total = 0
        self.saved = Saved()
        self.tracker: Tracker | None = None
        if track:
            self.follow()

    def follow(self) -> None:
        """Collect changes from here on, for :meth:`changes`."""
        self.tracker = Tracker(self.limits.pending)

    def become(self, other: State) -> None:
        """Take over all that another state remembers; whoever tracks this one goes on doing so."""
        tracker = self.tracker
        self.__dict__.update(other.__dict__)
        self.tracker = tracker

    def changes(self) -> Changes:
        """What changed since the last call; the first time, since the beginning. Empty when nothing is tracked."""
        tracker = self.tracker
        if tracker is None:
            return Changes()
        for session_id in tracker.open_mem:
            session = self.sessions[session_id]
            for mem_point in ticks.open_points(session):
                tracker.mem(session_id, mem_point)
        for session_id in tracker.open_wait:
            session = self.sessions[session_id]
            point = ticks.wait_point(session)
            if point is not None:
                tracker.wait(session_id, point)
        return tracker.take()

    def note_unknown(self, type_: str) -> None:
        """Count a line whose type this version does not know."""
        name = cut(type_)
        if name not in self.unknown_types and len(self.unknown_types) >= self.limits.names:
            name = OTHER
        self.unknown_types[name] = self.unknown_types.get(name, 0) + 1

    def find_session(self, record: Record) -> Session | None:
        """The session a record names, when it is known."""
        return None if record.session is None else self.sessions.get(short_id(record.session))

    def session_of(self, record: Record) -> Session | None:
        """The session a record names, made when it is unknown; its last time is moved on. None when it names none."""
        name = record.session
        if name is None:
            return None
        session = self.sessions.get(name) or self.sessions.get(short_id(name)) or self.open_session(record)
        session.ord = self.ord
        if record.t > session.last_t_us:
            session.last_t_us = record.t
            if session.phase == "lost" and record.src == session.src:
                find_again(self, session, record.t)
        if self.tracker is not None:
            self.tracker.sessions.add(session.id)
        return session

    def session_of_known(self, record: Record) -> Session | None:
        """:meth:`session_of`, but a session that is unknown stays unknown."""
        return self.session_of(record) if self.find_session(record) is not None else None

    def open_session(self, record: Record) -> Session:
        """A new session under the record's session id; it replaces one that has the id."""
        session_id = short_id(record.session or "")
        if session_id in self.sessions:
            self._drop_session(session_id)
        elif len(self.sessions) >= self.limits.sessions:
            self._make_room_for_sessions()
        self.sessions_total += 1
        session = new_session(session_id, self.sessions_total, short_id(record.host), short_id(record.src), self.limits)
        session.ord = self.ord
        session.last_t_us = record.t
        self.sessions[session_id] = session
        return session

    def call_of(self, session: Session, record: Record) -> Call | None:
        """The call a record names within the session, made when it is unknown. None when it names none."""
        name = record.call
        if name is None:
            return None
        call = session.calls.running.get(name) or self._call_not_running(session, name)
        if self.tracker is not None:
            self.tracker.call(session.id, call.id)
        return call

    def _call_not_running(self, session: Session, name: str) -> Call:
        name = short_id(name)
        call = session.calls.get(name)
        if call is None:
            return self.open_call(session, name)
        session.calls.touch(call)
        return call

    def open_call(self, session: Session, call_id: str) -> Call:
        """A new running call in the session; its start is not known yet."""
        if len(session.calls) >= self.limits.calls:
            self._make_room_for_calls(session)
        session.calls_total += 1
        call = Call(
            session=session.id, id=call_id, ordinal=session.calls_total, processes=Processes(self.limits.processes)
        )
        session.calls.add(call)
        return call

    def host(self, name: str) -> Host | None:
        """The host of that name, made when it is unknown; None when there are too many already."""
        name = short_id(name)
        host = self.hosts.get(name)
        if host is None:
            if len(self.hosts) >= self.limits.names:
                return None
            host = self.hosts[name] = Host(host=name)
            self.describe_host(host)
        if self.tracker is not None:
            self.tracker.hosts.add(name)
        return host

    def describe_host(self, host: Host) -> None:
        """Fill in what run.meta said of the machine; a run.meta without host name speaks for all hosts."""
        machine = self.machine.get(host.host) or self.machine.get("")
        if machine is not None:
            kernel, cpus, memory = machine
            host.kernel, host.cpus = kernel or host.kernel, cpus or host.cpus
            if host.mem_total_bytes is None:
                host.mem_total_bytes = memory

    def _drop_session(self, session_id: str) -> None:
        self.saved.dropped(self.sessions.pop(session_id))
        if self.tracker is not None:
            self.tracker.forget(session_id)

    def _make_room_for_sessions(self) -> None:
        # A tenth at once, so that a flood of sessions does not search the whole table for each of them.
        wanted = max(1, self.limits.sessions // 10)
        over = [key for key, session in self.sessions.items() if session.phase != "running"][:wanted]
        for session_id in over or list(self.sessions)[:wanted]:
            self._drop_session(session_id)

    def _make_room_for_calls(self, session: Session) -> None:
        wanted = max(1, self.limits.calls // 10)
        ended = [key for key, call in session.calls.items() if call.phase != "running"][:wanted]
        for call_id in ended or list(session.calls)[:wanted]:
            call = session.calls[call_id]
            if call_id in session.running and call.lane is not None:
                session.lanes.release(call.lane, session.last_t_us)
            ticks.set_call_bytes(session, call, 0)
            session.calls.remove(call)
