"""The words of the tracker: sessions, calls and processes as it knows them, and what it asks the daemon to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate_collectors.hints import Hint
from tidegate_collectors.kernel.observer import SubjectStats
from tidegate_collectors.records import Boundary, Category, Priority, Record

UNKNOWN_STATUS = -1
"""Wait status of a process whose end was noticed but not seen."""


class TrackerError(Exception):
    """A registration that is refused; the message goes to the one who asked."""


@dataclass(slots=True)
class Process:
    """One living process of a session."""

    pid: int
    ppid: int
    subject: int
    t_us: int
    comm: str = ""
    fresh: bool = False
    """Its first exec was reported with the call; the observer may report that exec once more."""


@dataclass(slots=True)
class Call:
    """One call, from its start until no process of it is left."""

    session: Session
    id: str
    subject: int
    pid: int
    t_us: int
    tool: str = ""
    category: Category = "other"
    command: str | None = None
    hint: Hint | None = None
    boundary: Boundary = "fork"
    cgroup_id: int | None = None
    argv: tuple[str, ...] = ()
    """Its command line, as far as the kernel told it; never recorded from here."""
    within: str | None = None
    """The call whose process it was before it began as one of its own."""
    held_until_us: int | None = None
    """Not announced yet: it is the wrapper, which will say what it runs, or an agent's hook."""
    quiet: bool = False
    """It looks like an agent's hook: of its processes nothing is said while it is held."""
    untold: list[Record] = field(default_factory=list)
    """What would have been said of it meanwhile."""
    hook: bool = False
    """It has said that it is a hook; when it ends in time, it was no call."""
    announced: bool = False
    ended: bool = False
    dropped: bool = False
    status: int = UNKNOWN_STATUS
    end_us: int = 0
    pids: set[int] = field(default_factory=set)
    seen: int = 1
    bursts: int = 0
    ooms: int = 0


@dataclass(slots=True)
class Session:
    """One session, from its registration until no process of it is left."""

    id: str
    subject: int
    pid: int
    t_us: int
    agent: str = ""
    title: str = ""
    priority: Priority = "normal"
    budget_bytes: int | None = None
    cgroup: str | None = None
    launcher_pid: int | None = None
    next_call: int = 1
    pids: set[int] = field(default_factory=set)
    calls: dict[int, Call] = field(default_factory=dict)
    emptied: list[Call] = field(default_factory=list)
    """Calls that have ended and lost their last process, and are to be dropped."""
    open_calls: int = 0
    """Calls that are not to be dropped yet."""
    ended: bool = False
    dropped: bool = False
    root_gone_us: int | None = None
    launcher_status: int | None = None
    launcher_us: int = 0
    oom_pids: set[int] = field(default_factory=set)


@dataclass(slots=True, frozen=True)
class PlaceCall:
    """Make the call's group and read its hint, answer with ``Tracker.call_placed``, then move its processes."""

    session: str
    call: str
    subject: int
    pid: int


@dataclass(slots=True, frozen=True)
class TrackCall:
    """Tell the observer that ``pid`` begins the explicit call ``subject``."""

    session: str
    call: str
    subject: int
    runtime_subject: int
    pid: int


@dataclass(slots=True, frozen=True)
class MovePid:
    """Put a process, forked before its call's group was ready, into that group."""

    session: str
    call: str
    pid: int


@dataclass(slots=True, frozen=True)
class MeasureCall:
    """The call's first process is gone: read its counters and answer with ``Tracker.call_measured``."""

    session: str
    call: str
    subject: int


@dataclass(slots=True, frozen=True)
class DropCall:
    """No process of the call is left: forget its subject, remove its group."""

    session: str
    call: str
    subject: int


@dataclass(slots=True, frozen=True)
class DropSession:
    """No process of the session is left: forget its subject, remove its groups."""

    session: str
    subject: int


Command = PlaceCall | TrackCall | MovePid | MeasureCall | DropCall | DropSession
Output = Record | Command
"""What the tracker wants done, in order: a record is to be sent, a command to be carried out."""


@dataclass(slots=True, frozen=True)
class CallFigures:
    """What the daemon read at a call's end; ``None`` for what this host cannot know."""

    stats: SubjectStats | None = None
    charged_peak_bytes: int | None = None
    stall_us: int | None = None
    oom_kills: int = 0


def exit_of(status: int) -> tuple[int | None, int | None]:
    """``(exit code, signal)`` of a wait status; exactly one is set, or none when the status is unknown."""
    if status < 0:
        return None, None
    signal = status & 0x7F
    return (None, signal) if signal else ((status >> 8) & 0xFF, None)
