"""Records that open and close calls, and the processes they consist of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_collectors.records import CallEnd, CallStart, ProcExec, ProcExit

from . import ticks
from .limits import cut, cut_or_none
from .model import Call, Process, Processes, Session, Totals

if TYPE_CHECKING:
    from .state import State

_LOOK_BACK: Final = 16
"""How many ended processes an exec that arrives late is compared with."""


def call_start(state: State, record: CallStart) -> None:
    """A call begins, or a collector repeats that it is open, or the start arrives after the end."""
    session = state.session_of(record)
    if session is None:
        return
    call = state.call_of(session, record)
    if call is None:
        return
    if call.phase == "ended" and call.announced and record.t > (call.ended_us or 0):
        call = _replace(state, session, call)
    if call.phase == "ended" and call.announced:
        return
    if call.phase == "lost" and call.ended_us is None:
        call.phase = "running"
        session.running[call.id] = call
        call.lane = session.lanes.take(record.t)
    call.tool = cut(record.tool) or call.tool
    call.command = cut_or_none(record.command) or call.command
    call.hint = cut_or_none(record.hint) or call.hint
    call.hint_bytes = record.hint_bytes if record.hint_bytes is not None else call.hint_bytes
    call.cgroup_id = record.cgroup_id if record.cgroup_id is not None else call.cgroup_id
    call.pid = record.pid if record.pid is not None else call.pid
    call.boundary = record.boundary
    ticks.set_category(session, call, record.category)
    if call.lane is None:
        call.lane = session.lanes.take(record.t)
    if call.started_us is None or record.t < call.started_us:
        call.started_us = record.t
    call.announced = True
    if call.phase == "ended" and call.ended_us is not None:  # the end came first
        if call.duration_us is None:
            call.duration_us = max(0, call.ended_us - call.started_us)
        session.coverage.add(call.started_us, call.ended_us)


def _replace(state: State, session: Session, call: Call) -> Call:
    """The id of an ended call is used again: a new call takes its place."""
    ticks.set_call_bytes(session, call, 0)
    session.calls.remove(call)
    return state.open_call(session, call.id)


def call_end(state: State, record: CallEnd) -> None:
    """The call's first process is gone; the record's figures are the collector's last word."""
    session = state.session_of(record)
    if session is None:
        return
    call = state.call_of(session, record)
    if call is None or call.phase == "ended" or (call.phase == "lost" and call.ended_us is not None):
        return
    ticks.advance(state, session, record.t)
    was_running = call.phase == "running"
    session.running.pop(call.id, None)
    session.calls.touch(call)
    call.phase = "lost" if record.lost else "ended"
    call.ended_us = record.t
    call.exit_code, call.signal = record.exit_code, record.signal
    call.spike_bytes, call.kept_bytes = record.spike_bytes, record.kept_bytes
    call.charged_peak_bytes = record.charged_peak_bytes
    call.rise_bytes_per_s = _greater(call.rise_bytes_per_s, record.rise_bytes_per_s)
    call.process_count = record.processes
    call.left_behind = record.left_behind
    call.result_chars = record.result_chars if record.result_chars is not None else call.result_chars
    session.left_behind += record.left_behind or 0
    call.bursts = max(call.bursts, record.bursts or 0)
    if record.oom:
        call.oom = True
        if call.oom_kills == 0:
            call.oom_kills = 1
            session.ooms += 1
    call.cpu_us = _settle(session.cpu, call.cpu_us, record.cpu_us)
    call.wait_us = _settle(session.wait, call.wait_us, record.runq_wait_us)
    call.stall_us = _settle(session.stall, call.stall_us, record.stall_us)
    _close_interval(session, call, record, was_running=was_running)
    _close_memory(state, session, call, record)
    for process in call.processes.by_pid.values():
        process.left_behind = process.pid != call.pid


def _close_interval(session: Session, call: Call, record: CallEnd, *, was_running: bool) -> None:
    if call.started_us is None and record.duration_us is not None and not record.lost:
        call.started_us = record.t - record.duration_us
    if was_running:
        if call.lane is None:
            call.lane = session.lanes.take(record.t if call.started_us is None else call.started_us)
        session.lanes.release(call.lane, record.t)
    call.duration_us = record.duration_us
    if record.lost or call.started_us is None:
        return
    if call.duration_us is None:
        call.duration_us = max(0, record.t - call.started_us)
    session.coverage.add(call.started_us, record.t)


def _close_memory(state: State, session: Session, call: Call, record: CallEnd) -> None:
    """Memory is given back at the end but for what is kept; a peak since the last sample is one of this tick."""
    peak = record.peak_bytes
    if peak is not None:
        ticks.raise_peak(session, peak)
        if peak > (call.peak_bytes or 0):
            call.peak_bytes = peak
            if peak > session.tick.calls_excess:
                session.tick.calls_excess, session.tick.excess_category = peak, call.category
    if call.peak_bytes is not None or record.kept_bytes:
        ticks.set_call_bytes(session, call, record.kept_bytes or 0)
        ticks.memory_changed(state, session)
    call.sample_t_us = max(call.sample_t_us, record.t)


def _greater(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _settle(total: Totals, counted_us: int | None, final_us: int | None) -> int | None:
    """The call's final figure; what its samples missed of it is added to the session's sum."""
    if final_us is None:
        return counted_us
    missed = final_us - (counted_us or 0)
    if missed > 0 or total.parts_us is None:
        total.add_part(max(missed, 0))
    return final_us


def proc_exec(state: State, record: ProcExec) -> None:
    """A process started a program."""
    processes = _processes(state, record)
    if processes is None:
        return
    comm = cut(record.comm)
    process = processes.by_pid.get(record.pid)
    if process is not None:
        process.comm = comm
        return
    for ended in processes.ended[-_LOOK_BACK:]:
        if ended.pid == record.pid and ended.started_us is None and record.t <= (ended.ended_us or 0):
            ended.ppid, ended.comm, ended.started_us = record.ppid, comm, record.t
            return
    if _is_full(processes):
        processes.omitted += 1
        return
    processes.by_pid[record.pid] = Process(record.pid, record.ppid, comm, started_us=record.t)


def proc_exit(state: State, record: ProcExit) -> None:
    """A process is gone."""
    processes = _processes(state, record)
    if processes is None:
        return
    process = processes.by_pid.pop(record.pid, None)
    if process is None:
        if _is_full(processes):
            return
        process = Process(record.pid)
    process.ended_us = record.t
    process.exit_code, process.signal = record.exit_code, record.signal
    process.hiwater_bytes = record.hiwater_bytes
    process.left_behind = record.left_behind
    processes.ended.append(process)
    if not processes.by_pid:
        _last_is_gone(state, record)


def _last_is_gone(state: State, record: ProcExit) -> None:
    """The last process that a call or session left behind is gone, and with it the memory: no sample will say so."""
    session = state.session_of(record)
    if session is None:
        return
    call = state.call_of(session, record)
    if call is None:
        if session.phase != "running" and session.runtime_bytes:
            ticks.advance(state, session, record.t)
            session.runtime_bytes = 0
            ticks.memory_changed(state, session)
    elif call.phase != "running" and call.bytes and record.t >= (call.ended_us or 0):
        ticks.advance(state, session, record.t)
        ticks.set_call_bytes(session, call, 0)
        call.sample_t_us = max(call.sample_t_us, record.t)
        ticks.memory_changed(state, session)


def _processes(state: State, record: ProcExec | ProcExit) -> Processes | None:
    session = state.session_of(record)
    if session is None:
        return None
    call = state.call_of(session, record)
    return session.processes if call is None else call.processes


def _is_full(processes: Processes) -> bool:
    return len(processes.by_pid) + len(processes.ended) >= processes.limit
