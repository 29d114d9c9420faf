"""The doctor: every ability tried, the truth told, nothing left behind."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate_collectors.kernel import cgroup_layout
from tidegate_collectors.kernel.capabilities import effective_rights, report
from tidegate_collectors.records import Capability

PROGRAM = (
    "import json\n"
    "from tidegate_collectors.kernel.capabilities import report\n"
    "print(json.dumps({c.name: [c.available, c.reason] for c in report()}))\n"
)


@pytest.fixture(scope="module")
def found() -> dict[str, Capability]:
    return {item.name: item for item in report()}


def test_what_is_there_is_said_to_be_there(found: dict[str, Capability]) -> None:
    assert platform.release() in found["kernel.release"].reason
    if os.geteuid() == 0:
        assert found["btf"].available == Path("/sys/kernel/btf/vmlinux").exists()
    assert found["psi.host"].available == Path("/proc/pressure/memory").exists()
    assert found["sched_ext"].available == Path("/sys/kernel/sched_ext").exists()


def test_every_no_says_why(found: dict[str, Capability]) -> None:
    assert [item.name for item in found.values() if not item.available and not item.reason] == []


def test_names_are_given_once() -> None:
    names = [item.name for item in report()]
    assert len(names) == len(set(names))


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="making cgroups needs root")
def test_groups_are_tried_with_a_real_process_and_removed(found: dict[str, Capability]) -> None:
    layout = cgroup_layout.discover()
    assert found["cgroup.tree"].available
    assert found["cgroup.memory"].available == (layout.memory_version > 0)
    assert found["cgroup.memory_high"].available == (layout.memory_version == 2)
    assert found["cgroup.freeze"].available == (layout.v2 is not None)
    for base in (layout.v2, layout.memory):
        assert base is None or list(base.glob(f"tidegate-probe-{os.getpid()}*")) == []


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_without_rights_it_still_answers_and_says_what_root_would_change() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=60,
    )
    answer = json.loads(done.stdout)
    assert answer["rights.cap_bpf"][0] is False
    assert "run it as root" in answer["rights.cap_bpf"][1]
    assert answer["cgroup.tree"][0] is False
    assert "run it as root" in answer["cgroup.tree"][1]
    assert answer["cgroup.freeze"] == [False, "needs cgroup.tree"]
    assert answer["kernel.release"][0] is True


@pytest.mark.parametrize(
    ("mask", "rights"),
    [
        ("0000000000000000", set()),
        ("0000008000000000", {"CAP_BPF"}),
        ("000000c000000000", {"CAP_BPF", "CAP_PERFMON"}),
        ("000001ffffffffff", {"CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN"}),
    ],
)
def test_rights_are_read_bit_by_bit(mask: str, rights: set[str]) -> None:
    assert effective_rights(f"CapInh:\tffffffffffffffff\nCapEff:\t{mask}\n") == rights
    assert effective_rights("") == set()
