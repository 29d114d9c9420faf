"""Cgroups and processes of a test: named ``tgtest-*``, and gone when it ends, whatever happened."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from tidegate_collectors.kernel import cgroup_layout


def new_root_name() -> str:
    """A name for the root of a tree that no other test uses."""
    return f"tgtest-{uuid4().hex[:8]}"


@contextmanager
def cgroup_root() -> Iterator[str]:
    """A root name; its directories are removed afterwards, after the processes in them."""
    name = new_root_name()
    try:
        yield name
    finally:
        remove_root(name)


def remove_root(name: str) -> None:
    """Kill what is in the tree of this name and remove it."""
    assert name.startswith("tgtest-")
    layout = cgroup_layout.discover()
    until = time.monotonic() + 5
    for base in {place for place in (layout.v2, layout.memory) if place is not None}:
        while (base / name).exists() and time.monotonic() < until:
            for kill in (base / name).rglob("cgroup.kill"):
                kill.write_text("1")
            for directory in sorted((base / name).rglob("*/"), key=lambda path: -len(path.parts)):
                if directory.is_dir():
                    _rmdir(directory)
            _rmdir(base / name)
            time.sleep(0.01)


def _rmdir(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        return


@contextmanager
def sleeper(seconds: float = 30) -> Iterator[int]:
    """A process that does nothing; killed and reaped afterwards."""
    process = subprocess.Popen(["sleep", str(seconds)])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait(5)


def once_placed(session: str, call: str) -> str:
    """Lines of Python, for ``python -c '...'``, that wait until the process is in the groups of its call.

    What it takes before is not charged to those, and how long a busy collector needs is not what is tested.
    """
    layout = cgroup_layout.discover()
    groups = len({base for base in (layout.v2, layout.memory) if base is not None})
    return (
        "import time\nuntil = time.monotonic() + 20\n"
        f'while open("/proc/self/cgroup").read().count("/{session}/tools/{call}\\n") < {groups}:\n'
        "    assert time.monotonic() < until\n    time.sleep(0.01)\n"
    )
