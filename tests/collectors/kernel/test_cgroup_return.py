"""Processes are given back, wherever they came from, while they fork and end; nothing of ours stays."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.own_cgroups import cgroup_root, sleeper
from tidegate_collectors.kernel import cgroup_layout, cgroup_return
from tidegate_collectors.kernel.cgroups import CgroupTree
from tidegate_collectors.kernel.groups import Groups

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="making cgroups needs root"),
]


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def bases() -> set[Path]:
    layout = cgroup_layout.discover()
    return {base for base in (layout.v2, layout.memory) if base is not None}


def test_processes_go_back_to_where_they_came_from() -> None:
    """GIVEN a session whose root was in groups of its own, and a call WHEN all is closed THEN both are there again."""
    with cgroup_root() as home, cgroup_root() as name, sleeper() as root, sleeper() as tool:
        for base in bases():
            (base / home / "inner").mkdir(parents=True)
            for pid in (root, tool):
                (base / home / "inner" / "cgroup.procs").write_text(str(pid))
        before = groups_of(root)
        groups = Groups(CgroupTree(cgroup_layout.discover(), name))
        groups.add_session("s", root)
        groups.add_call("s", "c1")
        groups.move("s", "c1", [tool])
        assert groups_of(tool).count(f"{name}/s/tools/c1") == len(bases())
        groups.close()
        assert (groups_of(root), groups_of(tool)) == (before, before)
        assert not any((base / name).exists() for base in bases())


def test_a_home_that_is_gone_is_replaced_by_what_was_around_it() -> None:
    with cgroup_root() as home, cgroup_root() as name, sleeper() as pid:
        for base in bases():
            (base / home / "inner").mkdir(parents=True)
            (base / home / "inner" / "cgroup.procs").write_text(str(pid))
        groups = Groups(CgroupTree(cgroup_layout.discover(), name))
        groups.add_session("s", pid)
        for base in bases():
            (base / home / "inner").rmdir()
        groups.close()
        assert sum(line.endswith(f"/{home}") for line in groups_of(pid).splitlines()) == len(bases())


def test_what_an_earlier_collector_left_is_given_back_too() -> None:
    with cgroup_root() as name, sleeper() as pid:
        first = CgroupTree(cgroup_layout.discover(), name)
        first.add_session("s").runtime.move(pid)
        os.close(first._lock)  # as when it was killed
        first._lock = -1
        Groups(CgroupTree(cgroup_layout.discover(), name)).close()
        assert name not in groups_of(pid)
        assert not any((base / name).exists() for base in bases())


def test_a_process_that_forks_all_the_time_is_followed() -> None:
    """GIVEN a shell that starts programs as fast as it can WHEN its groups are closed THEN it goes on elsewhere."""
    with cgroup_root() as name:
        busy = subprocess.Popen(["sh", "-c", "while :; do /bin/true & /bin/true; done"])
        try:
            groups = Groups(CgroupTree(cgroup_layout.discover(), name))
            groups.add_session("s", busy.pid)
            time.sleep(0.2)
            began = time.monotonic()
            groups.close()
            assert time.monotonic() - began < cgroup_return.GIVE_BACK_S + 1
            assert busy.poll() is None
            assert name not in groups_of(busy.pid)
            assert not any((base / name).exists() for base in bases())
        finally:
            busy.kill()
            busy.wait(5)


def test_what_stays_is_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """GIVEN a group that somebody else made in one of ours WHEN ours are closed THEN it stays, and its process."""
    with cgroup_root() as name, sleeper() as pid, caplog.at_level(logging.WARNING):
        groups = Groups(CgroupTree(cgroup_layout.discover(), name))
        made = groups.add_session("s", pid)
        assert made is not None
        for directory in made.runtime.directories:
            (directory / "theirs").mkdir()
            (directory / "theirs" / "cgroup.procs").write_text(str(pid))
        groups.close()
        (record,) = caplog.records
        for directory in made.runtime.directories:
            assert str(directory / "theirs") in record.getMessage()
        assert "the next start removes" in record.getMessage()
        assert groups_of(pid).count(f"{name}/s/runtime/theirs") == len(bases())
