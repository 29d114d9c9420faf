"""What the fold remembers of a session, a call, a process and a host. Times in microseconds UTC, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .limits import Limits
from .spans import Coverage, Lanes
from .spark import Spark

Phase = Literal["running", "ended", "lost"]
"""lost: the end was not seen, so nobody knows when it was."""


@dataclass(slots=True)
class Process:
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


@dataclass(slots=True)
class Processes:
    """Processes in order of their first record; at most ``limit``, the others are counted."""

    limit: int
    by_pid: dict[int, Process] = field(default_factory=dict)
    ended: list[Process] = field(default_factory=list)
    omitted: int = 0

    def all(self) -> list[Process]:
        """Ended and running processes, in order of their start; of their end where they started no program."""
        return sorted([*self.ended, *self.by_pid.values()], key=_process_order)


@dataclass(slots=True)
class Call:
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


@dataclass(slots=True)
class Tick:
    """Samples of a session that carry the same time: together they are one point of its charts.

    ``runtime_excess`` and ``calls_excess`` are how far memory went above the sampled value since the point before;
    ``wait_percent`` adds up the subjects, each over its own window; ``waited`` tells whether there was any.
    """

    t_us: int = -1
    memory: bool = False
    runtime_excess: int = 0
    calls_excess: int = 0
    excess_category: str = "other"
    wait_percent: float = 0.0
    waited: bool = False
    session_wait: bool = False


@dataclass(slots=True)
class Totals:
    """Time of a session, summed from its parts, and as the collector gave it for the session as a whole."""

    parts_us: int | None = None
    session_us: int | None = None

    def add_part(self, microseconds: int) -> None:
        """Time of the runtime or of one call."""
        self.parts_us = microseconds if self.parts_us is None else self.parts_us + microseconds

    def add_session(self, microseconds: int) -> None:
        """Time of the whole session."""
        self.session_us = microseconds if self.session_us is None else self.session_us + microseconds

    def value(self) -> int | None:
        """The session's own figure where there is one, else the sum of its parts; None when neither was seen."""
        return self.parts_us if self.session_us is None else self.session_us


@dataclass(slots=True)
class Session:
    """One agent's run. A session id that is used again replaces the ended session of that id.

    ``lingering`` holds the calls that have ended and whose processes left behind hold memory still.
    """

    id: str
    host: str
    src: str
    spark: Spark
    coverage: Coverage
    lanes: Lanes
    processes: Processes
    announced: bool = False
    title: str = ""
    agent: str = ""
    priority: str = "normal"
    pid: int | None = None
    phase: Phase = "running"
    started_us: int | None = None
    ended_us: int | None = None
    end_reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    budget_bytes: int | None = None
    runtime_bytes: int | None = None
    runtime_peak_bytes: int | None = None
    runtime_t_us: int = -1
    runtime_sampled: bool = False
    calls_bytes: int = 0
    by_category: dict[str, int] = field(default_factory=dict)
    peak_bytes: int | None = None
    kernel_peak_bytes: int | None = None
    estimated_peak_bytes: int | None = None
    calls: dict[str, Call] = field(default_factory=dict)
    running: dict[str, Call] = field(default_factory=dict)
    lingering: dict[str, Call] = field(default_factory=dict)
    calls_total: int = 0
    bursts: int = 0
    bursts_in_calls: int = 0
    ooms: int = 0
    left_behind: int = 0
    cpu: Totals = field(default_factory=Totals)
    wait: Totals = field(default_factory=Totals)
    stall: Totals = field(default_factory=Totals)
    sched_t_us: int = -1
    tick: Tick = field(default_factory=Tick)
    last_t_us: int = 0


@dataclass(slots=True)
class Host:
    """One Linux machine, and what the collector takes of it."""

    host: str
    kernel: str | None = None
    cpus: int | None = None
    mem_total_bytes: int | None = None
    mem_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    cpu_busy_us: int | None = None
    window_us: int | None = None
    own_cpu_us: int | None = None
    own_rss_bytes: int | None = None
    own_bpf_run_us: int | None = None
    own_events: int | None = None
    last_t_us: int = 0


@dataclass(slots=True)
class Source:
    """One start of one sender."""

    src: str
    host: str
    last_t_us: int
    last_seq: int


@dataclass(slots=True)
class LostCount:
    """Records lost at one place."""

    count: int
    last_t_us: int


@dataclass(slots=True)
class Run:
    """The run that the records belong to."""

    id: str = ""
    title: str = ""
    source: str = "live"
    started_us: int | None = None
    ended_us: int | None = None


def new_session(session: str, host: str, src: str, limits: Limits) -> Session:
    """An empty session, not yet announced by a session.start."""
    return Session(
        id=session,
        host=host,
        src=src,
        spark=Spark(limits.spark_us, limits.spark_points),
        coverage=Coverage(limits.calls),
        lanes=Lanes(limits.lanes),
        processes=Processes(limits.processes),
    )
