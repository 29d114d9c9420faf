"""Files of /proc: what one process, and the host, say of themselves. Every reader gives ``None`` for what is gone."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
PF_FORKNOEXEC = 0x40
"""Flag of a process that was forked and has not started a program since."""

_PAGE = 4096
_MAX_ENVIRON = 256 * 1024


@dataclass(slots=True, frozen=True)
class ProcStat:
    """``/proc/PID/stat``. ``status`` is the wait status of a zombie, as far as we may see it."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgrp: int
    flags: int
    cpu_us: int
    threads: int
    start_ticks: int
    status: int

    @property
    def has_execed(self) -> bool:
        """It started a program after its fork."""
        return not self.flags & PF_FORKNOEXEC

    @property
    def dead(self) -> bool:
        """A zombie, or on the way to be one."""
        return self.state in "ZX"


@dataclass(slots=True, frozen=True)
class ProcMemory:
    """The resident parts of one process, from ``/proc/PID/status``, in bytes."""

    anon_bytes: int = 0
    file_bytes: int = 0
    shmem_bytes: int = 0
    swap_bytes: int = 0
    hiwater_bytes: int = 0


@dataclass(slots=True, frozen=True)
class HostMemory:
    """Parts of ``/proc/meminfo``, in bytes."""

    total_bytes: int
    available_bytes: int
    swap_used_bytes: int


def read_text(path: str, limit: int = _PAGE) -> str | None:
    """Up to ``limit`` bytes of a small file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, limit).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)


def parse_stat(text: str) -> ProcStat | None:
    """One stat line. The name in it is the process's own choice: it may hold spaces and parentheses."""
    head, opened, rest = text.partition(" (")
    comm, closed, tail = rest.rpartition(") ")
    fields = tail.split()
    if not opened or not closed or len(fields) < 20 or not head.isdigit():
        return None
    try:
        return ProcStat(
            pid=int(head),
            comm=comm,
            state=fields[0],
            ppid=int(fields[1]),
            pgrp=int(fields[2]),
            flags=int(fields[6]),
            cpu_us=(int(fields[11]) + int(fields[12])) * TICK_US,
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            status=int(fields[49]) if len(fields) > 49 else -1,
        )
    except ValueError:
        return None


def read_stat(pid: int) -> ProcStat | None:
    """The stat line of a process."""
    text = read_text(f"/proc/{pid}/stat")
    return parse_stat(text) if text else None


def parse_memory(text: str) -> ProcMemory:
    """The memory lines of a status file; a kernel thread or zombie has none."""
    found = dict.fromkeys(("RssAnon", "RssFile", "RssShmem", "VmSwap", "VmHWM"), 0)
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in found:
            number = value.split()[:1]
            found[key] = int(number[0]) * 1024 if number and number[0].isdigit() else 0
    return ProcMemory(*found.values())


def read_memory(pid: int) -> ProcMemory | None:
    """Resident memory of a process."""
    text = read_text(f"/proc/{pid}/status")
    return parse_memory(text) if text else None


def read_schedstat(pid: int, threads: int) -> tuple[int, int, int] | None:
    """``(on-CPU us, run-queue wait us, times run)`` of all living threads; ``None`` without CONFIG_SCHED_INFO.

    The file of the process itself tells of its first thread only.
    """
    names = [f"/proc/{pid}/schedstat"]
    if threads > 1:
        try:
            names = [f"/proc/{pid}/task/{thread}/schedstat" for thread in _names(f"/proc/{pid}/task")]
        except OSError:
            return None
    oncpu = wait = switches = 0
    seen = False
    for name in names:
        fields = (read_text(name, 128) or "").split()
        if len(fields) == 3:
            seen = True
            oncpu, wait, switches = oncpu + int(fields[0]), wait + int(fields[1]), switches + int(fields[2])
    return (oncpu // 1000, wait // 1000, switches) if seen else None


def read_cmdline(pid: int, limit: int = 512) -> tuple[str, ...]:
    """Command line, cut at ``limit`` bytes; empty when it is gone."""
    text = read_text(f"/proc/{pid}/cmdline", limit)
    return tuple(text.rstrip("\0").split("\0")) if text else ()


def read_environ(pid: int, name: str) -> str | None:
    """One variable of a process's initial environment; nothing else of it is kept."""
    text = read_text(f"/proc/{pid}/environ", _MAX_ENVIRON)
    prefix = name + "="
    for entry in (text or "").split("\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :]
    return None


def _names(directory: str) -> list[str]:
    return os.listdir(directory)  # noqa: PTH208 - twenty times a second: no Path objects


def list_pids() -> set[int]:
    """All processes that we may see."""
    return {int(name) for name in _names("/proc") if name.isdigit()}


def boot_us() -> int:
    """Microseconds UTC at which the clock of ``start_ticks`` was zero."""
    return (time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1000


def parse_meminfo(text: str) -> HostMemory:
    """The lines of ``/proc/meminfo`` that matter; missing ones count as zero."""
    found = dict.fromkeys(("MemTotal", "MemAvailable", "SwapTotal", "SwapFree"), 0)
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in found:
            found[key] = int(value.split()[0]) * 1024
    return HostMemory(found["MemTotal"], found["MemAvailable"], max(found["SwapTotal"] - found["SwapFree"], 0))


def parse_cpu_busy_us(text: str) -> int:
    """Time that all CPUs together were not idle since boot, from the first line of ``/proc/stat``."""
    fields = [int(field) for field in text.partition("\n")[0].split()[1:9]]
    # user nice system idle iowait irq softirq steal: iowait is idle time, and stolen time was not ours.
    return (sum(fields[:3]) + sum(fields[5:7])) * TICK_US if len(fields) >= 7 else 0
