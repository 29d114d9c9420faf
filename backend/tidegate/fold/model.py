"""What the fold remembers of a session and of a host. Times in microseconds UTC, sizes in bytes.

All of it are structs that can be written down and read again (:mod:`.snapshot`), so nothing here refers to anything
that is not kept: no open file, no tracker, no clock.
"""

from __future__ import annotations

from msgspec import Struct, field

from .call import Call, Phase, Process, Processes
from .coverage import Coverage
from .engine import Inference
from .kept import Calls
from .lanes import Lanes
from .limits import Limits
from .spark import Spark

__all__ = [
    "Call", "Calls", "Host", "LostCount", "Phase", "Process", "Processes", "Run", "Session", "Source", "Tick",
    "Totals", "new_session",
]  # fmt: skip


class Tick(Struct, array_like=True, gc=False):
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


class Totals(Struct, array_like=True, gc=False):
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


class Session(Struct, array_like=True):
    """One agent's run. A session id that is used again replaces the ended session of that id.

    ``no`` counts the sessions of the run, in order of their first record. ``ord`` is the last record that changed it.
    """

    id: str
    no: int
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
    calls: Calls = field(default_factory=Calls)
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
    inference: Inference = field(default_factory=Inference)
    last_t_us: int = 0
    ord: int = 0

    @property
    def running(self) -> dict[str, Call]:
        """The calls that run."""
        return self.calls.running


class Host(Struct, array_like=True, gc=False):
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


class Source(Struct, array_like=True, gc=False):
    """One start of one sender."""

    src: str
    host: str
    last_t_us: int
    last_seq: int


class LostCount(Struct, array_like=True, gc=False):
    """Records lost at one place."""

    count: int
    last_t_us: int


class Run(Struct, array_like=True, gc=False):
    """The run that the records belong to."""

    id: str = ""
    title: str = ""
    source: str = "live"
    started_us: int | None = None
    ended_us: int | None = None


def new_session(session: str, no: int, host: str, src: str, limits: Limits) -> Session:
    """An empty session, not yet announced by a session.start."""
    return Session(
        id=session,
        no=no,
        host=host,
        src=src,
        spark=Spark(limits.spark_us, limits.spark_points),
        coverage=Coverage(limits.calls),
        lanes=Lanes(limits.lanes),
        processes=Processes(limits.processes),
    )
