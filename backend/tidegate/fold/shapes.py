"""The JSON shapes of the API. Every key is always present, an unknown value is null.

Times are integer microseconds UTC, sizes bytes.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class CurrentCall(Struct, frozen=True):
    """The running call that began last."""

    id: str
    tool: str
    category: str
    command: str | None
    started_us: int | None
    bytes: int | None


class SessionView(Struct, frozen=True):
    """One session. ``tool_time_us`` is the union of its calls' intervals, running ones up to ``last_t_us``."""

    id: str
    title: str
    agent: str
    priority: str
    state: str
    host: str
    started_us: int | None
    ended_us: int | None
    end_reason: str | None
    exit_code: int | None
    signal: int | None
    budget_bytes: int | None
    runtime_bytes: int | None
    calls_bytes: int | None
    peak_bytes: int | None
    calls_total: int
    calls_running: int
    bursts: int
    ooms: int
    left_behind: int
    tool_time_us: int
    bursts_in_calls: int
    cpu_us: int | None
    wait_us: int | None
    stall_us: int | None
    current: CurrentCall | None
    last_t_us: int
    planes: list[str]
    turns: dict[str, Any]
    current_turn: dict[str, Any] | None
    kv: dict[str, Any] | None


class CallView(Struct, frozen=True):
    """One call. Of a running call the figures are those of its samples so far; null where there were none."""

    session: str
    id: str
    ordinal: int
    tool: str
    category: str
    command: str | None
    hint: str | None
    hint_bytes: int | None
    boundary: str | None
    pid: int | None
    cgroup_id: int | None
    started_us: int | None
    ended_us: int | None
    state: str
    lane: int
    exit_code: int | None
    signal: int | None
    oom: bool
    duration_us: int | None
    bytes: int | None
    peak_bytes: int | None
    spike_bytes: int | None
    kept_bytes: int | None
    charged_peak_bytes: int | None
    rise_bytes_per_s: int | None
    cpu_us: int | None
    wait_us: int | None
    stall_us: int | None
    processes: int | None
    left_behind: int | None
    bursts: int
    agent_tool: str | None
    agent_call_id: str | None
    match_confidence: str | None
    match_how: str | None
    match_position: int
    result_chars: int | None
    agent_failed: bool


class ProcessView(Struct, frozen=True):
    """One process of a call or runtime."""

    pid: int
    ppid: int | None
    comm: str
    started_us: int | None
    ended_us: int | None
    exit_code: int | None
    signal: int | None
    hiwater_bytes: int | None
    left_behind: bool


class OwnView(Struct, frozen=True):
    """What the collector itself takes: ``cpu_ratio`` and ``bpf_run_ratio`` of one core in the last window."""

    cpu_ratio: float | None
    rss_bytes: int | None
    bpf_run_ratio: float | None
    events: int | None


class HostView(Struct, frozen=True):
    """One machine. ``cpu_busy_ratio`` is 0 to 1 of all its CPUs."""

    host: str
    kernel: str | None
    cpus: int | None
    mem_total_bytes: int | None
    mem_available_bytes: int | None
    swap_used_bytes: int | None
    cpu_busy_ratio: float | None
    last_t_us: int
    own: OwnView


class LostAt(Struct, frozen=True):
    """Records lost at one place."""

    where: str
    of: str
    count: int
    last_t_us: int


class Lost(Struct, frozen=True):
    """All records known to be lost."""

    total: int
    by: list[LostAt]


class RunView(Struct, frozen=True):
    """The run."""

    id: str
    title: str
    source: str
    started_us: int | None
    ended_us: int | None
    replay: bool


class CapabilityView(Struct, frozen=True):
    """The latest word on one ability."""

    host: str
    plane: str
    name: str
    available: bool
    reason: str


class Neighbours(Struct, frozen=True):
    """The calls around a call: the one before and after it by start, and those that ran at the same time."""

    previous: CallView | None
    next: CallView | None
    overlapping: list[CallView]
