"""What a collector stands on, chosen by trying: the observer and its loader, and the tree of cgroups."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from tidegate_collectors.kernel import cgroup_layout
from tidegate_collectors.kernel.bcc_find import BccMissingError, find_bcc
from tidegate_collectors.kernel.bpf_loading import LOADERS, Loader
from tidegate_collectors.kernel.cgroups import CgroupBusyError, CgroupError, CgroupTree
from tidegate_collectors.kernel.clock import now_us
from tidegate_collectors.kernel.observer import Observer
from tidegate_collectors.kernel.options import CollectError, Config
from tidegate_collectors.kernel.tracker_calls import CallNaming, namer
from tidegate_collectors.records import Capability

if TYPE_CHECKING:
    from tidegate_collectors.kernel.bpf_observer import BpfObserver

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

    problems: dict[Loader, str] = {}
    for loader in LOADERS if config.loader == "auto" else (config.loader,):
        if loader == "procfs":
            continue
        try:
            opened = _open_bpf(config, loader)
        except Exception as error:
            problems[loader] = str(error) or type(error).__name__
            if config.loader != "auto":
                raise CollectError(f"BPF programs cannot be loaded: {problems[loader]}") from error
            log.warning("BPF programs cannot be loaded with %s (%s)", loader, problems[loader])
            if isinstance(error, OSError) and error.errno == errno.EPERM:
                break  # the kernel refuses the other one's programs as well
            continue
        opened.notes = _loader_notes(loader, problems, config.loader)
        log.info("BPF programs were loaded with %s", loader)
        return opened
    observer = ProcfsObserver(burst_bytes=config.burst_bytes, window_us=config.window_us)
    reason = "; ".join(f"{loader}: {problem}" for loader, problem in problems.items())
    if problems:
        log.warning("reading /proc instead")
    missing = Capability(
        t=now_us(), name="observer.bpf", available=False, reason=reason or "not asked for (--loader procfs)"
    )
    observer.notes += [missing, *_loader_notes(None, problems, config.loader)]
    return observer


def _open_bpf(config: Config, loader: Loader) -> BpfObserver:
    from tidegate_collectors.kernel.bpf_observer import BpfObserver

    return BpfObserver(
        burst_bytes=config.burst_bytes,
        window_us=config.window_us,
        memory_source=config.memory_source,
        loader=loader,
    )


def _loader_notes(used: Loader | None, problems: dict[Loader, str], asked: str) -> list[Capability]:
    """Which loader is in use, and why the other is not."""
    notes = []
    for loader in LOADERS:
        if loader == used:
            available, reason = True, "in use"
        elif loader in problems:
            available, reason = False, problems[loader]
        elif asked != "auto":
            available, reason = False, f"not asked for (--loader {asked})"
        elif used is not None:  # libbpf, so the other is BCC
            available, reason = _bcc_at_hand(used)
        else:
            available, reason = False, "not tried: the kernel refuses its programs for the same reason"
        notes.append(Capability(t=now_us(), name=f"loader.{loader}", available=available, reason=reason))
    return notes


def _bcc_at_hand(used: Loader) -> tuple[bool, str]:
    """Whether BCC could be tried if the other one failed."""
    try:
        return True, f"not in use: {used} works; BCC {find_bcc().version} would be next"
    except BccMissingError as error:
        return False, f"not in use: {used} works; {error}"


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
