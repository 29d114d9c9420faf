"""State -> what the browser gets, in the shapes of :mod:`.shapes`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import ticks
from .changes import Changes
from .engine_views import current_turn, engine_view, engine_views, kv_view, planes, turns_view
from .events import EventView
from .model import Call, Host, Process, Processes, Session
from .shapes import (
    CallView,
    CapabilityView,
    CurrentCall,
    HostView,
    Lost,
    LostAt,
    OwnView,
    ProcessView,
    RunView,
    SessionView,
)  # fmt: skip
from .spark import SparkPoint
from .state import State


def session_view(session: Session) -> SessionView:
    """A session as it stands."""
    total = ticks.total_bytes(session)
    peaks = [session.peak_bytes, total, session.kernel_peak_bytes]
    if session.kernel_peak_bytes is None:
        peaks += [session.estimated_peak_bytes, ticks.open_peak(session)]
    known_peaks = [peak for peak in peaks if peak is not None]
    return SessionView(
        id=session.id,
        title=session.title,
        agent=session.agent,
        priority=session.priority,
        state=session.phase,
        host=session.host,
        started_us=session.started_us,
        ended_us=session.ended_us,
        end_reason=session.end_reason,
        exit_code=session.exit_code,
        signal=session.signal,
        budget_bytes=session.budget_bytes,
        runtime_bytes=session.runtime_bytes,
        calls_bytes=None if total is None else session.calls_bytes,
        peak_bytes=max(known_peaks) if known_peaks else None,
        calls_total=session.calls_total,
        calls_running=len(session.running),
        bursts=session.bursts,
        ooms=session.ooms,
        left_behind=session.left_behind,
        tool_time_us=_tool_time_us(session),
        bursts_in_calls=session.bursts_in_calls,
        cpu_us=session.cpu.value(),
        wait_us=session.wait.value(),
        stall_us=session.stall.value(),
        current=_current(session),
        last_t_us=session.last_t_us,
        planes=planes(session),
        turns=turns_view(session.inference),
        current_turn=current_turn(session.inference),
        kv=kv_view(session.inference.kv),
    )


def _tool_time_us(session: Session) -> int:
    # All running calls reach to the last record, so together they are one interval.
    starts = [call.started_us for call in session.running.values() if call.started_us is not None]
    union = session.coverage.total_with_us(min(starts), session.last_t_us) if starts else session.coverage.total_us()
    if session.ended_us is None or session.started_us is None:
        return union
    return min(union, session.ended_us - session.started_us)  # what a call takes beyond it is not its time


def _current(session: Session) -> CurrentCall | None:
    if not session.running:
        return None
    call = max(session.running.values(), key=lambda call: (call.started_us or 0, call.ordinal))
    return CurrentCall(call.id, call.tool, call.category, call.command, call.started_us, call.bytes)


def call_view(call: Call) -> CallView:
    """A call as it stands."""
    count = call.process_count
    if count is None:
        processes = call.processes
        count = len(processes.by_pid) + len(processes.ended) + processes.omitted or None
    return CallView(
        session=call.session,
        id=call.id,
        ordinal=call.ordinal,
        tool=call.tool,
        category=call.category,
        command=call.command,
        hint=call.hint,
        hint_bytes=call.hint_bytes,
        boundary=call.boundary,
        pid=call.pid,
        cgroup_id=call.cgroup_id,
        started_us=call.started_us,
        ended_us=call.ended_us,
        state=call.phase,
        lane=call.lane or 0,
        exit_code=call.exit_code,
        signal=call.signal,
        oom=call.oom,
        duration_us=call.duration_us,
        bytes=call.bytes,
        peak_bytes=call.peak_bytes,
        spike_bytes=call.spike_bytes,
        kept_bytes=call.kept_bytes,
        charged_peak_bytes=call.charged_peak_bytes,
        rise_bytes_per_s=call.rise_bytes_per_s,
        cpu_us=call.cpu_us,
        wait_us=call.wait_us,
        stall_us=call.stall_us,
        processes=count,
        left_behind=call.left_behind,
        bursts=call.bursts,
        agent_tool=call.agent_tool,
        agent_call_id=call.agent_call_id,
        match_confidence=call.match_confidence,
        match_how=call.match_how,
        match_position=call.match_position,
        result_chars=call.result_chars,
        agent_failed=call.agent_failed,
    )


def call_views(session: Session) -> list[CallView]:
    """The calls that are kept, in order of their first record."""
    return [call_view(call) for call in session.calls.values()]


def processes_view(processes: Processes) -> list[ProcessView]:
    """Processes in order of their start; ``processes.omitted`` says how many more there were."""
    return [_process_view(process) for process in processes.all()]


def _process_view(process: Process) -> ProcessView:
    return ProcessView(
        pid=process.pid,
        ppid=process.ppid,
        comm=process.comm,
        started_us=process.started_us,
        ended_us=process.ended_us,
        exit_code=process.exit_code,
        signal=process.signal,
        hiwater_bytes=process.hiwater_bytes,
        left_behind=process.left_behind,
    )


def host_view(host: Host) -> HostView:
    """A host as it stands."""
    window, cpus = host.window_us, host.cpus
    busy = host.cpu_busy_us
    return HostView(
        host=host.host,
        kernel=host.kernel,
        cpus=cpus,
        mem_total_bytes=host.mem_total_bytes,
        mem_available_bytes=host.mem_available_bytes,
        swap_used_bytes=host.swap_used_bytes,
        cpu_busy_ratio=min(1.0, busy / (window * cpus)) if busy is not None and window and cpus else None,
        last_t_us=host.last_t_us,
        own=OwnView(
            cpu_ratio=host.own_cpu_us / window if host.own_cpu_us is not None and window else None,
            rss_bytes=host.own_rss_bytes,
            bpf_run_ratio=host.own_bpf_run_us / window if host.own_bpf_run_us is not None and window else None,
            events=host.own_events,
        ),
    )


def lost_view(state: State) -> Lost:
    """Lost records by place, most first."""
    by = [LostAt(where, of, lost.count, lost.last_t_us) for (where, of), lost in state.lost.items()]
    by.sort(key=lambda lost: (-lost.count, lost.where, lost.of))
    return Lost(total=sum(lost.count for lost in by), by=by)


def run_view(state: State, *, replay: bool = False) -> RunView:
    """The run as it stands."""
    run = state.run
    return RunView(
        id=run.id,
        title=run.title,
        source=run.source,
        started_us=run.started_us,
        ended_us=run.ended_us,
        replay=replay,
    )


def capability_views(state: State) -> list[CapabilityView]:
    """What is known of each ability, by host, plane and name."""
    return [
        CapabilityView(host, plane, name, available, reason)
        for (host, plane, name), (available, reason) in sorted(state.capabilities.items())
    ]


def spark_points(session: Session) -> list[SparkPoint]:
    """The sparkline, the open tick included."""
    points = session.spark.points()
    if session.tick.memory:
        points += [(t_us, runtime, sum(calls.values())) for t_us, runtime, calls in ticks.open_points(session)]
    return points[-session.spark.limit :]


def events_view(state: State) -> list[EventView]:
    """The newest events, newest first."""
    return list(reversed(state.events))


def state_view(
    state: State, *, now_us: int, sources: Iterable[Any] = (), replay: bool = False, run: Any | None = None
) -> dict[str, Any]:
    """The answer of ``/api/state``.

    Args:
        state: the state.
        now_us: the page's now; in a replay the time of the last record.
        sources: the senders as the link server sees them.
        replay: whether the run has ended and is only shown.
        run: the run as the store knows it; by default as the records say.
    """
    return {
        "run": run_view(state, replay=replay) if run is None else run,
        "ord": state.ord,
        "now_us": now_us,
        "sessions": [session_view(session) for session in state.sessions.values()],
        "hosts": [host_view(host) for host in state.hosts.values()],
        "engines": engine_views(state.engines),
        "lost": lost_view(state),
        "sources": list(sources),
        "events": events_view(state),
        "spark": {session.id: spark_points(session) for session in state.sessions.values()},
        "unknown_types": dict(state.unknown_types),
    }


def frame_view(state: State, changes: Changes, *, now_us: int, sources: Iterable[Any] = ()) -> dict[str, Any]:
    """One frame of ``/api/stream``: what changed, as it stands now."""
    sessions = state.sessions
    calls = [
        call_view(call)
        for session, call_id in sorted(changes.calls)
        if session in sessions and (call := sessions[session].calls.get(call_id)) is not None
    ]
    return {
        "ord": state.ord,
        "now_us": now_us,
        "sessions": [session_view(sessions[name]) for name in sorted(changes.sessions) if name in sessions],
        "calls": calls,
        "hosts": [host_view(state.hosts[name]) for name in sorted(changes.hosts)],
        "engines": [engine_view(state.engines[name]) for name in sorted(changes.engines)],
        "spark": changes.spark,
        "series": {name: {"mem": points.mem, "wait": points.wait} for name, points in changes.series.items()},
        "events": changes.events,
        "lost": lost_view(state),
        "sources": list(sources),
    }
