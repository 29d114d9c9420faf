"""The lock's file is there while it is held; a file that was removed meanwhile locks nobody out, and nobody in."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from tidegate_collectors.kernel.runtime_lock import RuntimeLock


def test_it_names_its_holder_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "collect.lock"
    lock = RuntimeLock(path)
    with pytest.raises(BlockingIOError, match=str(os.getpid())):
        RuntimeLock(path)
    lock.release()
    assert not path.exists()
    RuntimeLock(path).release()


def test_a_file_removed_between_opening_and_locking_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN one that has opened the file WHEN its holder removes it before it is locked THEN the new file is taken."""
    path, holder, real = tmp_path / "collect.lock", [RuntimeLock(tmp_path / "collect.lock")], fcntl.flock

    def flock(*arguments: Any) -> None:
        if holder:
            holder.pop().release()
        real(*arguments)

    monkeypatch.setattr("tidegate_collectors.kernel.runtime_lock.fcntl.flock", flock)
    lock = RuntimeLock(path)
    with pytest.raises(BlockingIOError):
        RuntimeLock(path)
    lock.release()
