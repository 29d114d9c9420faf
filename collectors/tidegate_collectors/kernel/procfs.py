"""An observer for hosts where BPF programs cannot be loaded: it reads /proc some twenty times a second.

Works without rights and without cgroups. It misses what happens between two readings: processes that live shorter, and
peaks. Its capabilities say so.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Literal

from tidegate_collectors.kernel import clock
from tidegate_collectors.kernel import procfs_files as files
from tidegate_collectors.kernel.observer import FIRST_KERNEL_SUBJECT, Event, EventKind, SubjectStats
from tidegate_collectors.kernel.procfs_counters import Counters, Process
from tidegate_collectors.kernel.timers import Timer
from tidegate_collectors.records import Capability

POLL_S = 0.05
_EXITED_GROUPS = 4096


class ProcfsObserver:
    """Implements :class:`.observer.Observer` by polling.

    Args:
        burst_bytes: growth of one subject within ``window_us`` that makes a burst.
        poll_s: time between two readings while something is tracked; nothing is read otherwise.
    """

    name = "procfs"
    memory_source: Literal["memcg", "rss_stat", "procfs"] = "procfs"

    def __init__(self, *, burst_bytes: int, window_us: int, poll_s: float = POLL_S) -> None:
        self._poll_s = poll_s
        self._timer = Timer()
        self._processes: dict[int, Process] = {}
        self._seen: set[int] = set()
        self._groups: dict[int, int] = {}
        self._next_call = FIRST_KERNEL_SUBJECT
        self._events: list[Event] = []
        self._since_us = 0
        self._boot_us = files.boot_us()
        self.notes: list[Capability] = []
        """Further capabilities to report: what was tried before this observer was taken."""
        self._has_schedstat = files.read_schedstat(os.getpid(), 1) is not None
        self._counters = Counters(burst_bytes=burst_bytes, window_us=window_us, has_waits=self._has_schedstat)

    @property
    def capabilities(self) -> Sequence[Capability]:
        """What this way of looking can and cannot see."""
        now = clock.now_us()
        rate = round(1 / self._poll_s)
        return [
            *self.notes,
            Capability(
                t=now,
                name="procfs.processes",
                available=True,
                reason=f"/proc is read {rate} times a second: processes that live shorter are missed",
            ),
            Capability(
                t=now,
                name="procfs.memory",
                available=True,
                reason="peaks between two readings are missed; pages that a fork shares count once a process",
            ),
            Capability(
                t=now,
                name="procfs.schedstat",
                available=self._has_schedstat,
                reason="" if self._has_schedstat else "this kernel has no /proc/PID/schedstat (CONFIG_SCHED_INFO)",
            ),
        ]

    def fileno(self) -> int:
        """A timer that is armed while something is tracked."""
        return self._timer.fileno()

    def read_events(self) -> list[Event]:
        """Read /proc now and say what changed."""
        self._timer.read()
        if self._processes:
            self._poll(clock.now_us())
        events, self._events = self._events, []
        return sorted(events, key=lambda event: event.t_us)

    def track_runtime(
        self,
        cgroup_id: int | None,  # noqa: ARG002 - processes are followed, not groups
        subject: int,
        *,
        pid: int | None = None,
        runtime_depth: int = 0,
        memcg_id: int | None = None,  # noqa: ARG002
    ) -> None:
        """Follow ``pid`` and all that it starts from now on; groups are not looked at.

        Raises:
            ProcessLookupError: ``pid`` is gone.
        """
        stat = files.read_stat(pid) if pid is not None else None
        if pid is not None and stat is None:
            raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone")
        self._counters.add_runtime(subject)
        if not self._processes:
            self._since_us = clock.now_us()
        if pid is None or stat is None:
            return
        if not self._processes:
            self._seen = files.list_pids()
            self._timer.every(self._poll_s)
        self._seen.add(pid)
        self._add(stat, subject, runtime_depth, root=True)

    def track_call(
        self,
        cgroup_id: int | None,  # noqa: ARG002
        subject: int,
        runtime_subject: int,
        *,
        pid: int | None = None,
        memcg_id: int | None = None,  # noqa: ARG002
    ) -> None:
        """Count ``pid`` and what it starts from now on as the call ``subject``."""
        self._counters.add_call(subject, runtime_subject)
        if pid is None:
            return
        process = self._processes.get(pid)
        if process is None and (stat := files.read_stat(pid)) is not None:
            self._seen.add(pid)
            self._add(stat, subject, 0, root=True)
        elif process is not None:
            self._counters.move(process, subject)

    def untrack(self, cgroup_id: int | None, subject: int) -> None:  # noqa: ARG002
        """Forget a subject and its processes."""
        self._counters.remove(subject)
        for pid in [pid for pid, process in self._processes.items() if process.subject == subject]:
            del self._processes[pid]
        if not self._processes:
            self._timer.stop()

    def stats(self, subject: int) -> SubjectStats | None:
        """Counters as of the last reading."""
        found = self._counters.subjects.get(subject)
        return found.stats if found is not None else None

    def session_stats(self, runtime_subject: int) -> SubjectStats | None:
        """Counters of a runtime and its calls as of the last reading."""
        return self._counters.sessions.get(runtime_subject)

    def lost(self) -> dict[str, int]:
        """Nothing is lost on the way; what falls between two readings is not known."""
        return {}

    def dead_calls(self) -> list[int]:
        """No kernel program makes up calls."""
        return []

    def run_time_us(self) -> int | None:
        """No kernel program runs."""
        return None

    def close(self) -> None:
        """Stop reading."""
        self._timer.close()

    # --- one reading -----------------------------------------------------------------------------------------------

    def _poll(self, now_us: int) -> None:
        pids = files.list_pids()
        self._find_new(pids - self._seen)
        self._seen = pids
        # The youngest first: of a family that died since the last reading, the children died before their parent.
        for process in reversed(list(self._processes.values())):
            self._look(process, now_us)
        self._events.extend(self._counters.sum_up(self._processes.values(), now_us))
        if not self._processes:
            self._timer.stop()

    def _find_new(self, new: set[int]) -> None:
        stats = [stat for pid in new if (stat := files.read_stat(pid)) is not None]
        # A parent starts before its child, so one pass finds whole families; ticks are coarse, hence the pid.
        for stat in sorted(stats, key=lambda item: (item.start_ticks, item.pid)):
            parent = self._processes.get(stat.ppid)
            if parent is not None:
                self._catch_up(parent)
                self._add(stat, parent.subject, parent.depth, root=False)
            elif stat.pgrp in self._groups and self._groups[stat.pgrp] in self._counters.subjects:
                self._add(stat, self._groups[stat.pgrp], 0, root=False)  # its parent died between two readings

    def _add(self, stat: files.ProcStat, subject: int, depth: int, *, root: bool) -> None:
        process = Process(stat.pid, stat.ppid, stat.start_ticks, subject, depth, root, root, stat.comm)
        self._processes[stat.pid] = process
        if root:
            self._counters.subjects[subject].stats.alive += 1
            return
        self._counters.count(subject, "forks")
        self._counters.subjects[subject].stats.alive += 1
        if stat.pgrp == stat.pid:
            self._note_group(stat.pgrp, subject)
        self._emit(EventKind.FORK, self._start_us(process), process)
        if stat.has_execed:
            self._execed(process, self._start_us(process))

    def _catch_up(self, parent: Process) -> None:
        """Notice that the parent became a program before it forked, or its child would seem to be the runtime's."""
        if not parent.execed and (stat := files.read_stat(parent.pid)) is not None and stat.has_execed:
            parent.comm = stat.comm
            self._execed(parent, self._start_us(parent))

    def _note_group(self, group: int, subject: int) -> None:
        if len(self._groups) >= _EXITED_GROUPS:
            self._groups.clear()
        self._groups[group] = subject

    def _look(self, process: Process, now_us: int) -> None:
        stat = files.read_stat(process.pid)
        if stat is None or stat.start_ticks != process.start_ticks or stat.dead:
            same = stat is not None and stat.start_ticks == process.start_ticks
            self._gone(process, now_us, stat.status if stat is not None and same and stat.dead else -1)
            return
        if stat.has_execed and (not process.execed or stat.comm != process.comm):
            process.comm = stat.comm
            self._execed(process, self._start_us(process) if not process.execed else now_us)
        self._counters.account(process, stat)
        process.memory = files.read_memory(process.pid) or process.memory

    def _execed(self, process: Process, t_us: int) -> None:
        first, process.execed = not process.execed, True
        self._counters.count(process.subject, "execs")
        runtime = self._counters.subjects[process.subject].runtime
        if process.root or not first or process.subject != runtime:
            self._emit(EventKind.EXEC, t_us, process)
            return
        if process.depth > 0:
            process.depth -= 1
            self._emit(EventKind.EXEC, t_us, process)
            return
        subject = self._next_call
        self._next_call += 1
        call = self._counters.add_call(subject, runtime)
        call.recent.append((t_us, 0))  # it began with nothing, whatever the first reading finds
        self._counters.move(process, subject)
        argv = files.read_cmdline(process.pid)
        self._events.append(
            Event(
                EventKind.CALL,
                t_us,
                process.subject,
                process.pid,
                process.ppid,
                a=runtime,
                comm=process.comm,
                argv=argv,
            )
        )

    def _gone(self, process: Process, now_us: int, status: int) -> None:
        del self._processes[process.pid]
        self._counters.count(process.subject, "exits")
        self._counters.subjects[process.subject].stats.alive -= 1
        self._emit(EventKind.EXIT, now_us, process, a=status, b=process.memory.hiwater_bytes)

    # --- small things ----------------------------------------------------------------------------------------------

    def _start_us(self, process: Process) -> int:
        # The kernel tells the start in hundredths of a second; nothing of a session began before it was tracked.
        return max(self._boot_us + process.start_ticks * files.TICK_US, self._since_us)

    def _emit(self, kind: EventKind, t_us: int, process: Process, a: int = 0, b: int = 0) -> None:
        self._events.append(Event(kind, t_us, process.subject, process.pid, process.ppid, a=a, b=b, comm=process.comm))
