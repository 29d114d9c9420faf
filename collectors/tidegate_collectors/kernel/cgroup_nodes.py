"""Directories of a cgroup hierarchy: their processes, their children, their making and removal."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def enable_memory(directory: Path) -> None:
    """Let the children of a v2 group have memory counters.

    A group with processes in it refuses this (EBUSY); ours have none, and the place we start from may be the
    collector's own group, which then moves one level down.
    """
    control = directory / "cgroup.subtree_control"
    if "memory" in control.read_text().split():
        return
    try:
        write(control, "+memory")
    except OSError as error:
        if error.errno != errno.EBUSY or pids_in(directory) != [os.getpid()]:
            raise
        leaf = directory / "collector"
        leaf.mkdir(exist_ok=True)
        write(leaf / "cgroup.procs", str(os.getpid()))
        write(control, "+memory")


def write(path: Path, text: str) -> None:
    """Write a control file in one go. Raises :class:`OSError`: the kernel refused it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def pids_in(directory: Path) -> list[int]:
    """Processes of one group; none when it is gone. 0 stands for one outside of our pid namespace."""
    try:
        return [int(line) for line in (directory / "cgroup.procs").read_text().split() if line.isdigit()]
    except OSError:
        return []


def subdirectories(directory: Path) -> list[str]:
    """Names of the groups in a group; none when it is gone."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def remove_directory(directory: Path) -> bool:
    """Remove one group; whether it is gone."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # in use, or not ours to remove: it stays
    return True
