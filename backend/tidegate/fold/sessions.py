"""Records that open and close sessions and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_collectors.records import RunEnd, RunMeta, SessionEnd, SessionStart

from . import ticks
from .limits import cut, short_id
from .model import Session

if TYPE_CHECKING:
    from .state import State

OWNER_ROLE: Final = "kernel"
"""Role (the part of ``src`` before its last dash) of the collector whose restart loses sight of its sessions."""


def session_start(state: State, record: SessionStart) -> None:
    """A session begins, or a collector repeats that it is open."""
    known = state.find_session(record)
    if known is not None and _is_new_incarnation(known, record):
        state.open_session(record)
    session = state.session_of(record)
    if session is None:
        return
    if session.phase == "ended" and session.announced:
        return
    session.announced = True
    session.host, session.src = short_id(record.host), short_id(record.src)
    session.agent = cut(record.agent) or session.agent
    session.title = cut(record.title) or session.title
    session.priority = record.priority
    session.pid = record.pid if record.pid is not None else session.pid
    session.budget_bytes = record.budget_bytes if record.budget_bytes is not None else session.budget_bytes
    if session.started_us is None or record.t < session.started_us:
        session.started_us = record.t
    if session.phase == "lost":
        session.phase = "running"


def _is_new_incarnation(session: Session, record: SessionStart) -> bool:
    """Whether the start belongs to a later session that uses the id again, and is no repetition."""
    if session.started_us == record.t:
        return False
    same_process = record.pid is not None and record.pid == session.pid
    if session.phase == "ended":
        return record.t >= (session.ended_us or 0)
    if not session.announced or session.started_us is None or same_process:
        return False
    other_process = record.pid is not None and session.pid is not None
    return other_process and record.t > session.started_us


def session_end(state: State, record: SessionEnd) -> None:
    """The session's root process is gone. What its calls still hold stays counted until they end."""
    known = state.find_session(record)
    if known is not None and known.started_us is not None and record.t < known.started_us:
        return  # the late end of an earlier session with this id
    session = state.session_of(record)
    if session is None or session.phase == "ended":
        return
    ticks.advance(state, session, record.t)
    if record.lost:
        lose(state, session)
        return
    session.phase = "ended"
    session.ended_us = record.t
    session.end_reason = record.reason
    session.exit_code = record.exit_code
    session.signal = record.signal
    if session.runtime_bytes is not None:
        session.runtime_bytes = 0
        ticks.memory_changed(state, session)


def lose(state: State, session: Session) -> None:
    """The end of the session and of its running calls will not be seen: nobody knows when it was."""
    if session.phase == "running":
        session.phase = "lost"
    if state.tracker is not None:
        state.tracker.sessions.add(session.id)
    session.ord = state.ord
    for call in session.running.values():
        call.phase = "lost"
        ticks.set_call_bytes(session, call, 0)
        if call.lane is not None:
            session.lanes.release(call.lane, session.last_t_us)
        if state.tracker is not None:
            state.tracker.call(session.id, call.id)
    session.running.clear()
    session.runtime_bytes = None if session.runtime_bytes is None else 0


def find_again(state: State, session: Session, t_us: int) -> None:
    """The collector of a lost session speaks of it again: it was only out of sight, and so were its calls."""
    session.phase = "running"
    for call in session.calls.values():
        if call.phase == "lost" and call.ended_us is None:
            call.phase = "running"
            call.lane = session.lanes.take(t_us)
            session.running[call.id] = call
            if state.tracker is not None:
                state.tracker.call(session.id, call.id)


def source_gone(state: State, src: str) -> None:
    """A collector will not be heard of: what it observed is out of sight."""
    for session in state.sessions.values():
        if session.src == src and (session.phase == "running" or session.running):
            lose(state, session)


def new_source(state: State, src: str, host: str) -> None:
    """A sender speaks for the first time. A collector that starts again does not see the sessions of the one before."""
    role = src.rpartition("-")[0]
    if role != OWNER_ROLE:
        return
    for session in state.sessions.values():
        if (
            session.phase == "running"
            and session.host == host
            and session.src != src
            and session.src.rpartition("-")[0] == role
        ):
            lose(state, session)


def run_meta(state: State, record: RunMeta) -> None:
    """The run begins."""
    run = state.run
    run.id, run.title, run.source = cut(record.run), cut(record.title), record.source
    run.started_us, run.ended_us = record.t, None
    machine = record.machine
    if machine is not None and len(state.machine) < state.limits.names:
        state.machine[short_id(record.host)] = (
            cut(machine.kernel) or None,
            machine.cpus if machine.cpus > 0 else None,
            machine.memory_bytes if machine.memory_bytes > 0 else None,
        )
    for host in state.hosts.values():
        state.describe_host(host)
        if state.tracker is not None:
            state.tracker.hosts.add(host.host)
    if record.host:
        state.host(record.host)
    if state.tracker is not None:
        state.tracker.run = True


def run_end(state: State, record: RunEnd) -> None:
    """The run is closed: what has not ended by now ended unseen."""
    state.run.ended_us = record.t
    for session in state.sessions.values():
        if session.phase == "running":
            lose(state, session)
    if state.tracker is not None:
        state.tracker.run = True
