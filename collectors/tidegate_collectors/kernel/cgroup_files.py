"""Files of one cgroup: counters of memory and pressure, read through descriptors that stay open.

A pread of an open control file takes a few microseconds, opening it afresh ten times that.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60
"""v1 writes "no limit" as the largest multiple of a page; no host has that much."""


@dataclass(slots=True, frozen=True)
class Psi:
    """Pressure stall totals since the cgroup was made, in microseconds; ``None`` where the kernel has no such file."""

    memory_some_us: int | None = None
    memory_full_us: int | None = None
    cpu_some_us: int | None = None
    io_some_us: int | None = None
    io_full_us: int | None = None


@dataclass(slots=True, frozen=True)
class MemoryCounters:
    """The memory controller's view: bytes charged (page cache and kernel memory included), limits, event totals."""

    charged_bytes: int | None = None
    peak_bytes: int | None = None
    high_bytes: int | None = None
    max_bytes: int | None = None
    low: int = 0
    high: int = 0
    max: int = 0
    oom: int = 0
    oom_kill: int = 0


class ControlFiles:
    """Readers of the files in one directory; every read of a group that is gone gives ``None``.

    At most half of the files that the process may have open stay open, :attr:`kept` over all groups: thousands of
    calls at once must not keep a launcher from connecting. Beyond that, each reading opens its file.
    """

    kept = 0

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: dict[str, int] = {}

    def text(self, name: str) -> str | None:
        """Content of a small file, or ``None``."""
        try:
            descriptor = self._open.get(name)
            if descriptor is not None:
                return os.pread(descriptor, 4096, 0).decode("ascii", "replace")
            descriptor = os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        keep = ControlFiles.kept < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        if keep:
            self._open[name] = descriptor
            ControlFiles.kept += 1
        try:
            return os.pread(descriptor, 4096, 0).decode("ascii", "replace")
        except OSError:
            return None
        finally:
            if not keep:
                os.close(descriptor)

    def number(self, name: str) -> int | None:
        """A file of one number; ``None`` for ``max`` and for v1's "no limit"."""
        text = (self.text(name) or "").strip()
        if not text.isdigit():
            return None
        value = int(text)
        return value if value < _NO_LIMIT else None

    def pairs(self, name: str) -> dict[str, int]:
        """A file of ``key value`` lines."""
        found = {}
        for line in (self.text(name) or "").splitlines():
            key, _, value = line.partition(" ")
            if value.strip().isdigit():
                found[key] = int(value)
        return found

    def close(self) -> None:
        """Close what was opened; a later read opens it again."""
        for descriptor in self._open.values():
            os.close(descriptor)
        ControlFiles.kept -= len(self._open)
        self._open.clear()


def parse_pressure(text: str | None) -> tuple[int | None, int | None]:
    """Totals of the ``some`` and the ``full`` line of a pressure file, in microseconds."""
    totals: dict[str, int] = {}
    for line in (text or "").splitlines():
        kind, _, rest = line.partition(" ")
        _, marker, total = rest.rpartition("total=")
        if marker and total.isdigit():
            totals[kind] = int(total)
    return totals.get("some"), totals.get("full")


GROUP_PRESSURE = ("memory.pressure", "cpu.pressure", "io.pressure")
HOST_PRESSURE = ("memory", "cpu", "io")


def read_psi(files: ControlFiles, names: tuple[str, str, str] = GROUP_PRESSURE) -> Psi:
    """The three pressure files of a v2 group (or of ``/proc/pressure``, with :data:`HOST_PRESSURE`)."""
    memory_some, memory_full = parse_pressure(files.text(names[0]))
    cpu_some, _ = parse_pressure(files.text(names[1]))
    io_some, io_full = parse_pressure(files.text(names[2]))
    return Psi(memory_some, memory_full, cpu_some, io_some, io_full)


def read_memory_v1(files: ControlFiles) -> MemoryCounters:
    """Counters of a v1 memory group."""
    return MemoryCounters(
        charged_bytes=files.number("memory.usage_in_bytes"),
        peak_bytes=files.number("memory.max_usage_in_bytes"),
        max_bytes=files.number("memory.limit_in_bytes"),
        max=files.number("memory.failcnt") or 0,
        oom_kill=files.pairs("memory.oom_control").get("oom_kill", 0),
    )


def read_memory_v2(files: ControlFiles) -> MemoryCounters:
    """Counters of a v2 group with the memory controller (``memory.peak`` needs Linux 5.19)."""
    events = files.pairs("memory.events")
    return MemoryCounters(
        charged_bytes=files.number("memory.current"),
        peak_bytes=files.number("memory.peak"),
        high_bytes=files.number("memory.high"),
        max_bytes=files.number("memory.max"),
        low=events.get("low", 0),
        high=events.get("high", 0),
        max=events.get("max", 0),
        oom=events.get("oom", 0),
        oom_kill=events.get("oom_kill", 0),
    )
