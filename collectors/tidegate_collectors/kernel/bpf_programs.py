"""Names of the programs in ``bpf/collector.bpf.c`` and the tracepoints that they sit on."""

from __future__ import annotations

from typing import Literal

MemorySource = Literal["memcg", "rss_stat"]

SOURCES: tuple[MemorySource, ...] = ("rss_stat", "memcg")
"""In the order in which ``auto`` tries them. rss_stat first: it reads absolute counters, so reclaim, the OOM reaper or
a missed event cannot make it drift, and it costs a quarter of the other (which fires several times a page)."""

SOURCE_PROGRAMS: dict[MemorySource, str] = {"rss_stat": "on_rss_stat", "memcg": "on_memcg_stat"}

TRACEPOINTS = {
    "on_rss_stat": "rss_stat",
    "on_memcg_stat": "mod_memcg_lruvec_state",
    "on_fork": "sched_process_fork",
    "on_exec": "sched_process_exec",
    "on_exit": "sched_process_exit",
    "on_attach": "cgroup_attach_task",
    "on_wakeup": "sched_wakeup",
    "on_wakeup_new": "sched_wakeup_new",
    "on_switch": "sched_switch",
    "on_victim": "mark_victim",
}
OPTIONAL = frozenset({"on_victim", "learn_cpus"})
"""Programs without which the rest still makes sense."""
