"""What a collector stands on, chosen by trying: the observer, and the tree of cgroups."""

from __future__ import annotations

import logging

from tidegate_collectors.kernel import cgroup_layout
from tidegate_collectors.kernel.cgroups import CgroupBusyError, CgroupError, CgroupTree
from tidegate_collectors.kernel.clock import now_us
from tidegate_collectors.kernel.observer import Observer
from tidegate_collectors.kernel.options import CollectError, Config
from tidegate_collectors.kernel.tracker_calls import CallNaming, namer
from tidegate_collectors.records import Capability

log = logging.getLogger("tidegate.collect")


def open_tree(name: str) -> tuple[CgroupTree | None, str]:
    """Our tree, or ``None``; and what is missing, for people.

    Raises:
        CollectError: another collector owns it, or the name is not safe.
    """
    layout = cgroup_layout.discover()
    try:
        return CgroupTree(layout, name), layout.reason
    except (CgroupBusyError, ValueError) as error:
        raise CollectError(str(error)) from error
    except CgroupError as error:
        return None, f"{error}; sessions are observed without groups: no freeze, no limits, no pressure of their own"


def open_observer(config: Config) -> Observer:
    """The best observer that this host allows, or the one that was asked for.

    Raises:
        CollectError: BPF programs were asked for and cannot be loaded.
    """
    from tidegate_collectors.kernel.procfs import ProcfsObserver

    problem = "not asked for (--loader procfs)"
    if config.loader != "procfs":
        try:
            return _open_bpf(config)
        except Exception as error:
            problem = str(error) or type(error).__name__
            if config.loader == "libbpf":
                raise CollectError(f"BPF programs cannot be loaded: {problem}") from error
            log.warning("BPF programs cannot be loaded (%s); reading /proc instead", problem)
    observer = ProcfsObserver(burst_bytes=config.burst_bytes, window_us=config.window_us)
    missing = Capability(t=now_us(), name="observer.bpf", available=False, reason=problem)
    observer.notes.append(missing)
    return observer


def _open_bpf(config: Config) -> Observer:
    from tidegate_collectors.kernel.bpf_observer import BpfObserver

    return BpfObserver(burst_bytes=config.burst_bytes, window_us=config.window_us, memory_source=config.memory_source)


def call_naming(config: Config) -> CallNaming:
    """How calls are named: by the rules of the categories.

    Raises:
        CollectError: the operator's table of rules is wrong; the message names file and rule.
    """
    from tidegate_collectors.categories import classify, configured_table

    try:
        configured_table()
    except ValueError as error:
        raise CollectError(str(error)) from error
    return namer(classify, record_args=config.record_args)


def cgroup_capability(tree: CgroupTree | None, note: str) -> Capability:
    """What the cgroup tree of this collector can do."""
    if tree is None:
        return Capability(t=now_us(), name="cgroups", available=False, reason=note)
    where = {0: "no memory controller", 1: "memory counters in v1", 2: "memory counters in v2"}
    reason = f"{tree.layout.name}; {where[tree.layout.memory_version]}"
    return Capability(t=now_us(), name="cgroups", available=True, reason=f"{reason}; {note}" if note else reason)
