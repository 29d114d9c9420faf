"""The host and what the collector takes of it: the figures of HostView."""

from __future__ import annotations

from typing import Final

from ._definition import define

HOSTS: Final = (
    define("host.host", "host", "Name of the machine.", "as the collector has it", "", "host of records",
      "Not a network address."),
    define("host.kernel", "kernel", "Kernel release.", "uname -r", "", "run.meta machine",
      "Says little of what works: see the capabilities."),
    define("host.cpus", "CPUs", "Logical CPUs.", "online CPUs", "CPUs", "run.meta machine",
      "A limit on the collector's own group is not in it."),
    define("host.mem_total_bytes", "memory", "Memory of the machine.", "MemTotal", "bytes",
      "host.sample mem_total_bytes", "Not the limit of a container."),
    define("host.mem_available_bytes", "available", "What new programs could get without swapping.",
      "MemAvailable, an estimate of the kernel", "bytes", "host.sample mem_available_bytes",
      "Not free memory: page cache that can be dropped is in it."),
    define("host.mem_used_bytes", "used", "Memory that is not available.", "MemTotal less MemAvailable", "bytes",
      "host.sample", "More than the sessions' memory: everything else on the host is in it."),
    define("host.swap_used_bytes", "swap", "Swap in use.", "SwapTotal less SwapFree", "bytes",
      "host.sample swap_used_bytes", "Not the rate of swapping."),
    define("host.cpu_busy_ratio", "CPU", "Share of all CPUs' time that was not idle in the last window.",
      "cpu_busy_us / (window_us x CPUs)", "ratio", "host.sample cpu_busy_us",
      "Waiting for a disk counts as idle. Not a mean since boot."),
    define("host.last_t_us", "last sample", "Time of the host's last sample.", "t of host.sample", "microseconds UTC",
      "host.sample", "Not when it arrived."),
    define("host.own.cpu_ratio", "collector CPU", "What the collector's process takes of one core.",
      "own cpu_us / window_us", "ratio of one core", "host.sample own",
      "BPF programs run in the observed programs' time and are counted apart."),
    define("host.own.rss_bytes", "collector memory", "Resident memory of the collector's process.", "VmRSS", "bytes",
      "host.sample own", "BPF maps are not in it."),
    define("host.own.bpf_run_ratio", "BPF time", "What the collector's BPF programs take of one core.",
      "own bpf_run_us / window_us", "ratio of one core", "host.sample own", "None where the kernel does not count it."),
    define("host.own.events", "events", "Kernel events the collector has read.", "sum", "events", "host.sample own",
      "Not records: many events make one."),
    define("series.host.used_bytes", "used", "Memory of the host that is not available, over time.",
      "highest of each column", "bytes", "host.sample", "Not the sum of the sessions."),
    define("series.host.available_bytes", "available", "What new programs could get, over time.",
      "lowest of each column", "bytes", "host.sample", "Not free memory."),
    define("series.host.sessions", "sessions", "Memory of each session over time, stacked.", "highest of each column",
      "bytes", "mem.sample", "Sessions need not be at their highest in the same moment of a column."),
    define("series.host.cpu_percent", "CPU", "Share of all CPUs' time that was not idle.", "highest of each column",
      "percent", "host.sample", "100 % is all CPUs, not one."),
)  # fmt: skip
"""Definitions of the figures of a host."""
