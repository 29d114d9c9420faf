"""Memory and waiting of a session, put together from samples that carry the same time.

A sampling tick sends one record a subject. Only all of them together are a point of a chart: between two records of one
tick the sum can show memory that never was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .changes import MemPoint, WaitPoint
from .model import Call, Session, Tick

if TYPE_CHECKING:
    from .state import State

LINGER_US: Final = 2_500_000
"""How long memory of processes left behind counts without a further sample; samples are repeated once a second."""


def advance(state: State, session: Session, t_us: int) -> None:
    """Begin the tick of ``t_us`` when it is newer than the open one, which is then complete."""
    tick = session.tick
    if t_us <= tick.t_us:
        return
    if tick.t_us >= 0:
        _complete(state, session)
    session.tick = Tick(t_us=t_us)
    lingering = session.calls.lingering
    for call in list(lingering.values()) if lingering else ():
        if t_us - call.sample_t_us > LINGER_US:  # nobody samples it any more, so its processes are gone
            set_call_bytes(session, call, 0)
            memory_changed(state, session)


def memory_changed(state: State, session: Session) -> None:
    """The open tick has news of memory."""
    session.tick.memory = True
    if state.tracker is not None:
        state.tracker.open_mem.add(session.id)


def set_call_bytes(session: Session, call: Call, value: int) -> None:
    """Set what a call holds now and keep the sums of its session."""
    delta = value - (call.bytes or 0)
    call.bytes = value
    session.calls_bytes += delta
    session.by_category[call.category] = session.by_category.get(call.category, 0) + delta
    if call.phase != "running":
        session.calls.touch(call)
        if value:
            session.calls.lingering[call.id] = call
        else:
            session.calls.lingering.pop(call.id, None)


def set_category(session: Session, call: Call, category: str) -> None:
    """Set the category of a call and move what it holds to it."""
    held = call.bytes or 0
    if held and category != call.category:
        session.by_category[call.category] -= held
        session.by_category[category] = session.by_category.get(category, 0) + held
    call.category = category


def total_bytes(session: Session) -> int | None:
    """Memory of runtime and calls now; None before the first sample."""
    if session.runtime_bytes is None and not session.tick.memory and session.estimated_peak_bytes is None:
        return None
    return (session.runtime_bytes or 0) + session.calls_bytes


def mem_point(session: Session) -> MemPoint:
    """The open tick as a point of the memory chart, extremes included."""
    tick, calls = session.tick, _held(session)
    if tick.calls_excess:
        calls[tick.excess_category] = calls.get(tick.excess_category, 0) + tick.calls_excess
    return (tick.t_us, (session.runtime_bytes or 0) + tick.runtime_excess, calls)


def open_points(session: Session) -> list[MemPoint]:
    """The open tick as points: its extreme and, when that has passed already, what is there now. A chart holds its last
    point, and after the last record of a session no other will come."""
    points = [mem_point(session)]
    tick = session.tick
    if tick.calls_excess or tick.runtime_excess:
        points.append((tick.t_us + 1, session.runtime_bytes or 0, _held(session)))
    return points


def _held(session: Session) -> dict[str, int]:
    return {name: value for name, value in session.by_category.items() if value}


def wait_point(session: Session) -> WaitPoint | None:
    """The open tick as a point of the wait chart; None without a sched.sample or without its window."""
    tick = session.tick
    return (tick.t_us, tick.wait_percent) if tick.waited else None


def open_peak(session: Session) -> int | None:
    """Highest memory within the open tick, as far as it can be told without the kernel's peak of the session."""
    tick = session.tick
    if not tick.memory:
        return None
    # Subjects need not have been at their highest together: the greater excess alone is known to have been there.
    return (session.runtime_bytes or 0) + session.calls_bytes + max(tick.runtime_excess, tick.calls_excess)


def raise_peak(session: Session, value: int) -> None:
    """Memory of the session has been at least ``value``."""
    if session.peak_bytes is None or value > session.peak_bytes:
        session.peak_bytes = value


def _complete(state: State, session: Session) -> None:
    tick = session.tick
    tracker = state.tracker
    if tick.memory:
        runtime = session.runtime_bytes or 0
        total = runtime + session.calls_bytes
        raise_peak(session, total)
        session.estimated_peak_bytes = max(session.estimated_peak_bytes or 0, open_peak(session) or 0)
        session.spark.add(tick.t_us, runtime + tick.runtime_excess, session.calls_bytes + tick.calls_excess)
        if tracker is not None and session.id in tracker.open_mem:
            tracker.open_mem.discard(session.id)
            tracker.mem(session.id, mem_point(session))
    if tick.waited and tracker is not None and session.id in tracker.open_wait:
        tracker.open_wait.discard(session.id)
        point = wait_point(session)
        if point is not None:
            tracker.wait(session.id, point)
