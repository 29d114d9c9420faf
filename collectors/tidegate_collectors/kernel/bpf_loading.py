"""Loads the collector's programs by either loader, less those that this kernel refuses and we can do without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tidegate_collectors.kernel import bcc_compile, build
from tidegate_collectors.kernel.bcc_object import BccObject
from tidegate_collectors.kernel.bpf_programs import OPTIONAL, SOURCE_PROGRAMS, TRACEPOINTS, MemorySource
from tidegate_collectors.kernel.bpf_reasons import blamed_programs, explain
from tidegate_collectors.kernel.libbpf import BpfError, BpfObject

Loader = Literal["libbpf", "bcc"]
LOADERS: tuple[Loader, ...] = ("libbpf", "bcc")
"""In the order in which ``auto`` tries them: libbpf starts faster and needs no compiler on the host."""

Programs = Path | bcc_compile.Compiled
"""What a loader loads: an object file (libbpf), or what BCC compiled."""


def programs_of(loader: Loader) -> Programs:
    """The programs for this loader, compiled now if need be.

    Raises:
        BuildError: they cannot be compiled; the message says what is missing.
    """
    return build.ensure() if loader == "libbpf" else bcc_compile.compiled()


def load(
    programs: Programs, source: MemorySource, ring_bytes: int, note: Callable[[str, bool, str], None]
) -> tuple[BpfObject | BccObject, set[str]]:
    """The programs for one source of memory figures, loaded, and the names of those that were.

    ``note`` hears of each tracepoint that cannot be used, as a capability: name, whether it can, why not.

    Raises:
        BpfError: one that is needed was refused; the message says why.
    """
    skipped = {program for kind, program in SOURCE_PROGRAMS.items() if kind != source}
    while True:
        loading = BpfObject(programs) if isinstance(programs, Path) else BccObject(programs)
        try:
            for name in skipped:
                loading.set_autoload(name, False)
            loading.set_max_entries("events", ring_bytes)
            loading.load()
        except BpfError as error:
            loading.close()
            reason = explain(error)
            blamed = blamed_programs(error) - skipped
            for name in blamed & TRACEPOINTS.keys():
                note(f"tp_btf.{TRACEPOINTS[name]}", False, reason)
            if not blamed & OPTIONAL:
                raise BpfError(reason, error.code, error.log, explained=True) from error
            skipped |= blamed & OPTIONAL
            continue
        except BaseException:
            loading.close()
            raise
        return loading, set(loading.programs) - skipped
