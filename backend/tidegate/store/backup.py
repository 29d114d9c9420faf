"""A copy of a database at one instant, made while a backend may be writing to it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tidegate.errors import StoreError, UsageError
from tidegate.store.engines import BUSY_TIMEOUT_MS, WriterLock, explain

PAGES_A_STEP: Final = 2048


def backup(
    source: Path, target: Path, *, force: bool = False, progress: Callable[[int, int], None] | None = None
) -> int:
    """Copy a database; the copy appears under its name when it is complete and was checked.

    Args:
        source: the database, of a running backend perhaps. It is only read, and writing goes on meanwhile.
        target: the new file.
        force: replace what is there.
        progress: called with the pages done and all pages.

    Returns:
        bytes of the copy.

    Raises:
        UsageError: the target exists, or is the source.
        StoreError: the source cannot be read, the target not written or in use, or the copy is damaged.
    """
    if not source.is_file():
        raise StoreError(f"{source} does not exist; has `tidegate serve` run with this --state-dir?")
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target} is the database itself")
    if target.exists() and not force:
        raise UsageError(f"{target} exists; choose another name, or replace it with --force")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        # The mode of the database itself: what agents ran is nobody else's business.
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from None
    try:
        _copy(source, part, progress)
        _check(part, source)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        size = part.stat().st_size
        if target.exists():
            _clear_beside(target)
        part.replace(target)
        _sync_directory(target.parent)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from None
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            part.with_name(part.name + suffix).unlink(missing_ok=True)
    return size


def _copy(source: Path, part: Path, progress: Callable[[int, int], None] | None) -> None:
    origin = copy = None
    try:
        origin = sqlite3.connect(_uri(source, "ro"), uri=True, isolation_level=None)
        origin.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        # Without a transaction that is open all the time, each commit of the backend would make the copy begin anew.
        origin.execute("BEGIN")
        origin.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        copy = sqlite3.connect(part, isolation_level=None)
        copy.execute("PRAGMA synchronous = OFF")  # it is synced as a whole at the end

        def step(_status: int, remaining: int, total: int) -> None:
            if progress is not None:
                progress(total - remaining, total)

        origin.backup(copy, pages=PAGES_A_STEP, progress=step, sleep=0.0)
    except sqlite3.Error as error:
        raise explain(error, part if "full" in str(error) else source) from error
    finally:
        for connection in (origin, copy):
            if connection is not None:
                connection.close()


def _check(part: Path, source: Path) -> None:
    connection = sqlite3.connect(part, isolation_level=None)
    try:
        # One file that opens read-only anywhere.
        connection.execute("PRAGMA journal_mode = DELETE")
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    except sqlite3.Error as error:
        raise StoreError(f"the copy of {source} cannot be read: {error}") from error
    finally:
        connection.close()
    if found != ["ok"]:
        raise StoreError(f"the copy of {source} is damaged, and so the database may be: {'; '.join(found)[:500]}")


def _clear_beside(target: Path) -> None:
    """Remove what a backend that was killed left beside the file that is replaced: SQLite would take it for the copy's.

    Raises:
        StoreError: a backend writes to that file.
    """
    if target.with_name(f"{target.name}.lock").exists():
        WriterLock(target).release()
    for suffix in ("-journal", "-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.absolute()))}?mode={mode}"


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
