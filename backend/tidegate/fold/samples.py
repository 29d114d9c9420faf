"""Samples of memory, scheduling and pressure, and the memory events between them.

This is the busy part of the fold (64 sessions at 10 Hz are some thousand records a second): no allocation that is not
needed, no loop over sessions or calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_collectors.records import MemBurst, MemEvent, MemSample, PsiSample, SchedSample

from . import ticks
from .model import Call, Session

if TYPE_CHECKING:
    from .state import State


def mem_sample(state: State, record: MemSample) -> None:
    """Memory of a runtime, a call or a session at one instant."""
    session = state.session_of(record)
    if session is None or record.subject == "host":
        return
    used = record.anon_bytes + (record.shmem_bytes or 0)
    if record.subject == "call":
        call = state.call_of(session, record)
        if call is None or record.t <= call.sample_t_us:
            return
        ticks.advance(state, session, record.t)
        _call_memory(session, call, used, record.peak_bytes)
        call.sample_t_us = record.t
    elif record.subject == "runtime":
        if record.t <= session.runtime_t_us or (session.ended_us is not None and record.t <= session.ended_us):
            return
        ticks.advance(state, session, record.t)
        _runtime_memory(session, used, record.peak_bytes)
        session.runtime_t_us = record.t
    else:
        peak = record.peak_bytes
        if peak is not None and (session.kernel_peak_bytes is None or peak > session.kernel_peak_bytes):
            session.kernel_peak_bytes = peak
        ticks.raise_peak(session, used)
        if session.runtime_sampled or (session.ended_us is not None and record.t <= session.ended_us):
            return
        # Nobody samples the runtime by itself (an import, say): it is what the calls do not hold.
        ticks.advance(state, session, record.t)
        session.runtime_bytes = max(0, used - session.calls_bytes)
    ticks.memory_changed(state, session)


def _call_memory(session: Session, call: Call, used: int, peak: int | None) -> None:
    ticks.set_call_bytes(session, call, used)
    if peak is not None:
        # The kernel's own peak rose past what was sampled: memory was there and went between two samples.
        if peak > (call.kernel_peak_bytes or 0):
            if peak - used > session.tick.calls_excess and call.phase == "running":
                session.tick.calls_excess = peak - used
                session.tick.excess_category = call.category
            call.kernel_peak_bytes = peak
        used = max(used, peak)
    if call.peak_bytes is None or used > call.peak_bytes:
        call.peak_bytes = used


def _runtime_memory(session: Session, used: int, peak: int | None) -> None:
    session.runtime_bytes = used
    session.runtime_sampled = True
    if peak is not None and peak > (session.runtime_peak_bytes or 0):
        session.tick.runtime_excess = max(0, peak - used)
        session.runtime_peak_bytes = peak


def mem_burst(state: State, record: MemBurst) -> None:
    """Memory grew over the threshold within one window."""
    session = state.session_of(record)
    if session is None:
        return
    session.bursts += 1
    ticks.raise_peak(session, record.total_bytes)
    call = state.call_of(session, record)
    if call is None:
        if record.t > session.runtime_t_us and session.phase == "running":
            ticks.advance(state, session, record.t)
            session.runtime_bytes = record.total_bytes
            session.runtime_t_us = record.t
            ticks.memory_changed(state, session)
        return
    session.bursts_in_calls += 1
    call.bursts += 1
    if record.window_us > 0:
        rise = record.grown_bytes * 1_000_000 // record.window_us
        call.rise_bytes_per_s = max(call.rise_bytes_per_s or 0, rise)
    call.peak_bytes = max(call.peak_bytes or 0, record.total_bytes)
    call.kernel_peak_bytes = max(call.kernel_peak_bytes or 0, record.total_bytes)
    if record.t > call.sample_t_us and call.phase == "running":
        ticks.advance(state, session, record.t)
        ticks.set_call_bytes(session, call, record.total_bytes)
        call.sample_t_us = record.t
        ticks.memory_changed(state, session)


def mem_event(state: State, record: MemEvent) -> None:
    """The memory controller's events; a killed process is counted once."""
    session = state.session_of(record)
    if session is None or record.oom_kill <= 0:
        return
    session.ooms += record.oom_kill
    call = state.call_of(session, record)
    if call is not None:
        call.oom = True
        call.oom_kills += record.oom_kill


def sched_sample(state: State, record: SchedSample) -> None:
    """Time on a CPU and time waiting for one since the last sample."""
    session = state.session_of(record)
    if session is None or record.subject == "host":
        return
    ticks.advance(state, session, record.t)
    oncpu, wait = record.oncpu_us, record.wait_us
    whole = record.subject == "session"
    if whole:
        session.cpu.add_session(oncpu)
        if wait is not None:
            session.wait.add_session(wait)
    else:
        session.cpu.add_part(oncpu)
        if wait is not None:
            session.wait.add_part(wait)
        call = state.call_of(session, record) if record.subject == "call" else None
        if call is not None and call.phase == "running":
            call.cpu_us = (call.cpu_us or 0) + oncpu
            if wait is not None:
                call.wait_us = (call.wait_us or 0) + wait
    if wait is not None:
        _tick_wait(state, session, record, wait, whole=whole)


def _tick_wait(state: State, session: Session, record: SchedSample, wait: int, *, whole: bool) -> None:
    tick = session.tick
    window = record.window_us
    if window is None:
        window = record.t - session.sched_t_us if session.sched_t_us >= 0 else 0
    if record.t < tick.t_us:
        return  # too late for a point that has been drawn
    session.sched_t_us = record.t
    if window <= 0 or (tick.session_wait and not whole):
        return
    # Subjects are sampled when they change, so each has a window of its own.
    percent = 100 * wait / window
    if whole and not tick.session_wait:  # the session's own figure replaces the sum of its parts
        tick.session_wait = True
        tick.wait_percent = percent
    else:
        tick.wait_percent += percent
    tick.waited = True
    if state.tracker is not None:
        state.tracker.open_wait.add(session.id)


def psi_sample(state: State, record: PsiSample) -> None:
    """Time stalled on memory since the last sample."""
    session = state.session_of(record)
    stalled = record.memory_some_us
    if session is None or stalled is None or record.subject == "host":
        return
    if record.subject == "session":
        session.stall.add_session(stalled)
        return
    session.stall.add_part(stalled)
    call = state.call_of(session, record) if record.subject == "call" else None
    if call is not None and call.phase == "running":
        call.stall_us = (call.stall_us or 0) + stalled
