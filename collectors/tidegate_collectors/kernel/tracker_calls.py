"""Names and records of sessions and calls, from what the tracker knows. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tidegate_collectors.kernel.tracker_model import Call, CallFigures, Session, exit_of
from tidegate_collectors.records import CallEnd, CallStart, Category, SessionEnd, SessionStart

MAX_COMMAND_CHARS = 512

EndReason = Literal["finished", "oom", "killed", "error"]


@dataclass(slots=True, frozen=True)
class Named:
    """What a command line is called: its category, its tool, and as much of it as may be recorded."""

    category: Category
    tool: str
    command: str | None


class Classified(Protocol):
    """What the categories module says of a command line."""

    @property
    def category(self) -> Category:
        """Class of the command."""

    @property
    def tool(self) -> str:
        """Base name of the program that matters."""

    @property
    def summary(self) -> str:
        """Recognised words without arguments."""


CallNaming = Callable[[Sequence[str]], Named]


def namer(classify: Callable[[Sequence[str]], Classified], *, record_args: bool) -> CallNaming:
    """Name calls by the rules of the categories; the full command line only where arguments are recorded."""

    def name(argv: Sequence[str]) -> Named:
        found = classify(argv)
        text = shlex.join(argv) if record_args else found.summary
        return Named(found.category, found.tool, text[:MAX_COMMAND_CHARS] or None)

    return name


def session_start(session: Session) -> SessionStart:
    """The record that opens a session."""
    return SessionStart(
        t=session.t_us, session=session.id, agent=session.agent, title=session.title, priority=session.priority,
        budget_bytes=session.budget_bytes, cgroup=session.cgroup, pid=session.pid,
    )  # fmt: skip


def session_end(session: Session, status: int, t_us: int) -> SessionEnd:
    """The record that closes a session; ``oom`` only when the kernel named its root process as the victim."""
    exit_code, signal = exit_of(status)
    reason: EndReason = "finished"
    if signal is not None:
        reason = "oom" if session.pid in session.oom_pids else "killed"
    elif exit_code:
        reason = "error"
    return SessionEnd(t=t_us, session=session.id, reason=reason, exit_code=exit_code, signal=signal)


def call_start(call: Call) -> CallStart:
    """The record that opens a call."""
    return CallStart(
        t=call.t_us, session=call.session.id, call=call.id, tool=call.tool, category=call.category,
        command=call.command, hint=call.hint.text if call.hint else None,
        hint_bytes=call.hint.bytes if call.hint else None, cgroup_id=call.cgroup_id, boundary=call.boundary,
        pid=call.pid,
    )  # fmt: skip


def call_end(call: Call, figures: CallFigures | None, window_us: int) -> CallEnd:
    """The record that closes a call; without figures its end was not seen."""
    if figures is None:
        return CallEnd(t=call.end_us, session=call.session.id, call=call.id, lost=True)
    exit_code, signal = exit_of(call.status)
    record = CallEnd(
        t=call.end_us, session=call.session.id, call=call.id, exit_code=exit_code, signal=signal,
        oom=call.ooms > 0 or figures.oom_kills > 0, duration_us=max(call.end_us - call.t_us, 0),
        charged_peak_bytes=figures.charged_peak_bytes, stall_us=figures.stall_us, left_behind=len(call.pids),
        processes=call.seen, bursts=call.bursts,
    )  # fmt: skip
    if (stats := figures.stats) is None:
        return record
    record.oom = record.oom or stats.ooms > 0
    record.peak_bytes = stats.peak_bytes
    record.spike_bytes = max(stats.max_session_bytes - stats.start_session_bytes, 0)
    record.kept_bytes = stats.used_bytes if call.pids else 0
    record.rise_bytes_per_s = stats.window_max_bytes * 1_000_000 // window_us
    record.cpu_us, record.runq_wait_us = stats.oncpu_us, stats.wait_us
    # Both counts may have gaps: events by a full ring, the kernel's by a subject that was registered late.
    record.processes = max(call.seen, stats.forks + 1)
    record.bursts = max(call.bursts, stats.bursts)
    return record
