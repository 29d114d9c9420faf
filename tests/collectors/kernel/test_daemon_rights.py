"""The collector without root: with two rights and a delegated part of the cgroup tree, and with less."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.bpf import Loader
from tests.support.daemon_rig import TIDEGATE, environment_for
from tests.support.own_cgroups import cgroup_root, new_root_name, once_placed
from tests.support.record_sink import RecordSink
from tidegate_collectors.kernel import cgroup_layout
from tidegate_collectors.records import AnyRecord, CallEnd, Capability, SessionEnd

NOBODY = 65534
UNPRIVILEGED = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="giving rights to another user needs root"),
]


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A directory that the unprivileged user owns; pytest's own cannot be entered by others."""
    path = Path(tempfile.mkdtemp(prefix="tgtest-"))
    os.chown(path, NOBODY, NOBODY)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def collector(runtime_dir: Path, prefix: list[str], *rights: str, root: str) -> Iterator[subprocess.Popen[str]]:
    granted = ",".join(f"+{name}" for name in rights)
    process = subprocess.Popen(
        [*prefix, *UNPRIVILEGED, f"--inh-caps={granted}", f"--ambient-caps={granted}", TIDEGATE, "collect",
         "--cgroup-root", root],
        env=environment_for(runtime_dir), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        finally:
            process.kill()


@contextmanager
def delegated() -> Iterator[list[str]]:
    """Groups that the unprivileged user may divide; yields the start of a command line that enters them."""
    layout = cgroup_layout.discover()
    bases = {base for base in (layout.v2, layout.memory) if base is not None}
    with cgroup_root() as name:
        for group in (base / name for base in bases):
            group.mkdir()
            for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
                if path.exists():
                    os.chown(path, NOBODY, NOBODY)
        enter = "".join(f"echo $$ > {base / name}/cgroup.procs; " for base in bases)
        yield ["sh", "-c", f'{enter}exec "$@"', "sh"]


def capabilities(records: list[AnyRecord]) -> dict[str, Capability]:
    return {record.name: record for record in records if isinstance(record, Capability)}


def test_two_rights_and_a_delegated_part_of_the_tree_are_enough(runtime_dir: Path) -> None:
    with (
        delegated() as enter,
        RecordSink(runtime_dir / "link.sock") as sink,
        collector(runtime_dir, enter, "bpf", "perfmon", root=new_root_name()) as process,
    ):
        os.chmod(sink.path, 0o666)  # noqa: PTH101
        sink.wait_for(lambda records: "cgroups" in capabilities(records), 20)
        found = capabilities(sink.records)
        assert (found["cgroups"].available, found["tp_btf.sched_process_exec"].available) == (True, True)
        code = f"{once_placed('s1', 'c1')}a = bytearray(90 << 20)\ntime.sleep(0.5)"
        done = subprocess.run(
            [*enter, *UNPRIVILEGED, TIDEGATE, "run", "--session", "s1", "--",
             "sh", "-c", f"/usr/bin/python3 -c '{code}'; exit 3"],
            env=environment_for(runtime_dir), capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (3, "")
        sink.wait_for(lambda records: any(isinstance(record, SessionEnd) for record in records))
        (end,) = [record for record in sink.records if isinstance(record, CallEnd)]
        assert end.peak_bytes is not None
        assert 90 << 20 <= end.peak_bytes < 120 << 20
        if cgroup_layout.discover().memory_version:
            assert (end.charged_peak_bytes or 0) >= 90 << 20
        assert process.poll() is None


def test_cap_bpf_alone_samples_proc_and_says_why(runtime_dir: Path) -> None:
    with RecordSink(runtime_dir / "link.sock") as sink, collector(runtime_dir, [], "bpf", root=new_root_name()):
        os.chmod(sink.path, 0o666)  # noqa: PTH101
        sink.wait_for(lambda records: "observer.bpf" in capabilities(records), 20)
        missing = capabilities(sink.records)["observer.bpf"]
        assert not missing.available
        assert "lacks CAP_PERFMON; run as root or with CAP_BPF and CAP_PERFMON" in (missing.reason or "")
        environment = environment_for(runtime_dir)
        done = subprocess.run([*UNPRIVILEGED, TIDEGATE, "run", "--", "sh", "-c", "sleep 0.3; exit 4"], env=environment)
        assert done.returncode == 4
        sink.wait_for(lambda records: any(isinstance(record, CallEnd) for record in records))


def test_bpf_that_was_asked_for_is_not_replaced(runtime_dir: Path, loader: Loader) -> None:
    """A mode that this process has no right to is refused, not exchanged for a lesser one."""
    done = subprocess.run(
        [*UNPRIVILEGED, TIDEGATE, "collect", "--loader", loader, "--cgroup-root", new_root_name()],
        env=environment_for(runtime_dir), capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 5
    assert "BPF programs cannot be loaded: EPERM" in done.stderr
    assert "Traceback" not in done.stderr
