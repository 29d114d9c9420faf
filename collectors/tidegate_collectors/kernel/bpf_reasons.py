"""Why the kernel refused a program, in words that say what to do."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from tidegate_collectors.kernel.libbpf_error import BpfError

CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 21, 38, 39
_NO_BTF_TYPE = re.compile(r"prog '(\w+)': failed to find kernel BTF type ID of '(\w+)'")
_PROGRAM = re.compile(r"prog '(\w+)'")


def missing_capabilities(status: Path = Path("/proc/self/status")) -> list[str]:
    """Which of CAP_BPF and CAP_PERFMON this process does not have; CAP_SYS_ADMIN stands for both."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    bits = int(line.split()[1], 16)
    if bits >> CAP_SYS_ADMIN & 1:
        return []
    return [name for name, bit in (("CAP_BPF", CAP_BPF), ("CAP_PERFMON", CAP_PERFMON)) if not bits >> bit & 1]


def blamed_programs(error: BpfError) -> set[str]:
    """Names of the programs that the log speaks of."""
    return set(_PROGRAM.findall(error.log))


def explain(error: BpfError, *, patches_text: bool = False) -> str:
    """What a failed load or attach means.

    Args:
        patches_text: the program is of a kind for which the kernel changes its own code (fentry, LSM).
    """
    if error.errno == errno.EPERM:
        if missing := missing_capabilities():
            names = " and ".join(missing)
            return f"EPERM: this process lacks {names}; run as root or with CAP_BPF and CAP_PERFMON"
        if patches_text:
            return (
                "EPERM, with all rights: this kernel refuses programs for which it has to patch its own code "
                "(a policy of the host; nothing that Tidegate needs)"
            )
        return "EPERM, with all rights: a policy of this host forbids it (lockdown, seccomp, or a container)"
    if found := _NO_BTF_TYPE.search(error.log):
        return f"this kernel has no {found[2]} (program {found[1]})"
    if "vmlinux BTF" in error.log or "kernel BTF" in error.log:
        return "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF), from which programs learn its layouts"
    lines = error.log.splitlines()
    verdicts = [lines[i - 1] for i, line in enumerate(lines) if i and line.startswith("processed ")]
    detail = verdicts[-1] if verdicts else lines[-1] if lines else ""
    return f"{error}: {detail}" if detail else str(error)
