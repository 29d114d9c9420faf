"""The ctypes binding of libbpf, on real objects."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bpf import Loader, needs_root
from tidegate_collectors.kernel import bpf_layout as layout
from tidegate_collectors.kernel import build
from tidegate_collectors.kernel.bpf_probes import probe_bpf
from tidegate_collectors.kernel.bpf_reasons import explain, missing_capabilities
from tidegate_collectors.kernel.bpf_syscall import BpfCalls
from tidegate_collectors.kernel.libbpf import BpfError, BpfObject

pytestmark = pytest.mark.kernel


@pytest.fixture
def loaded() -> Iterator[BpfObject]:
    """The collector's object with one program loaded, none attached."""
    opened = BpfObject(build.ensure())
    for name in opened.programs:
        opened.set_autoload(name, name == "on_victim")
    opened.load()
    yield opened
    opened.close()


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.bpf.o"
    path.write_bytes(b"nonsense")
    with pytest.raises(BpfError, match=r"x\.bpf\.o cannot be opened") as caught:
        BpfObject(path)
    assert caught.value.errno


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(BpfError, match="No such file"):
        BpfObject(tmp_path / "none.bpf.o")


@needs_root
def test_maps_set_get_delete_and_list(loaded: BpfObject) -> None:
    tracked = loaded.map("tracked", "=Q", layout.TAG)
    assert tracked.get(5) is None
    tracked.set(5, (1, 2, 3, 4))
    tracked.set(6, (1, 2, 3, 5))
    assert tracked.get(5) == (1, 2, 3, 4)
    assert sorted(tracked.keys()) == [5, 6]
    with pytest.raises(BpfError) as caught:
        tracked.set(5, (0, 0, 0, 0), only_new=True)
    assert caught.value.errno == errno.EEXIST
    assert tracked.delete(5)
    assert not tracked.delete(5)


@needs_root
def test_per_cpu_values_come_for_each_possible_cpu(loaded: BpfObject) -> None:
    losses = loaded.map("losses", "=I", "=Q", per_cpu=True)
    possible = Path("/sys/devices/system/cpu/possible").read_text().strip().rpartition("-")[2]
    assert losses.get_per_cpu(0) == [0] * (int(possible) + 1)
    assert losses.get_per_cpu(99) == []


@needs_root
def test_a_full_map_is_an_error_with_its_errno(loaded: BpfObject) -> None:
    sessions = loaded.map("sessions", "=Q", layout.STATS)
    with pytest.raises(BpfError) as caught:
        for subject in range(1, 3000):
            sessions.set(subject, layout.no_stats())
    assert caught.value.errno == errno.E2BIG
    assert "sessions" in str(caught.value)


@needs_root
def test_a_layout_that_is_not_the_kernels_is_refused(loaded: BpfObject) -> None:
    with pytest.raises(BpfError, match=r"map subjects has key and value of"):
        loaded.map("subjects", "=Q", layout.STATS + "Q")
    with pytest.raises(BpfError, match="no map nothing"):
        loaded.map("nothing", "=Q", "=Q")


def refusal(directory: Path, program: str) -> BpfError:
    """What loading this source is refused with."""
    source, target = directory / "refused.bpf.c", directory / "refused.bpf.o"
    source.write_text(program)
    subprocess.run(
        ["clang", *build.flags(), "-I", str(build.SOURCE_DIR), "-c", str(source), "-o", str(target)], check=True
    )
    opened = BpfObject(target)
    try:
        with pytest.raises(BpfError) as caught:
            opened.load()
    finally:
        opened.close()
    return caught.value


@needs_root
def test_the_verifiers_words_are_kept(tmp_path: Path) -> None:
    error = refusal(
        tmp_path,
        '#include "kernel_types.h"\n#include <bpf/bpf_helpers.h>\n#include <bpf/bpf_tracing.h>\n'
        'char LICENSE[] SEC("license") = "Dual BSD/GPL";\n'
        'SEC("tp_btf/sched_process_exit") int BPF_PROG(wild, struct task_struct *t)\n'
        "{ return *(volatile int *)(t->tgid + 8L); }\n",
    )
    assert error.errno == errno.EACCES
    assert "invalid mem access 'scalar'" in error.log
    assert "invalid mem access 'scalar'" in explain(error)


@needs_root
def test_a_tracepoint_that_this_kernel_lacks_is_named(tmp_path: Path) -> None:
    error = refusal(
        tmp_path,
        '#include "kernel_types.h"\n#include <bpf/bpf_helpers.h>\n'
        'char LICENSE[] SEC("license") = "Dual BSD/GPL";\n'
        'SEC("tp_btf/tidegate_no_such_tracepoint") int nowhere(void *context) { return 0; }\n',
    )
    assert "tidegate_no_such_tracepoint" in explain(error)


@needs_root
def test_run_time_statistics_can_be_switched() -> None:
    descriptor = BpfCalls().enable_stats()
    os.close(descriptor)


@needs_root
def test_closing_twice_is_harmless(loaded: BpfObject) -> None:
    loaded.attach("on_victim")
    assert loaded.attached == ("on_victim",)
    loaded.close()
    loaded.close()
    assert not loaded.attached


@needs_root
def test_probes_tell_of_this_kernel() -> None:
    found = {capability.name: capability for capability in probe_bpf()}
    assert found["tp_btf.sched_process_exec"].available
    for name in ("fentry", "lsm", "sched_ext", "memcg_struct_ops"):
        assert found[name].available or found[name].reason
    if not found["fentry"].available:  # so it is where this was written: EPERM with all rights
        assert "EPERM" in found["fentry"].reason
        assert "patch its own code" in found["fentry"].reason
        assert not missing_capabilities()


_PROBE = "from tidegate_collectors.kernel.bpf_probes import probe_bpf\nfor c in probe_bpf(): print(c.name, c.reason)"


def _unprivileged(code: str, *capabilities: str, argument: str = "") -> subprocess.CompletedProcess[str]:
    rights = ",".join(f"+{name}" for name in capabilities)
    granted = ["--inh-caps", rights, "--ambient-caps", rights] if rights else []
    command = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        *granted,
        sys.executable,
        "-c",
        code,
        argument,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")


@needs_root
def test_without_rights_probes_say_which_are_missing() -> None:
    done = _unprivileged(_PROBE)
    assert done.returncode == 0, done.stderr
    lines = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert lines["btf"] == ""
    assert "lacks CAP_BPF and CAP_PERFMON" in lines["tp_btf.sched_switch"]
    assert "lacks CAP_BPF and CAP_PERFMON" in lines["fentry"]


_OBSERVE = """
import sys
from tidegate_collectors.kernel.bpf_observer import BpfObserver
try:
    observer = BpfObserver(loader=sys.argv[1])
except OSError as error:
    print("refused", error.errno, error)
else:
    print("checked", observer.check_us > 0, observer.run_time_us())
    observer.close()
"""


@needs_root
def test_cap_bpf_and_perfmon_are_enough(loader: Loader) -> None:
    done = _unprivileged(_OBSERVE, "bpf", "perfmon", argument=loader)
    assert done.stdout == "checked True None\n", done.stderr


@needs_root
def test_cap_bpf_alone_is_not_and_it_says_so(loader: Loader) -> None:
    done = _unprivileged(_OBSERVE, "bpf", argument=loader)
    assert done.stdout.startswith(f"refused {errno.EPERM} EPERM: this process lacks CAP_PERFMON;"), done.stderr
