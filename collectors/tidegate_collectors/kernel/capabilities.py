"""What this host can do, found by doing it: every ability is tried, and each refusal comes with what to do about it.

Nothing stays behind: the group that is made for the trial and the process in it are gone before :func:`report` returns.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate_collectors.kernel import cgroup_layout, clock
from tidegate_collectors.kernel.bcc_find import BccMissingError, find_bcc
from tidegate_collectors.kernel.cgroup_files import ControlFiles, Psi, read_psi
from tidegate_collectors.kernel.cgroups import CgroupError, CgroupHandle, CgroupTree
from tidegate_collectors.kernel.procfs_files import read_schedstat, read_text
from tidegate_collectors.records import Capability

RIGHTS = {"CAP_BPF": 39, "CAP_PERFMON": 38, "CAP_SYS_ADMIN": 21}
_COMMAND_TIMEOUT_S = 10.0
_FREEZE_TIMEOUT_S = 2.0
_AS_ROOT = "run it as root, or give it the rights: setcap or systemd's AmbientCapabilities"


def report(*, loaders: bool = True) -> list[Capability]:
    """Try everything; takes up to a second, or two when BCC has not compiled for this kernel before.

    Works without rights, and says what they would change. ``loaders``: try both; a collector has chosen its own.
    """
    return [*_host(), *_bpf(loaders), *_cgroups()]


def _capability(name: str, available: bool, reason: str = "") -> Capability:
    return Capability(t=clock.now_us(), name=name, available=available, reason=reason)


# --- the host ------------------------------------------------------------------------------------------------------


def _host() -> Iterator[Capability]:
    yield _capability("kernel.release", True, f"{platform.system()} {platform.release()} {platform.machine()}")
    held = effective_rights(read_text("/proc/self/status", 65536) or "")
    for name in RIGHTS:
        yield _capability(f"rights.{name.lower()}", name in held, "" if name in held else f"not held; {_AS_ROOT}")
    yield _libbpf()
    yield _bcc()
    yield _clang()
    yield _host_pressure()
    stat = read_schedstat(os.getpid(), 1)
    yield _capability(
        "procfs.schedstat", stat is not None, "" if stat else "no /proc/PID/schedstat: CONFIG_SCHED_INFO is needed"
    )


def effective_rights(status: str) -> set[str]:
    """Those of :data:`RIGHTS` that a process holds, by its ``status`` file."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    mask = int(found.group(1), 16) if found else 0
    return {name for name, bit in RIGHTS.items() if mask >> bit & 1}


def _libbpf() -> Capability:
    try:
        library = ctypes.CDLL("libbpf.so.1")
    except OSError as error:
        return _capability("libbpf", False, f"{error}; install it: apt-get install libbpf1")
    version = library.libbpf_version_string
    version.restype = ctypes.c_char_p
    return _capability("libbpf", True, version().decode("ascii", "replace"))


def _bcc() -> Capability:
    try:
        found = find_bcc()
    except BccMissingError as error:
        return _capability("bcc", False, f"{error}; only needed where libbpf or its programs are missing")
    return _capability("bcc", True, "; ".join((f"{found.version} in {found.path}", *found.ignored)))


def _clang() -> Capability:
    path = shutil.which("clang")
    if path is None:
        return _capability(
            "clang", False, "not found; only needed to build the BPF programs anew: apt-get install clang libbpf-dev"
        )
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return _capability("clang", False, f"{path} does not run: {error}")
    first = done.stdout.partition("\n")[0]
    return _capability("clang", done.returncode == 0, first or f"{path} ends with {done.returncode}")


def _host_pressure() -> Capability:
    psi = read_psi(ControlFiles(Path("/proc/pressure")), ("memory", "cpu", "io"))
    missing = psi == Psi()
    return _capability("psi.host", not missing, "no pressure figures; boot the kernel with psi=1" if missing else "")


# --- BPF -----------------------------------------------------------------------------------------------------------


def _bpf(loaders: bool) -> list[Capability]:
    try:
        from tidegate_collectors.kernel.bpf_probes import probe_bpf, probe_loaders

        return [*probe_bpf(), *(probe_loaders() if loaders else ())]
    except Exception as error:
        return [_capability("bpf", False, f"the trial of BPF programs failed: {error}")]


# --- cgroups -------------------------------------------------------------------------------------------------------


def _cgroups() -> list[Capability]:
    layout = cgroup_layout.discover()
    name = f"tidegate-probe-{os.getpid()}"
    names = ("cgroup.tree", "cgroup.memory", "cgroup.memory_high", "cgroup.freeze", "cgroup.psi")
    try:
        tree = CgroupTree(layout, name)
    except CgroupError as error:
        missing = [_capability(item, False, "needs cgroup.tree") for item in names[1:]]
        return [_capability(names[0], False, f"{error}; run it as root, or in a delegated group"), *missing]
    try:
        with _probe_group(tree) as group:
            found = [_capability("cgroup.tree", True, f"{layout.name}{'; ' + layout.reason if layout.reason else ''}")]
            trials: tuple[Callable[[CgroupHandle], str], ...] = (_memory, _memory_high, _freeze, _pressure)
            for item, trial in zip(names[1:], trials, strict=True):
                try:
                    found.append(_capability(item, True, trial(group)))
                except (CgroupError, OSError) as error:
                    found.append(_capability(item, False, str(error)))
            return found
    except (CgroupError, OSError) as error:
        return [_capability(item, False, str(error)) for item in names]
    finally:
        tree.close()


@contextmanager
def _probe_group(tree: CgroupTree) -> Iterator[CgroupHandle]:
    """A call's group and a process of ours for it; both are gone afterwards, whatever happens."""
    process: subprocess.Popen[bytes] | None = None
    try:
        tree.add_session("probe")
        group = tree.add_call("probe", "probe")
        process = subprocess.Popen(["sleep", "30"])
        group.move(process.pid)
        yield group
    finally:
        if process is not None:
            process.kill()  # works on a frozen process too
            process.wait()
        until = time.monotonic() + _FREEZE_TIMEOUT_S
        while not tree.remove_session("probe") and time.monotonic() < until:
            time.sleep(0.005)


def _memory(group: CgroupHandle) -> str:
    counters = group.memory()
    if counters.charged_bytes is None:
        raise CgroupError(
            "no memory controller: its own peaks and limits are missing, memory is counted by events only"
        )
    return f"counters in {group.memory_dir}"


def _memory_high(group: CgroupHandle) -> str:
    if group.memory_dir is None or not (group.memory_dir / "memory.high").exists():
        raise CgroupError("memory.high needs the memory controller in cgroup v2; boot with cgroup_no_v1=memory")
    return ""


def _freeze(group: CgroupHandle) -> str:
    start = time.monotonic()
    group.set_frozen(True)
    try:
        while "frozen 1" not in ((group.v2 / "cgroup.events").read_text() if group.v2 else ""):
            if time.monotonic() - start > _FREEZE_TIMEOUT_S:
                raise CgroupError(f"not frozen within {_FREEZE_TIMEOUT_S:g} s")
            time.sleep(0.0005)
        took_ms = (time.monotonic() - start) * 1000
    finally:
        group.set_frozen(False)
    return f"a process freezes in {took_ms:.1f} ms"


def _pressure(group: CgroupHandle) -> str:
    if group.memory_stall_us() is None:
        raise CgroupError("no pressure figures of single groups; boot the kernel with psi=1 (and cgroup v2)")
    return ""
