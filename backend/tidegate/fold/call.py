"""What the fold remembers of a call and of its processes. Times in microseconds UTC, sizes in bytes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

Phase = Literal["running", "ended", "lost"]
"""lost: the end was not seen, so nobody knows when it was."""


class Process(Struct, array_like=True, gc=False):
    """One process of a call or of a runtime."""

    pid: int
    ppid: int | None = None
    comm: str = ""
    started_us: int | None = None
    ended_us: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    hiwater_bytes: int | None = None
    left_behind: bool = False


def _process_order(process: Process) -> tuple[int, int]:
    first_seen = process.ended_us if process.started_us is None else process.started_us
    return (first_seen or 0, process.pid)


class Processes(Struct, array_like=True):
    """Processes in order of their first record; at most ``limit``, the others are counted."""

    limit: int
    by_pid: dict[int, Process] = field(default_factory=dict)
    ended: list[Process] = field(default_factory=list)
    omitted: int = 0

    def all(self) -> list[Process]:
        """Ended and running processes, in order of their start; of their end where they started no program."""
        return sorted([*self.ended, *self.by_pid.values()], key=_process_order)


class Call(Struct, array_like=True):
    """One tool call."""

    session: str
    id: str
    ordinal: int
    processes: Processes
    announced: bool = False
    tool: str = ""
    category: str = "other"
    command: str | None = None
    hint: str | None = None
    hint_bytes: int | None = None
    boundary: str | None = None
    pid: int | None = None
    cgroup_id: int | None = None
    started_us: int | None = None
    ended_us: int | None = None
    phase: Phase = "running"
    lane: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    duration_us: int | None = None
    bytes: int | None = None
    peak_bytes: int | None = None
    kernel_peak_bytes: int | None = None
    spike_bytes: int | None = None
    kept_bytes: int | None = None
    charged_peak_bytes: int | None = None
    rise_bytes_per_s: int | None = None
    cpu_us: int | None = None
    wait_us: int | None = None
    stall_us: int | None = None
    process_count: int | None = None
    left_behind: int | None = None
    bursts: int = 0
    oom_kills: int = 0
    sample_t_us: int = -1
    agent_tool: str | None = None
    agent_call_id: str | None = None
    match_confidence: str | None = None
    match_how: str | None = None
    match_position: int = 0
    result_chars: int | None = None
    agent_failed: bool = False
