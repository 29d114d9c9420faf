"""The host's memory, CPUs and pressure, and what the collector itself costs; for :mod:`.sampler`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tidegate_collectors.kernel import procfs_files
from tidegate_collectors.kernel.cgroup_files import HOST_PRESSURE, ControlFiles, Psi, read_psi
from tidegate_collectors.kernel.observer import Observer
from tidegate_collectors.records import HostSample, PsiSample, Record, SelfCost

REPEAT_US = 1_000_000
"""A sample that says nothing new is sent this often."""

_HOST_STEP_BYTES = 1 << 20


def psi_sample(now: Psi, before: Psi, *, t_us: int, window_us: int) -> PsiSample:
    """The growth of the totals between two readings."""

    def grown(new: int | None, old: int | None) -> int | None:
        return max(new - (old or 0), 0) if new is not None else None

    return PsiSample(
        t=t_us,
        memory_some_us=grown(now.memory_some_us, before.memory_some_us),
        memory_full_us=grown(now.memory_full_us, before.memory_full_us),
        cpu_some_us=grown(now.cpu_some_us, before.cpu_some_us),
        io_some_us=grown(now.io_some_us, before.io_some_us),
        io_full_us=grown(now.io_full_us, before.io_full_us),
        window_us=window_us,
    )


class HostSampler:
    """The host's memory, CPUs and pressure, and the collector's own cost."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._meminfo = ControlFiles(Path("/proc"))
        self._pressure = ControlFiles(Path("/proc/pressure"))
        self._available = 0
        self._psi = read_psi(self._pressure, HOST_PRESSURE)
        self._sent_us = 0
        self._psi_us = 0
        self._busy_us = procfs_files.parse_cpu_busy_us(self._meminfo.text("stat") or "")
        self._own_us = own_cpu_us()
        self._bpf_us = observer.run_time_us() or 0
        self.events = 0

    def close(self) -> None:
        """Close the files held open."""
        self._meminfo.close()
        self._pressure.close()

    def sample(self, now_us: int) -> list[Record]:
        """A host sample when available memory moved by a megabyte, or a second is over."""
        memory = procfs_files.parse_meminfo(self._meminfo.text("meminfo") or "")
        moved = abs(memory.available_bytes - self._available) >= _HOST_STEP_BYTES
        if not moved and now_us - self._sent_us < REPEAT_US:
            return []
        busy_us, own_us = procfs_files.parse_cpu_busy_us(self._meminfo.text("stat") or ""), own_cpu_us()
        bpf_us = self._observer.run_time_us()
        own = SelfCost(cpu_us=own_us - self._own_us, rss_bytes=own_rss_bytes(), events=self.events)
        if bpf_us is not None:
            own.bpf_run_us, self._bpf_us = max(bpf_us - self._bpf_us, 0), bpf_us
        records: list[Record] = [
            HostSample(
                t=now_us,
                mem_available_bytes=memory.available_bytes,
                mem_total_bytes=memory.total_bytes,
                cpu_busy_us=max(busy_us - self._busy_us, 0),
                swap_used_bytes=memory.swap_used_bytes,
                window_us=now_us - self._sent_us if self._sent_us else None,
                own=own,
            )
        ]
        self._available, self._sent_us, self._busy_us, self._own_us = memory.available_bytes, now_us, busy_us, own_us
        self.events = 0
        if now_us - self._psi_us >= REPEAT_US:
            psi = read_psi(self._pressure, HOST_PRESSURE)
            if self._psi_us and psi != Psi():
                sample = psi_sample(psi, self._psi, t_us=now_us, window_us=now_us - self._psi_us)
                sample.subject = "host"
                records.append(sample)
            self._psi, self._psi_us = psi, now_us
        return records


def own_cpu_us() -> int:
    """CPU time of this process, all threads."""
    return time.process_time_ns() // 1000


def own_rss_bytes() -> int:
    """Resident memory of this process."""
    fields = (procfs_files.read_text("/proc/self/statm", 128) or "").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0
