"""The kernel seen by our BPF programs (``bpf/collector.bpf.c``).

The programs decide who a process belongs to, count, and send events; this module loads them, tells them what to track
and reads the counters. Two sources of memory figures exist, see ``bpf/memory.h``; ``auto`` takes the first of
:data:`~.bpf_programs.SOURCES` that loads and passes the self-check.

Two loaders exist: libbpf with an object that clang built (:mod:`.libbpf`), and BCC, which compiles the same source for
this very kernel (:mod:`.bcc_object`).
"""

from __future__ import annotations

import errno
import os
import time
from typing import Literal

from tidegate_collectors.kernel import bpf_layout as layout
from tidegate_collectors.kernel import selfcheck
from tidegate_collectors.kernel.bpf_loading import Loader, Programs, load, programs_of
from tidegate_collectors.kernel.bpf_programs import SOURCES, TRACEPOINTS, MemorySource
from tidegate_collectors.kernel.bpf_reasons import explain
from tidegate_collectors.kernel.bpf_ring import PlainRing
from tidegate_collectors.kernel.bpf_syscall import BpfCalls
from tidegate_collectors.kernel.clock import Clock, now_us
from tidegate_collectors.kernel.libbpf import BpfError, BpfMap, BpfRing
from tidegate_collectors.kernel.observer import FIRST_KERNEL_SUBJECT, Event, SubjectStats
from tidegate_collectors.records import Capability

_SOURCE_NUMBERS = {"rss_stat": layout.SOURCE_RSS_STAT, "memcg": layout.SOURCE_MEMCG}
_MAX_EVENTS = 65536  # of one read, so that a flood cannot keep the caller for ever


class BpfObserver:
    """Implements :class:`~tidegate_collectors.kernel.observer.Observer`. Not thread-safe.

    Args:
        burst_bytes: growth within one window that is a burst; 0: none is.
        window_us: length of the window.
        latency_us: a longer wait for a CPU is an event; 0: none is.
        memory_source: where memory figures come from.
        ring_bytes: size of the ring buffer, a power of two of pages.
        check: whether to check the programs against known truths first.
        loader: who loads the programs.
        programs: others than those that are compiled from our source; of the loader's kind.

    Raises:
        BpfError: the programs cannot be loaded, or they report something wrong; nothing is left behind.
        BuildError: there is no object and it cannot be built, or BCC cannot compile it.
    """

    name = "bpf"

    def __init__(
        self,
        *,
        burst_bytes: int = 64 << 20,
        window_us: int = 100_000,
        latency_us: int = 0,
        memory_source: Literal["auto", "memcg", "rss_stat"] = "auto",
        ring_bytes: int = 1 << 20,
        check: bool = True,
        loader: Loader = "libbpf",
        programs: Programs | None = None,
    ) -> None:
        self.loader = loader
        given = programs or programs_of(loader)
        self._settings = (window_us * 1000, burst_bytes, latency_us * 1000)
        self._capabilities: dict[str, Capability] = {}
        self.notes: list[Capability] = []
        """What others found about the choice of this observer."""
        self._raw: list[bytes] = []
        self._memcg_ids: dict[int, list[int]] = {}
        self._stats_fd: int | None = None
        self.clock = Clock()
        self.check_us = 0
        """How long the self-check took."""
        self.load_us = 0
        """How long loading and attaching took."""
        wanted = SOURCES if memory_source == "auto" else (memory_source,)
        for source in wanted:
            try:
                self._open(given, source, ring_bytes, check)
                break
            except BpfError:
                if source == wanted[-1]:
                    raise

    @property
    def capabilities(self) -> list[Capability]:
        """What was tried at the start."""
        return [*self.notes, *self._capabilities.values()]

    def fileno(self) -> int:
        """A descriptor that polls readable when there are events."""
        return self._ring.fileno()

    def read_events(self) -> list[Event]:
        """What happened since the last call, in the order of happening (which is that of ``t_us``, but for CALL: its
        time is that of the fork; and EXIT: its is when the memory was gone)."""
        self._ring.consume()
        raw, self._raw = self._raw, []
        self.clock.refresh()
        return [layout.event_of(record, self.clock.offset_ns) for record in raw]

    def track_runtime(
        self,
        cgroup_id: int | None,
        subject: int,
        *,
        pid: int | None = None,
        runtime_depth: int = 0,
        memcg_id: int | None = None,
    ) -> None:
        """See the protocol. ``memcg_id``: its cgroup in the memory controller's hierarchy, when that is not v2's.

        Raises:
            ProcessLookupError: ``pid`` is gone.
            BpfError: a map is full.
        """
        self._create(self._sessions, subject)
        tag = layout.Tag(subject, subject, layout.KIND_RUNTIME, runtime_depth)
        self._track(cgroup_id, memcg_id, tag, pid)

    def track_call(
        self,
        cgroup_id: int | None,
        subject: int,
        runtime_subject: int,
        *,
        pid: int | None = None,
        memcg_id: int | None = None,
    ) -> None:
        """See the protocol and :meth:`track_runtime`."""
        self._track(cgroup_id, memcg_id, layout.Tag(subject, runtime_subject, layout.KIND_CALL), pid)

    def untrack(self, cgroup_id: int | None, subject: int) -> None:
        """Forget a subject and its cgroup; unknown ones are ignored."""
        if cgroup_id is not None:
            self._tracked.delete(cgroup_id)
        for memcg_id in self._memcg_ids.pop(subject, ()):
            self._memcgs.delete(memcg_id)
        self._subjects.delete(subject)
        self._sessions.delete(subject)

    def stats(self, subject: int) -> SubjectStats | None:
        """Counters of one runtime or call, the slices that run right now included."""
        return self._read(self._subjects, subject, 0)

    def session_stats(self, runtime_subject: int) -> SubjectStats | None:
        """Counters of a runtime and all its calls together."""
        return self._read(self._sessions, runtime_subject, 1)

    def dead_calls(self) -> list[int]:
        """See the protocol; most of them are about to be read and forgotten by the daemon."""
        calls = [subject for subject in list(self._subjects.keys()) if subject >= FIRST_KERNEL_SUBJECT]
        return [
            subject
            for subject in calls
            if (fields := self._subjects.get(subject)) is not None and layout.stats_of(fields).alive <= 0
        ]

    def lost(self) -> dict[str, int]:
        """Events that found the ring full, and processes or subjects that found no room, since the start."""
        return {
            "bpf_ring": sum(self._losses.get_per_cpu(layout.LOSS_RING)),
            "bpf_map": sum(self._losses.get_per_cpu(layout.LOSS_MAP)),
        }

    def run_time_us(self) -> int | None:
        """Time spent in our programs since the start; ``None`` when the kernel does not let us measure it."""
        if self._stats_fd is None:
            return None
        return sum(self._object.run_stats(name)[0] for name in self._object.attached) // 1000

    def program_costs(self) -> dict[str, tuple[int, int]]:
        """Nanoseconds and runs of each program."""
        return {name: self._object.run_stats(name)[:2] for name in self._object.attached}

    def close(self) -> None:
        """Detach and free everything; again is harmless."""
        if hasattr(self, "_ring"):
            self._ring.close()
        self._object.close()
        if self._stats_fd is not None:
            os.close(self._stats_fd)
            self._stats_fd = None

    # --- loading -------------------------------------------------------------------------------------------------

    def _open(self, programs: Programs, source: MemorySource, ring_bytes: int, check: bool) -> None:
        started = time.monotonic_ns()
        self.memory_source: Literal["memcg", "rss_stat", "procfs"] = source
        self._object, self._names = load(programs, source, ring_bytes, self._note)
        try:
            self._open_maps(source)
            self._ring: BpfRing | PlainRing = self._object.ring("events", self._take)
            if "learn_cpus" in self._names:
                self._object.run("learn_cpus", bytes(8))
            for name in self._names & TRACEPOINTS.keys():
                self._object.attach(name)
                self._note(f"tp_btf.{TRACEPOINTS[name]}", True, "")
            self._stats_fd = self._start_statistics()
            self.load_us = (time.monotonic_ns() - started) // 1000
            if check:
                self.check_us = selfcheck.run(self)
        except BpfError as error:
            self.close()
            raise BpfError(explain(error), error.code, error.log, explained=True) from error
        except BaseException:
            self.close()
            raise

    def _open_maps(self, source: MemorySource) -> None:
        o = self._object
        self._config = o.map("config", "=I", layout.CONFIG)
        self._tracked = o.map("tracked", "=Q", layout.TAG)
        self._memcgs = o.map("memcgs", "=Q", layout.TAG)
        self._subjects = o.map("subjects", "=Q", layout.STATS)
        self._sessions = o.map("sessions", "=Q", layout.STATS)
        self._losses = o.map("losses", "=I", "=Q", per_cpu=True)
        self._running = o.map("running", "=I", layout.RUNNING, per_cpu=True)
        page_shift = os.sysconf("SC_PAGESIZE").bit_length() - 1
        self._config.set(0, (*self._settings, _SOURCE_NUMBERS[source], page_shift))

    def _start_statistics(self) -> int | None:
        try:
            descriptor = BpfCalls().enable_stats()
        except BpfError as error:
            self._note("bpf.stats", False, f"{error}; the time that programs take is not shown (needs CAP_SYS_ADMIN)")
            return None
        self._note("bpf.stats", True, "")
        return descriptor

    def _note(self, name: str, available: bool, reason: str) -> None:
        t = now_us()
        self._capabilities[name] = Capability(t=t, name=name, available=available, reason=reason)

    # --- maps ------------------------------------------------------------------------------------------------------

    def _take(self, record: bytes) -> bool:
        self._raw.append(record)
        return len(self._raw) < _MAX_EVENTS

    def _create(self, table: BpfMap, subject: int) -> None:
        try:
            table.set(subject, layout.no_stats(), only_new=True)
        except BpfError as error:
            if error.errno == errno.E2BIG:
                raise BpfError(
                    "the collector observes as much as it has room for; end a session and try again",
                    error.code,
                    explained=True,
                ) from None
            if error.errno != errno.EEXIST:
                raise

    def _track(self, cgroup_id: int | None, memcg_id: int | None, tag: layout.Tag, pid: int | None) -> None:
        self._create(self._subjects, tag.subject)
        if cgroup_id is not None:
            self._tracked.set(cgroup_id, tag.packed())
        if memcg_id is not None:
            self._memcgs.set(memcg_id, tag.packed())
            self._memcg_ids.setdefault(tag.subject, []).append(memcg_id)
        if pid is not None:
            answer = self._object.run("tag_process", layout.TAG_REQUEST.pack(*tag.packed(), pid, 0))
            result = layout.TAG_REQUEST.unpack(answer)[-1]
            if result == -errno.ESRCH:
                raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone")
            if result < 0:
                raise BpfError(f"tracking process {pid}", -result)

    def _read(self, counters: BpfMap, subject: int, column: int) -> SubjectStats | None:
        open_slices = self._running.get_per_cpu(0)
        fields = counters.get(subject)
        for _ in range(3):  # a slice that ended in between would be counted twice or not at all
            again = self._running.get_per_cpu(0)
            if again == open_slices:
                break
            open_slices, fields = again, counters.get(subject)
        if fields is None:
            return None
        stats = layout.stats_of(fields)
        now = time.monotonic_ns()
        stats.oncpu_us += sum(max(now - r[2], 0) for r in open_slices if r[2] and r[column] == subject) // 1000
        return stats
