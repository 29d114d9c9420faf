"""Descriptors of control files: kept open, but never so many that others find none."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from tidegate_collectors.kernel.cgroup_files import ControlFiles


def test_thousands_of_groups_leave_descriptors_to_others(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("4096\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 4 * (len(list(Path("/proc/self/fd").iterdir())) + 10)
    kept = ControlFiles.kept
    files = [ControlFiles(tmp_path) for _ in range(limit)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        assert all(item.number("memory.current") == 4096 for item in files), "each is read"
        with Path(os.devnull).open() as other:
            assert other.fileno() < limit
        for item in files:
            item.close()
        assert ControlFiles.kept == kept
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
