"""Groups of sessions that come again under the same id while the old ones are cleared away."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.own_cgroups import cgroup_root, sleeper
from tidegate_collectors.kernel import cgroup_layout
from tidegate_collectors.kernel.cgroups import CgroupError, CgroupTree
from tidegate_collectors.kernel.groups import Groups

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="making cgroups needs root"),
]


def test_a_refused_comeback_leaves_nothing_behind() -> None:
    """GIVEN a session whose group a process has not left WHEN its id comes again and is refused THEN the group is still
    removed once the process is gone, and no descriptor stays open."""
    with cgroup_root() as name:
        tree = CgroupTree(cgroup_layout.discover(), name)
        groups = Groups(tree)
        open_before = len(list(Path("/proc/self/fd").iterdir()))
        with sleeper() as pid:
            made = groups.add_session("s", pid)
            assert made is not None
            made.session.memory()
            made.session.psi()
            groups.drop_session("s")
            with pytest.raises(CgroupError, match="has processes"):
                groups.add_session("s", pid)
        until = time.monotonic() + 5
        while groups.clearing and time.monotonic() < until:
            groups.remove_emptied()
            time.sleep(0.01)
        assert not any(directory.exists() for directory in made.session.directories)
        assert len(list(Path("/proc/self/fd").iterdir())) == open_before
        groups.close()
