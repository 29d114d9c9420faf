"""Where this host keeps its cgroups: which hierarchy gives identity, freeze and pressure, and which holds memory.

Two layouts are known. *v2*: one hierarchy does all. *hybrid*: v2 gives identity, freeze and PSI, while v1 holds the
memory controller. Everything found here comes from ``/proc/self/mountinfo`` and ``/proc/self/cgroup``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MemoryVersion = Literal[0, 1, 2]


@dataclass(slots=True, frozen=True)
class Mount:
    """One mounted cgroup hierarchy. ``root`` is the part of the hierarchy that ``point`` shows."""

    point: Path
    root: str
    version: Literal[1, 2]
    controllers: frozenset[str]


@dataclass(slots=True, frozen=True)
class Layout:
    """The directories below which our own root is made.

    ``v2``: in the v2 hierarchy; ``None`` when there is none to write to. ``memory``: where memory counters live, equal
    to ``v2`` when that hierarchy has the controller. ``reason``: what is missing and why, empty when nothing is.
    """

    v2: Path | None
    memory: Path | None
    memory_version: MemoryVersion
    reason: str = ""

    @property
    def name(self) -> str:
        """``v2``, ``hybrid``, ``v2 without memory``, ``v1 memory only`` or ``none``."""
        if self.v2 is None:
            return "none" if self.memory is None else "v1 memory only"
        return {0: "v2 without memory", 1: "hybrid", 2: "v2"}[self.memory_version]


def parse_mounts(mountinfo: str) -> list[Mount]:
    """The cgroup mounts among the lines of a ``mountinfo``; lines that do not fit are skipped."""
    mounts = []
    for line in mountinfo.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, kind = head.split(" "), tail.split(" ")
        if not separator or len(fields) < 6 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset[str]()
        point, root = Path(_unescape(fields[4])), _unescape(fields[3])
        mounts.append(Mount(point, root, 2 if kind[0] == "cgroup2" else 1, controllers))
    return mounts


def parse_own_cgroups(text: str) -> dict[str, str]:
    """Own cgroup by hierarchy from ``/proc/PID/cgroup``: ``""`` is v2, v1 hierarchies are listed by controller."""
    own: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        for controller in parts[1].split(","):
            own[controller] = parts[2]
    return own


def own_directory(mount: Mount, own: str) -> Path:
    """The directory of cgroup ``own`` under ``mount``; the mount point itself when the mount does not show it."""
    inside = own
    if mount.root != "/":
        if own != mount.root and not own.startswith(mount.root + "/"):
            return mount.point
        inside = own[len(mount.root) :]
    parts = [part for part in inside.split("/") if part]
    return mount.point if ".." in parts else mount.point.joinpath(*parts)


def own_v2_id(mountinfo: str | None = None, own_cgroups: str | None = None) -> int | None:
    """The id of the v2 cgroup that this process is in; ``None`` where there is none or it cannot be seen.

    Arguments as of :func:`discover`.
    """
    mounts = parse_mounts(_read("/proc/self/mountinfo") if mountinfo is None else mountinfo)
    mount = next((mount for mount in mounts if mount.version == 2), None)
    own = parse_own_cgroups(_read("/proc/self/cgroup") if own_cgroups is None else own_cgroups).get("")
    if mount is None or own is None:
        return None
    directory = own_directory(mount, own)
    if directory == mount.point and own != mount.root:  # it lies outside of what the mount, or our namespace, shows
        return None
    try:
        return directory.stat().st_ino
    except OSError:
        return None


def discover(mountinfo: str | None = None, own_cgroups: str | None = None) -> Layout:
    """Find the places for our root. Arguments are the texts of the two files, for tests; nothing is written."""
    mounts = parse_mounts(_read("/proc/self/mountinfo") if mountinfo is None else mountinfo)
    own = parse_own_cgroups(_read("/proc/self/cgroup") if own_cgroups is None else own_cgroups)
    reasons = []
    v2 = _place_v2(mounts, own)
    if v2 is None:
        reasons.append("no cgroup v2 hierarchy that this user may write to")
    if v2 is not None and _has_memory(v2):
        return Layout(v2, v2, 2)
    v1 = next((mount for mount in mounts if mount.version == 1 and "memory" in mount.controllers), None)
    if v1 is not None:
        # Below our own group, not at the top: a limit that holds for the collector must go on holding for the agents.
        place = own_directory(v1, own.get("memory", "/"))
        if os.access(place, os.W_OK):
            return Layout(v2, place, 1, "; ".join(reasons))
        reasons.append(f"no right to make groups in {place}")
    else:
        reasons.append("no memory controller in v2 and none in v1")
    return Layout(v2, None, 0, "; ".join(reasons))


def _place_v2(mounts: list[Mount], own: dict[str, str]) -> Path | None:
    mount = next((mount for mount in mounts if mount.version == 2), None)
    if mount is None:
        return None
    place = own_directory(mount, own.get("", "/"))
    # A manager's group may be used only where it was delegated; else root makes its own at the top.
    if place != mount.point and not _is_delegated(place) and os.access(mount.point, os.W_OK):
        place = mount.point
    return place if os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK) else None


def _is_delegated(place: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(place, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _has_memory(place: Path) -> bool:
    return "memory" in _read(place / "cgroup.controllers").split()


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
