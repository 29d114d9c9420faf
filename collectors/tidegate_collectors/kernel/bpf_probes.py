"""What this kernel lets BPF programs do, found by trying. Needs no rights: without them it says so."""

from __future__ import annotations

import os
from pathlib import Path

from tidegate_collectors.kernel import build, clock
from tidegate_collectors.kernel.bcc_compile import BTF
from tidegate_collectors.kernel.bpf_loading import LOADERS, Loader
from tidegate_collectors.kernel.bpf_observer import BpfObserver
from tidegate_collectors.kernel.bpf_programs import SOURCE_PROGRAMS, TRACEPOINTS
from tidegate_collectors.kernel.bpf_reasons import explain
from tidegate_collectors.kernel.bpf_syscall import BpfCalls
from tidegate_collectors.kernel.libbpf import BpfError, BpfObject
from tidegate_collectors.records import Capability


def probe_bpf(btf: Path = BTF) -> list[Capability]:
    """Try everything; one capability each, with the reason when it is not there. Takes up to a second, leaves nothing.

    Names: ``btf``, ``bpf.programs`` (compiled and readable), ``tp_btf.<tracepoint>``, ``fentry``, ``lsm``,
    ``bpf.stats``, ``sched_ext``, ``memcg_struct_ops``.
    """
    found = [_btf(btf), _object()]
    found += _tracepoints()
    found.append(_trial("fentry", "probe_fentry"))
    found.append(_trial("lsm", "probe_lsm"))
    found.append(_statistics())
    found.append(_in_btf(btf, "sched_ext", b"\0sched_ext_ops\0", "CONFIG_SCHED_CLASS_EXT is off"))
    found.append(_in_btf(btf, "memcg_struct_ops", b"\0memcg_bpf_ops\0", "still a proposal upstream"))
    return found


def probe_loaders() -> list[Capability]:
    """What a collector would do with either loader, its self-check included; the reason for each that cannot.

    Names: ``loader.libbpf``, ``loader.bcc``.
    """
    return [_capability(f"loader.{loader}", _loader(loader)) for loader in LOADERS]


def _loader(loader: Loader) -> str | None:
    try:
        BpfObserver(loader=loader).close()
    except (BpfError, build.BuildError) as error:
        return str(error)
    return None


def _capability(name: str, reason: str | None) -> Capability:
    return Capability(t=clock.now_us(), name=name, available=reason is None, reason=reason or "")


def _btf(btf: Path) -> Capability:
    try:
        with btf.open("rb") as file:
            file.read(1)
    except OSError as error:
        return _capability("btf", f"{btf}: {error.strerror}; the kernel needs CONFIG_DEBUG_INFO_BTF")
    return _capability("btf", None)


def _object() -> Capability:
    try:
        build.ensure()
    except build.BuildError as error:
        return _capability("bpf.programs", str(error))
    return _capability("bpf.programs", None)


def _tracepoints() -> list[Capability]:
    try:
        path = build.ensure()
    except build.BuildError as error:
        return [_capability(f"tp_btf.{name}", str(error)) for name in TRACEPOINTS.values()]
    together = _try(path, tuple(TRACEPOINTS))
    if not any(together.values()):
        return [_capability(f"tp_btf.{TRACEPOINTS[program]}", None) for program in together]
    reasons = {program: _try(path, (program,))[program] for program in TRACEPOINTS}
    sources = reasons.keys() & SOURCE_PROGRAMS.values()
    if any(reasons[program] is None for program in sources):
        for program in sources:
            if reasons[program]:
                reasons[program] = f"{reasons[program]}; the other source of memory figures is used"
    return [_capability(f"tp_btf.{TRACEPOINTS[program]}", reason) for program, reason in reasons.items()]


def _trial(name: str, object_name: str) -> Capability:
    try:
        path = build.ensure(object_name)
    except build.BuildError as error:
        return _capability(name, str(error))
    return _capability(name, next(iter(_try(path, None, patches_text=True).values())))


def _try(path: Path, programs: tuple[str, ...] | None, *, patches_text: bool = False) -> dict[str, str | None]:
    """Load and attach programs of an object (``None``: all); the reason for each that failed."""
    names = programs or ("object",)
    trial = None
    try:
        trial = BpfObject(path)
        names = programs or trial.programs
        for name in trial.programs:
            trial.set_autoload(name, name in names)
        trial.load()
        for name in names:
            trial.attach(name)
    except BpfError as error:
        return dict.fromkeys(names, explain(error, patches_text=patches_text))
    finally:
        if trial:
            trial.close()
    return dict.fromkeys(names, None)


def _statistics() -> Capability:
    try:
        os.close(BpfCalls().enable_stats())
    except BpfError as error:
        return _capability("bpf.stats", f"{error}; the time that programs take is not shown (needs CAP_SYS_ADMIN)")
    return _capability("bpf.stats", None)


def _in_btf(btf: Path, name: str, needle: bytes, reason: str) -> Capability:
    try:
        data = btf.read_bytes()
    except OSError as error:
        return _capability(name, f"{btf}: {error.strerror}")
    return _capability(name, None if needle in data else f"this kernel does not have it: {reason}")
