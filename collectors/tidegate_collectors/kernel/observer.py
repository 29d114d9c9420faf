"""What the daemon needs of an observer of the kernel: events, counters by subject, and honest losses.

Two implementations stand behind this: BPF programs (:mod:`.bpf_observer`) and files of /proc (:mod:`.procfs`), for
hosts where programs cannot be loaded.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tidegate_collectors.records import Capability

HIST_BUCKETS = 32
"""Buckets of the wait histogram: bucket i counts waits of 2^i to 2^(i+1) microseconds."""

FIRST_KERNEL_SUBJECT = 1 << 32
"""Subjects below this are assigned by the daemon, the others by the kernel program."""


class EventKind(enum.IntEnum):
    """What happened. The numbers are those of ``enum tg_event_kind`` in the BPF source."""

    FORK = 1
    EXEC = 2
    EXIT = 3
    CALL = 4
    BURST = 5
    OOM = 6
    ATTACH = 7
    LATENCY = 8


@dataclass(slots=True, frozen=True)
class Event:
    """One event of a tracked process.

    FORK: ``pid`` is the child, ``ppid`` its parent, ``cgroup_id`` the child's. EXEC: ``pid`` runs a new program.
    CALL: ``subject`` is a new call of the runtime subject ``a``; ``t_us`` is the time of its fork and ``argv`` its
    command line, cut at 512 bytes. EXIT: the whole process is gone, ``a`` is its wait status, ``b`` its high-water
    mark in bytes. BURST: ``a`` bytes grown in the window, ``b`` bytes in total. OOM: ``pid`` was chosen as victim.
    ATTACH: ``pid`` entered the tracked cgroup ``cgroup_id``. LATENCY: ``pid`` waited ``a`` microseconds for a CPU.
    """

    kind: EventKind
    t_us: int
    subject: int
    pid: int
    ppid: int = 0
    a: int = 0
    b: int = 0
    cgroup_id: int = 0
    comm: str = ""
    argv: tuple[str, ...] = ()


@dataclass(slots=True)
class SubjectStats:
    """Counters of one subject since it began. Sizes in bytes, times in microseconds."""

    anon_bytes: int = 0
    file_bytes: int = 0
    shmem_bytes: int = 0
    swap_bytes: int = 0
    peak_bytes: int = 0
    window_max_bytes: int = 0
    oncpu_us: int = 0
    wait_us: int | None = 0
    wait_max_us: int | None = 0
    switches: int | None = 0
    hist: list[int] = field(default_factory=lambda: [0] * HIST_BUCKETS)
    forks: int = 0
    execs: int = 0
    exits: int = 0
    alive: int = 0
    bursts: int = 0
    ooms: int = 0
    start_session_bytes: int = 0
    max_session_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """Memory that cannot be reclaimed: anonymous and shared."""
        return self.anon_bytes + self.shmem_bytes


class Observer(Protocol):
    """The kernel, seen by subject. Process ids are those of the initial pid namespace."""

    name: str
    memory_source: Literal["memcg", "rss_stat", "procfs"]

    @property
    def capabilities(self) -> Sequence[Capability]:
        """What was tried and how it went."""

    def fileno(self) -> int:
        """A descriptor that polls readable when :meth:`read_events` has something."""

    def read_events(self) -> list[Event]:
        """Everything since the last call, in time order."""

    def track_runtime(
        self,
        cgroup_id: int | None,
        subject: int,
        *,
        pid: int | None = None,
        runtime_depth: int = 0,
        memcg_id: int | None = None,
    ) -> None:
        """Count processes that enter this cgroup (and ``pid``, already running) as the runtime ``subject``.

        ``memcg_id``: the id of its group in the memory controller's hierarchy, where that is not v2.

        Raises:
            OSError: ``pid`` is gone, or there is no room for another subject.
        """

    def track_call(
        self,
        cgroup_id: int | None,
        subject: int,
        runtime_subject: int,
        *,
        pid: int | None = None,
        memcg_id: int | None = None,
    ) -> None:
        """Count processes that enter this cgroup (and ``pid``) as the call ``subject`` of that runtime.

        ``memcg_id`` and errors: see :meth:`track_runtime`.
        """

    def untrack(self, cgroup_id: int | None, subject: int) -> None:
        """Forget a subject and its cgroup; unknown ones are ignored."""

    def stats(self, subject: int) -> SubjectStats | None:
        """Counters of one runtime or call; ``None`` when it is not known."""

    def session_stats(self, runtime_subject: int) -> SubjectStats | None:
        """Counters of a runtime and all its calls together."""

    def dead_calls(self) -> list[int]:
        """Calls that the kernel program made up and keeps counters of, though no process of theirs lives."""

    def lost(self) -> dict[str, int]:
        """What could not be reported or counted since the start, by place (``bpf_ring``, ``bpf_map``)."""

    def run_time_us(self) -> int | None:
        """Time the kernel spent in our programs; ``None`` where it is not measured."""

    def close(self) -> None:
        """Detach and free everything."""
