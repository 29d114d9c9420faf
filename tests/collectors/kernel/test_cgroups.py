"""The cgroup tree: layouts from real and imagined mounts, and real groups with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.own_cgroups import cgroup_root, sleeper
from tidegate_collectors.kernel import cgroup_layout
from tidegate_collectors.kernel.cgroup_files import parse_pressure
from tidegate_collectors.kernel.cgroup_layout import Mount, own_directory, parse_mounts, parse_own_cgroups
from tidegate_collectors.kernel.cgroups import CgroupBusyError, CgroupError, CgroupTree

needs_root = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="making cgroups needs root"),
]

HYBRID = """\
25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 25 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def test_mounts_are_read_with_their_controllers() -> None:
    mounts = parse_mounts(HYBRID + "broken line\n1 2 0:1 /docker/x /sys/fs/cgroup\\040odd rw - cgroup2 c rw\n")
    assert mounts[0] == Mount(Path("/sys/fs/cgroup/memory"), "/", 1, frozenset({"rw", "memory"}))
    assert mounts[2].version == 2
    assert mounts[3] == Mount(Path("/sys/fs/cgroup odd"), "/docker/x", 2, frozenset())
    assert len(mounts) == 4


def test_own_groups_are_read_by_controller() -> None:
    own = parse_own_cgroups("4:memory:/a:b\n2:cpu,cpuacct:/x\n0::/user.slice\nnonsense\n")
    assert own == {"memory": "/a:b", "cpu": "/x", "cpuacct": "/x", "": "/user.slice"}


@pytest.mark.parametrize(
    ("root", "own", "expected"),
    [
        ("/", "/a/b", "/m/a/b"),
        ("/", "/", "/m"),
        ("/docker/x", "/docker/x", "/m"),
        ("/docker/x", "/docker/x/y", "/m/y"),
        ("/docker/x", "/docker/xy", "/m"),
        ("/docker/x", "/elsewhere", "/m"),
        ("/", "/../up", "/m"),
    ],
)
def test_the_own_directory_is_below_the_mount(root: str, own: str, expected: str) -> None:
    assert own_directory(Mount(Path("/m"), root, 1, frozenset()), own) == Path(expected)


@pytest.mark.parametrize(
    ("root", "own", "inside"),
    [("/", "/in", "in"), ("/", "/", ""), ("/x", "/x", ""), ("/x", "/x/in", "in"), ("/x", "/xy", None),
     ("/", "/../up", None), ("/", "/gone", None)],
)  # fmt: skip
def test_the_own_group_has_an_id_only_where_it_is_seen(tmp_path: Path, root: str, own: str, inside: str | None) -> None:
    (tmp_path / "in").mkdir()
    mounts = f"30 25 0:26 {root} {tmp_path} rw - cgroup2 cgroup2 rw\n"
    found = cgroup_layout.own_v2_id(mounts, f"0::{own}\n")
    assert found == (None if inside is None else (tmp_path / inside).stat().st_ino)


def test_a_host_without_cgroups_says_what_is_missing() -> None:
    layout = cgroup_layout.discover("", "")
    assert (layout.v2, layout.memory, layout.memory_version, layout.name) == (None, None, 0, "none")
    assert "no cgroup v2 hierarchy" in layout.reason
    assert "no memory controller" in layout.reason
    with pytest.raises(CgroupError, match="no cgroups here"):
        CgroupTree(layout, "tgtest-none")


def test_memory_in_v2_is_preferred(tmp_path: Path) -> None:
    """GIVEN a v2 hierarchy with the memory controller THEN v1 is not looked at."""
    v2 = tmp_path / "v2"
    v2.mkdir()
    (v2 / "cgroup.controllers").write_text("cpu memory pids\n")
    (v2 / "cgroup.procs").write_text("")
    layout = cgroup_layout.discover(f"34 25 0:31 / {v2} rw - cgroup2 cgroup2 rw\n", "0::/\n")
    assert (layout.v2, layout.memory, layout.memory_version, layout.name) == (v2, v2, 2, "v2")
    (v2 / "cgroup.controllers").write_text("hugetlb\n")
    without = cgroup_layout.discover(f"34 25 0:31 / {v2} rw - cgroup2 cgroup2 rw\n", "0::/\n")
    assert (without.memory, without.name) == (None, "v2 without memory")


def test_pressure_totals() -> None:
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=45\n"
    assert parse_pressure(text) == (123, 45)
    assert parse_pressure("some avg10=0.00\n") == (None, None)
    assert parse_pressure(None) == (None, None)


class TestRealGroups:
    pytestmark = needs_root

    def test_a_process_is_in_both_hierarchies_or_in_the_one(self) -> None:
        with cgroup_root() as name, sleeper() as pid:
            tree = CgroupTree(cgroup_layout.discover(), name)
            tree.add_session("s1")
            group = tree.add_call("s1", "c1")
            assert group.move(pid)
            assert group.pids() == [pid]
            for directory in group.directories:
                assert (directory / "cgroup.procs").read_text().split() == [str(pid)]
            assert group.v2 is None or group.id == group.v2.stat().st_ino
            tree.close()

    def test_no_process_may_be_in_the_way_of_removal(self) -> None:
        with cgroup_root() as name:
            tree = CgroupTree(cgroup_layout.discover(), name)
            groups = tree.add_session("s1")
            call = tree.add_call("s1", "c1")
            with sleeper() as pid:
                call.move(pid)
                assert not call.remove()
                assert not tree.remove_session("s1")
                assert call.pids() == [pid]
            until = time.monotonic() + 5
            while not call.remove() and time.monotonic() < until:
                time.sleep(0.01)
            assert tree.remove_session("s1")
            assert not any(directory.exists() for directory in groups.session.directories)
            tree.close()
            layout = cgroup_layout.discover()
            assert not any((base / name).exists() for base in (layout.v2, layout.memory) if base)

    def test_a_process_that_is_gone_is_no_error(self) -> None:
        with cgroup_root() as name:
            tree = CgroupTree(cgroup_layout.discover(), name)
            tree.add_session("s1")
            group = tree.add_call("s1", "c1")
            with sleeper() as pid:
                pass
            assert group.move(pid) is False
            tree.close()

    def test_the_controllers_peak_is_that_of_a_real_allocation(self) -> None:
        layout = cgroup_layout.discover()
        if layout.memory_version == 0:
            pytest.skip("no memory controller here")
        program = (
            "import sys; sys.stdin.readline(); a = bytearray(80 << 20); print('done', flush=True); sys.stdin.readline()"
        )
        with cgroup_root() as name:
            tree = CgroupTree(layout, name)
            tree.add_session("s1")
            group = tree.add_call("s1", "c1")
            with subprocess.Popen(
                [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as child:
                assert child.stdin is not None
                assert child.stdout is not None
                group.move(child.pid)
                child.stdin.write("\n")
                child.stdin.flush()
                assert child.stdout.readline() == "done\n"
                memory = group.memory()
                child.communicate("\n", timeout=10)
            assert memory.charged_bytes is not None
            assert memory.peak_bytes is not None
            assert 80 << 20 <= memory.charged_bytes <= memory.peak_bytes < 100 << 20
            assert memory.max_bytes is None
            assert (memory.max, memory.oom_kill) == (0, 0)
            tree.close()

    def test_a_frozen_process_stops_and_goes_on(self) -> None:
        if cgroup_layout.discover().v2 is None:
            pytest.skip("no cgroup v2 here")
        with cgroup_root() as name, sleeper() as pid:
            tree = CgroupTree(cgroup_layout.discover(), name)
            tree.add_session("s1")
            group = tree.add_call("s1", "c1")
            group.move(pid)
            assert group.v2 is not None
            try:
                group.set_frozen(True)
                until = time.monotonic() + 3
                while "frozen 1" not in (group.v2 / "cgroup.events").read_text() and time.monotonic() < until:
                    time.sleep(0.002)
                assert "frozen 1" in (group.v2 / "cgroup.events").read_text()
            finally:
                group.set_frozen(False)
            tree.close()

    def test_pressure_of_a_group_is_there_and_gone_with_it(self) -> None:
        with cgroup_root() as name:
            tree = CgroupTree(cgroup_layout.discover(), name)
            tree.add_session("s1")
            group = tree.add_call("s1", "c1")
            if not (group.v2 and (group.v2 / "memory.pressure").exists()):
                pytest.skip("no pressure figures here")
            assert group.memory_stall_us() == 0
            assert group.remove()
            assert group.memory_stall_us() is None
            assert group.memory().charged_bytes is None
            tree.close()

    def test_two_collectors_do_not_share_a_tree(self) -> None:
        with cgroup_root() as name:
            tree = CgroupTree(cgroup_layout.discover(), name)
            with pytest.raises(CgroupBusyError, match=r"another collector owns .* --cgroup-root"):
                CgroupTree(cgroup_layout.discover(), name)
            tree.close()
            CgroupTree(cgroup_layout.discover(), name).close()

    def test_leftovers_are_cleared_but_never_living_processes_nor_strangers(self) -> None:
        layout = cgroup_layout.discover()
        with cgroup_root() as name, sleeper() as pid:
            crashed = CgroupTree(layout, name)
            crashed.add_session("empty")
            crashed.add_call("empty", "c1")
            crashed.add_session("alive")
            crashed.add_call("alive", "c7").move(pid)
            os.close(crashed._lock)  # what a crash does
            base = layout.v2 or layout.memory
            assert base is not None
            foreign = base / f"{name}-foreign"
            foreign.mkdir()
            odd = base / name / "odd"
            (odd / "deeper" / "deepest").mkdir(parents=True)
            try:
                tree = CgroupTree(layout, name)
                assert [(left.session, left.pids) for left in tree.leftovers] == [("alive", (pid,))]
                assert not (base / name / "empty").exists()
                assert foreign.exists()
                assert (odd / "deeper" / "deepest").exists(), "not of our shape: not ours"
                os.kill(pid, 0)
                with pytest.raises(CgroupError, match=f"earlier collector \\({pid}\\)"):
                    tree.add_session("alive")
                tree.close()
            finally:
                foreign.rmdir()

    @pytest.mark.parametrize("bad", ["../x", "..", "", "a/b", "x" * 65, "a\nb"])
    def test_unsafe_ids_make_no_directory(self, bad: str) -> None:
        with cgroup_root() as name:
            tree = CgroupTree(cgroup_layout.discover(), name)
            before = {root: sorted(root.iterdir()) for root in tree._roots()}
            with pytest.raises(ValueError, match="is refused"):
                tree.add_session(bad)
            with pytest.raises(ValueError, match="is refused"):
                tree.add_call("s1", bad)
            with pytest.raises(ValueError, match="is refused"):
                tree.remove_session(bad)
            assert before == {root: sorted(root.iterdir()) for root in tree._roots()}
            tree.close()
        with pytest.raises(ValueError, match="cgroup root"):
            CgroupTree(cgroup_layout.discover(), bad)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_without_rights_there_is_no_tree_and_a_reason() -> None:
    program = (
        "from tidegate_collectors.kernel import cgroup_layout as l, cgroups as c\n"
        "try: c.CgroupTree(l.discover(), 'tgtest-user')\n"
        "except c.CgroupError as e: print(e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert "no cgroups here" in done.stdout, done.stderr
