"""Our cgroups, ``<root>/<session>/{runtime,tools/<call>}``: one tree over one or two hierarchies.

No process lives in an inner node, so the v2 rule about inner processes never bites. On hybrid hosts every group exists
twice, in v2 and in the v1 memory hierarchy, and a move is one after the other at once: the kernel's grace period of
some milliseconds is then paid once. Nothing outside our root is ever written.
"""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from tidegate_collectors.kernel.cgroup_files import (
    ControlFiles,
    MemoryCounters,
    Psi,
    read_memory_v1,
    read_memory_v2,
    read_psi,
)
from tidegate_collectors.kernel.cgroup_layout import Layout
from tidegate_collectors.kernel.cgroup_nodes import enable_memory, pids_in, remove_directory, subdirectories, write
from tidegate_collectors.kernel.cgroup_return import GiveBack, Homes, Stays
from tidegate_collectors.names import check_id


class CgroupError(Exception):
    """The tree cannot be used; the message says why and what to do."""


class CgroupBusyError(CgroupError):
    """Another collector owns the tree."""


@dataclass(slots=True, frozen=True)
class Leftover:
    """A session's groups of an earlier collector in which processes still live; they are left alone."""

    session: str
    pids: tuple[int, ...]


class CgroupHandle:
    """One group of the tree, in whichever hierarchies it exists.

    ``path`` is the place below our root, ``id`` the inode in v2, which BPF programs see as the cgroup id; ``None``
    where the host has no v2. ``memcg_id`` is the same in the v1 memory hierarchy, ``None`` where memory is in v2.
    """

    def __init__(self, tree: CgroupTree, path: str) -> None:
        self._tree = tree
        self.path = path
        self.v2 = tree.v2_root / path if tree.v2_root is not None else None
        self.memory_dir = tree.memory_root / path if tree.memory_root is not None else None
        self.id = self.v2.stat().st_ino if self.v2 is not None else None
        self.memcg_id = None
        if self.memory_dir is not None and self.memory_dir != self.v2:
            self.memcg_id = self.memory_dir.stat().st_ino
        self._v2_files = ControlFiles(self.v2) if self.v2 is not None else None
        if self.memory_dir is None or self.memory_dir == self.v2:
            self._memory_files = self._v2_files
        else:
            self._memory_files = ControlFiles(self.memory_dir)

    @property
    def directories(self) -> list[Path]:
        """Its directories, v2 first, each once."""
        found = [place for place in (self.v2, self.memory_dir) if place is not None]
        return found if len(found) < 2 or found[0] != found[1] else found[:1]

    def move(self, pid: int) -> bool:
        """Put a process, with all its threads, into this group. False when it was gone already.

        Takes some milliseconds for the first of several moves (grace period), some 0.1 ms for the others.

        Raises:
            CgroupError: the kernel refused it.
        """
        for directory in self.directories:
            try:
                write(directory / "cgroup.procs", str(pid))
            except OSError as error:
                if error.errno == errno.ESRCH:
                    return False
                raise CgroupError(f"cannot move process {pid} into {directory}: {error.strerror}") from error
        return True

    def pids(self) -> list[int]:
        """Processes in this group itself, zombies left out."""
        found: set[int] = set()
        for directory in self.directories:
            found.update(pids_in(directory))
        return sorted(found)

    def psi(self) -> Psi:
        """Pressure totals; all ``None`` without v2."""
        return read_psi(self._v2_files) if self._v2_files is not None else Psi()

    def memory_stall_us(self) -> int | None:
        """Time that at least one task stalled on memory, microseconds since the group was made."""
        return self.psi().memory_some_us

    def memory(self) -> MemoryCounters:
        """The memory controller's counters; all unknown where no controller is at hand."""
        if self._memory_files is None or self._tree.layout.memory_version == 0:
            return MemoryCounters()
        return (read_memory_v1 if self._tree.layout.memory_version == 1 else read_memory_v2)(self._memory_files)

    def set_frozen(self, frozen: bool) -> None:
        """Stop or continue all its processes (v2 freezer).

        Raises:
            CgroupError: no v2 hierarchy, or the kernel refused it.
        """
        if self.v2 is None:
            raise CgroupError("freezing needs a cgroup v2 hierarchy")
        try:
            write(self.v2 / "cgroup.freeze", "1" if frozen else "0")
        except OSError as error:
            raise CgroupError(f"cannot write {self.v2}/cgroup.freeze: {error.strerror}") from error

    def remove(self) -> bool:
        """Remove it; False while processes (or groups) are still in it."""
        gone = all(list(map(remove_directory, self.directories)))  # each is tried
        if gone:
            self.close()
        return gone

    def close(self) -> None:
        """Close the files held open; the group stays."""
        for files in (self._v2_files, self._memory_files):
            if files is not None:
                files.close()


@dataclass(slots=True, frozen=True)
class SessionGroups:
    """The groups of one session: itself (no processes), and its runtime."""

    session: CgroupHandle
    runtime: CgroupHandle


class CgroupTree:
    """All our groups below one root directory, which one collector at a time owns (a lock on the directory)."""

    def __init__(self, layout: Layout, name: str = "tidegate") -> None:
        """Create and lock the root, and clear away empty groups of an earlier collector.

        Raises:
            CgroupError: no hierarchy to write to, another collector owns the root, or the kernel refused it.
            ValueError: ``name`` is no safe name.
        """
        check_id("cgroup root", name)
        if layout.v2 is None and layout.memory is None:
            raise CgroupError(f"no cgroups here: {layout.reason}")
        self.layout = layout
        self.name = name
        self.v2_root = layout.v2 / name if layout.v2 is not None else None
        self.memory_root = layout.memory / name if layout.memory is not None else None
        self._lock = -1
        self._homes = Homes()
        self._make("")
        self._acquire()
        self.leftovers = self._clear()

    def add_session(self, session: str) -> SessionGroups:
        """Create a session's groups.

        Raises:
            ValueError: the id is not safe. CgroupError: processes of an earlier session with this id still live.
        """
        check_id("session", session)
        if busy := self._session_pids(session):
            shown = ", ".join(str(pid) for pid in busy[:8])
            raise CgroupError(f"session {session} has processes of an earlier collector ({shown}); end them first")
        for part in ("", "/runtime", "/tools"):
            self._make(session + part)
        return SessionGroups(CgroupHandle(self, session), CgroupHandle(self, f"{session}/runtime"))

    def remember_home(self, session: str, pid: int) -> None:
        """Note where the root process of a session that was added is now, for :meth:`give_back`."""
        self._homes.remember(session, pid, self._roots())

    def add_call(self, session: str, call: str) -> CgroupHandle:
        """Create the group of a call of a session that was added.

        Raises:
            ValueError: an id is not safe. CgroupError: the kernel refused it.
        """
        path = f"{check_id('session', session)}/tools/{check_id('call', call)}"
        self._make(path)
        return CgroupHandle(self, path)

    def remove_session(self, session: str) -> bool:
        """Remove a session's groups as far as they are empty; True when none is left."""
        check_id("session", session)
        results = [self._remove_session(root, session) for root in self._roots()]
        if gone := all(results):
            self._homes.forget(session)
        return gone

    def give_back(self) -> list[Stays]:
        """Move the processes of all our groups to where their sessions came from, and remove the groups.

        Ends within about a second; what could not be removed by then is returned. Nothing is ever ended.
        """
        return GiveBack(self._roots(), self._homes).run()

    def close(self) -> None:
        """Remove the root when nothing is in it, and give the lock back."""
        for root in self._roots():
            remove_directory(root)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _roots(self) -> list[Path]:
        roots = [root for root in (self.v2_root, self.memory_root) if root is not None]
        return roots if len(roots) < 2 or roots[0] != roots[1] else roots[:1]

    def _make(self, path: str) -> None:
        for root in self._roots():
            directory = root / path
            try:
                if self.layout.memory_version == 2:
                    enable_memory(directory.parent)
                directory.mkdir(mode=0o755, exist_ok=True)
            except OSError as error:
                raise CgroupError(
                    f"cannot make {directory}: {error.strerror}; root or a delegated group is needed"
                ) from error

    def _acquire(self) -> None:
        descriptor = os.open(self._roots()[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise CgroupBusyError(
                f"another collector owns {self._roots()[0]}; stop it, or give this one its own --cgroup-root"
            ) from error
        self._lock = descriptor

    def _clear(self) -> list[Leftover]:
        found: list[Leftover] = []
        names = {entry for root in self._roots() for entry in subdirectories(root)}
        for session in sorted(names):
            for root in self._roots():
                self._remove_session(root, session)
            if pids := self._session_pids(session):
                found.append(Leftover(session, tuple(pids)))
        return found

    def _session_pids(self, session: str) -> list[int]:
        found: set[int] = set()
        for root in self._roots():
            base = root / session
            found.update(pids_in(base / "runtime"))
            for call in subdirectories(base / "tools"):
                found.update(pids_in(base / "tools" / call))
        return sorted(found)

    @staticmethod
    def _remove_session(root: Path, session: str) -> bool:
        base = root / session
        for call in subdirectories(base / "tools"):
            remove_directory(base / "tools" / call)
        # No short cut: each of them is tried, the inner ones first.
        return all([remove_directory(base / "tools"), remove_directory(base / "runtime"), remove_directory(base)])
