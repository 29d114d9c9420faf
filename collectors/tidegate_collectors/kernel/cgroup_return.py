"""Give processes back when the collector stops: to the groups that their sessions came from.

Only processes in our own groups are moved, and none is ended. Agents go on meanwhile and may fork, and a process that
is ending cannot be moved; so groups are looked through again and again, for a bounded time.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate_collectors.kernel.cgroup_layout import own_directory, parse_mounts, parse_own_cgroups
from tidegate_collectors.kernel.cgroup_nodes import pids_in, remove_directory, subdirectories, write

GIVE_BACK_S: Final = 1.0
"""A move waits for a grace period of the kernel, some milliseconds, and those right after it do not."""

_AGAIN_S: Final = 0.01
_REFUSED_ROUNDS: Final = 5
"""After so many rounds in which every move was refused, waiting is of no use."""


@dataclass(slots=True, frozen=True)
class Stays:
    """A group that could not be removed, its processes (those that we see), and what was in the way."""

    directory: Path
    pids: tuple[int, ...]
    reason: str


class Homes:
    """Where the root process of each session was before it was moved, by our root of the same hierarchy."""

    def __init__(self) -> None:
        self._of: dict[str, dict[Path, Path]] = {}

    def remember(self, session: str, pid: int, roots: list[Path]) -> None:
        """Note the groups of a process; nothing is noted of a hierarchy where they cannot be seen."""
        try:
            own = parse_own_cgroups(Path(f"/proc/{pid}/cgroup").read_text(errors="replace"))
            mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(errors="replace"))
        except OSError:
            return
        found = self._of[session] = {}
        for root in roots:
            above = [item for item in mounts if root.is_relative_to(item.point)]
            if not above:
                continue
            mount = max(above, key=lambda item: len(item.point.parts))
            home = own_directory(mount, own.get("" if mount.version == 2 else "memory", "/"))
            if home.is_relative_to(root):  # started inside of another session: it came from where that one came from
                place = home.relative_to(root).parts
                outer = self._of.get(place[0], {}).get(root) if place and place[0] != session else None
                home = outer if outer is not None else root.parent
            found[root] = home

    def forget(self, session: str) -> None:
        """The session's groups are gone."""
        self._of.pop(session, None)

    def ways_out(self, root: Path, group: Path) -> list[Path]:
        """Where a process in ``group`` of ``root`` may go, the best place first.

        When that is gone or takes no processes, the groups above it follow, up to the hierarchy's root: the limits of
        those held for the process before, too. Where it came from is not known of what an earlier collector left: then
        it begins at the group above our root.
        """
        place = group.relative_to(root).parts
        home = self._of.get(place[0], {}).get(root, root.parent) if place else root.parent
        return [way for way in (home, *home.parents) if (way / "cgroup.procs").exists()]


class GiveBack:
    """One emptying of everything below our roots, one directory a hierarchy."""

    def __init__(self, roots: list[Path], homes: Homes) -> None:
        self._roots = roots
        self._homes = homes
        self._refused: dict[Path, str] = {}

    def run(self) -> list[Stays]:
        """Move and remove until nothing is left, nothing can be moved, or the time is over."""
        deadline, refused_rounds = time.monotonic() + GIVE_BACK_S, 0
        while True:
            self._refused.clear()
            moved = [self._move_out(root, group, deadline) for root in self._roots for group in _groups(root)]
            # No short cut: each of them is tried, the inner ones first.
            gone = [remove_directory(group) for root in self._roots for group in _groups(root)]
            if all(gone) or time.monotonic() >= deadline:
                break
            refused_rounds = refused_rounds + 1 if self._refused and not any(moved) else 0
            if refused_rounds >= _REFUSED_ROUNDS:
                break
            time.sleep(_AGAIN_S)
        left = [group for root in self._roots for group in _groups(root) if group.exists()]
        return [self._stays(group) for group in left if not any(group in other.parents for other in left)]

    def _move_out(self, root: Path, group: Path, deadline: float) -> bool:
        """Whether a process was moved."""
        moved, ways = False, None
        for pid in pids_in(group):
            if time.monotonic() >= deadline:
                break
            ways = self._homes.ways_out(root, group) if ways is None else ways
            moved = self._move(pid, group, ways) or moved
        return moved

    def _move(self, pid: int, group: Path, ways: list[Path]) -> bool:
        reason = "no group is there to take it"
        # 0 is a process that we do not see, outside of our pid namespace; to write it would move ourselves.
        for way in ways if pid > 0 else ():
            try:
                write(way / "cgroup.procs", str(pid))
            except OSError as error:
                if error.errno == errno.ESRCH:
                    return False
                reason = f"{way}: {os.strerror(error.errno or 0)}"
                continue
            return True
        self._refused[group] = reason
        return False

    def _stays(self, group: Path) -> Stays:
        pids = tuple(pid for pid in pids_in(group) if pid > 0)
        foreign = subdirectories(group)
        if reason := self._refused.get(group):
            return Stays(group, pids, reason)
        return Stays(group, pids, f"{group / foreign[0]} is in it" if foreign else "a process in it is still ending")


def _groups(root: Path) -> Iterator[Path]:
    """The groups that we make below a root, and itself; inner ones first."""
    for session in subdirectories(root):
        tools = root / session / "tools"
        yield from (tools / call for call in subdirectories(tools))
        yield from (tools, root / session / "runtime", root / session)
    yield root
