"""The folder of recordings: one database file a run, written under another name and given its own when it is complete.

::

    recordings/20261130-2306-ab12.db          a recording: one file, in no need of a WAL beside it
    recordings/import-5f0c9a2e.db.part ...    an import under way, with its WAL, its lock and what it unpacked
    recordings/upload-77ab01fe.part           a file that is being received, or waits for its import

What an import or an upload leaves behind when its process is killed is removed at the next start of a backend.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tidegate.errors import StoreError

SUFFIX: Final = ".db"
_PART: Final = re.compile(r"^(import|upload)-[0-9a-f]{8}(\.db)?\.part($|[-.])")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_RESERVED: Final = frozenset({"live", "tidegate"})
_YOUNG_S: Final = 5.0
_PRIVATE: Final = "tidegate-replay-"
_IN_USE: Final = "in-use"


def safe_id(text: str) -> str:
    """A run id, and a file's name, of any text: letters, digits, dot, dash and underscore, at most 80, never hidden."""
    name = _UNSAFE.sub("_", text)[:80].strip("._-")
    return f"{name}-run" if name in _RESERVED else name or "recording"


def free_id(wanted: str, taken: Iterable[str]) -> str:
    """``wanted`` as a safe id, with a number appended when it is taken."""
    name, known = safe_id(wanted), set(taken)
    found, count = name, 1
    while found in known:
        count += 1
        found = f"{name}-{count}"
    return found


def file_of(directory: Path, run_id: str) -> Path:
    """Where the recording with that id is. The id is one of :func:`safe_id`: a path is never made of anything else.

    Raises:
        ValueError: it is no such id.
    """
    if run_id != safe_id(run_id):
        raise ValueError(f"{run_id!r} is no id of a recording")
    return directory / (run_id + SUFFIX)


def make(directory: Path) -> None:
    """Make the folder; what the process may not do otherwise (as root), its parent's owner gets.

    Raises:
        StoreError: it cannot be made.
    """
    try:
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            give(directory, directory.parent)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror}; choose another --state-dir") from None


def new_part(directory: Path) -> Path:
    """A name for the database of an import that nobody else uses."""
    return directory / f"import-{secrets.token_hex(4)}{SUFFIX}.part"


def new_upload(directory: Path) -> Path:
    """A name for a file that is received."""
    return directory / f"upload-{secrets.token_hex(4)}.part"


def remove_part(part: Path) -> None:
    """Remove an import's or an upload's files, whatever there is of them."""
    for path in [part, *part.parent.glob(f"{part.name}[-.]*")]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


class PrivateFolder:
    """A folder of recordings that goes with its process: where ``serve --replay`` imports into.

    One whose process was killed is removed when the next is made.

    Raises:
        StoreError: there is no room for it.
    """

    def __init__(self) -> None:
        for other in Path(tempfile.gettempdir()).glob(f"{_PRIVATE}*"):
            if other.is_dir() and not other.is_symlink() and _is_abandoned(other):
                shutil.rmtree(other, ignore_errors=True)
        try:
            self.path: Final = Path(tempfile.mkdtemp(prefix=_PRIVATE))
            self._fd = os.open(self.path / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"no directory for the recording's database: {error}") from None
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def _is_abandoned(private: Path) -> bool:
    with contextlib.suppress(OSError):
        if private.stat().st_uid != os.geteuid() or _is_young(private):
            return False
        fd = os.open(private / _IN_USE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        finally:
            os.close(fd)
    return False


def remove_leftovers(directory: Path) -> int:
    """Remove what killed imports and uploads left; those that go on keep theirs. Returns how many there were."""
    parts: set[Path] = set()
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if _PART.match(path.name):
                parts.add(directory / (path.name.partition(".part")[0] + ".part"))
    gone = [part for part in parts if not _is_written(part)]
    for part in gone:
        remove_part(part)
    return len(gone)


def _is_written(part: Path) -> bool:
    lock = part.with_name(part.name + ".lock")
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        # An upload has no lock: its receiver is this state directory's backend, which is only starting. An import
        # takes its lock a moment after it has made its file.
        return part.name.startswith("import-") and _is_young(part)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _is_young(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < _YOUNG_S
    except OSError:
        return False


def seal(path: Path) -> None:
    """Leave a database that nobody has open as one single file, which opens for reading where nothing can be written.

    Raises:
        sqlite3.Error: it is damaged or the disk is full.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        connection.close()
    path.with_name(path.name + ".lock").unlink(missing_ok=True)


def set_values(path: Path, **values: str) -> None:
    """Change columns (id, title) of the one run in a sealed database.

    Raises:
        StoreError: it cannot be written.
    """
    names = ", ".join(f"{name} = ?" for name in values)
    try:
        connection = sqlite3.connect(path, timeout=10.0)
        try:
            with connection:
                connection.execute(f"UPDATE runs SET {names}", tuple(values.values()))  # noqa: S608 - names of our own
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from None


def publish(part: Path, run_id: str, taken: Iterable[str] = ()) -> str:
    """Give a sealed database its name, and its run another id when that name was taken meanwhile; returns the id.

    Args:
        part: the database.
        run_id: the id that its run has.
        taken: other ids that it must not get.

    Raises:
        StoreError: it cannot be renamed.
    """
    directory = part.parent
    give(part, directory)
    known = set(taken) - {run_id}
    while True:
        found = free_id(run_id, known)
        if found != run_id:
            set_values(part, id=found)
        try:
            _sync(part)
            # A link and not a rename: it never takes the place of a file that is there.
            os.link(part, file_of(directory, found), follow_symlinks=False)
        except FileExistsError:
            known.add(found)
            continue
        except OSError as error:
            raise StoreError(f"{directory}: {error.strerror}") from None
        part.unlink()
        _sync(directory)
        return found


def give(path: Path, like: Path) -> None:
    """As root, give a file to the owner of another one: the backend that is to read it is not root."""
    if os.geteuid() != 0:
        return
    status = like.stat()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(fd, status.st_uid, status.st_gid)
    finally:
        os.close(fd)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
