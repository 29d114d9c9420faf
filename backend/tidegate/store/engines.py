"""Connections to the SQLite file: one that writes, a few that can only read, and a lock against a second writer."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiosqlite
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from tidegate.errors import StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 10_000
CONVERT_BYTES: Final = 1 << 30
"""A larger database is not rewritten at the start."""

_READERS: Final = 4


class StoreFullError(StoreError):
    """The database could not be written now: the disk is full or the file is locked. The same write may be repeated."""


def explain(error: BaseException, path: Path) -> StoreError:
    """The error of SQLite or SQLAlchemy as one for people; a full disk becomes :class:`StoreFullError`."""
    cause = getattr(error, "orig", None) or error
    name = getattr(cause, "sqlite_errorname", "") or ""
    # A file beside the database that cannot grow (the WAL's index, say) is an I/O error to SQLite.
    full = name.startswith("SQLITE_FULL") or name == "SQLITE_IOERR_WRITE" or "is full" in str(cause)
    full = full or (("SQLITE_IOERR" in name or "disk I/O error" in str(cause)) and _no_room(path))
    if full or name in ("SQLITE_BUSY", "SQLITE_LOCKED"):
        reason = "the disk is full" if name not in ("SQLITE_BUSY", "SQLITE_LOCKED") else "the database is locked"
        return StoreFullError(f"{path}: {reason} ({cause}); writing goes on by itself when there is room")
    if name == "SQLITE_NOTADB":
        return StoreError(f"{path} is not a Tidegate database; move it away or choose another --state-dir")
    return StoreError(f"{path}: {cause}")


def _no_room(path: Path) -> bool:
    try:
        status = os.statvfs(path.parent)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < 64 * 1024


def _connector(path: Path, mode: str) -> Callable[..., Coroutine[Any, Any, aiosqlite.Connection]]:
    # A URI is the only way to open read-only; quoting keeps '?' and '#' in a path from being options.
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"

    async def connect(*_args: Any, **_kwargs: Any) -> aiosqlite.Connection:
        # isolation_level None: transactions are begun by us (BEGIN IMMEDIATE), not guessed by the driver.
        connection = aiosqlite.connect(uri, uri=True, isolation_level=None)
        # The driver's thread must not keep a process alive that ends by an error before it could close its store.
        thread = getattr(connection, "_thread", None)
        if thread is not None:
            thread.daemon = True
        return await connection

    return connect


def _on_connect(engine: AsyncEngine, pragmas: tuple[str, ...]) -> None:
    @sa.event.listens_for(engine.sync_engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()


def writer_engine(path: Path) -> AsyncEngine:
    """The only engine that writes: one connection, so that SQLite never has to arbitrate."""
    engine = create_async_engine(
        "sqlite+aiosqlite://",
        async_creator=_connector(path, "rwc"),
        poolclass=sa.AsyncAdaptedQueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=60.0,
    )
    _on_connect(
        engine,
        (
            f"busy_timeout = {BUSY_TIMEOUT_MS}",
            "auto_vacuum = INCREMENTAL",  # of a new file; it must be said before anything is written
            "journal_mode = WAL",
            "synchronous = NORMAL",  # survives kill -9 always, power loss except for the last moments
            "cache_size = -32000",
            "temp_store = MEMORY",
            "wal_autocheckpoint = 4000",
            "journal_size_limit = 67108864",
        ),
    )

    @sa.event.listens_for(engine.sync_engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # IMMEDIATE: take the write lock at once rather than fail half-way at the first insert.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def reader_engine(path: Path) -> AsyncEngine:
    """An engine whose connections cannot write, whatever statement reaches them."""
    engine = create_async_engine(
        "sqlite+aiosqlite://",
        async_creator=_connector(path, "ro"),
        poolclass=sa.AsyncAdaptedQueuePool,
        pool_size=_READERS,
        max_overflow=_READERS,
        pool_timeout=60.0,
    )
    _on_connect(engine, (f"busy_timeout = {BUSY_TIMEOUT_MS}", "query_only = 1", "cache_size = -8000"))
    return engine


async def in_transaction(engine: AsyncEngine, work: Callable[[sqlite3.Connection], None]) -> None:
    """Run ``work`` in one transaction of the writer, in its thread: a batch is one hand-over, not one a statement.

    Raises:
        sqlite3.Error: what a statement raised; then nothing of the transaction is in the database.
    """

    def run(database: sqlite3.Connection) -> None:
        database.execute("BEGIN IMMEDIATE")
        try:
            work(database)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:  # some errors have ended it already
                database.execute("ROLLBACK")
            raise

    async with engine.connect() as connection:
        await in_its_thread(connection, run)


async def in_its_thread(connection: AsyncConnection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run ``work`` in the thread of a connection; the transaction is the caller's. Raises sqlite3.Error."""
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    # aiosqlite has no public way to run a function in the thread that its connection belongs to.
    result: T = await driver._execute(work, driver._conn)
    return result


async def outside_transaction(engine: AsyncEngine, sql: str) -> Sequence[tuple[Any, ...]]:
    """Execute a statement that no transaction may be around; returns its rows."""

    def run(database: sqlite3.Connection) -> Sequence[tuple[Any, ...]]:
        return database.execute(sql).fetchall()

    async with engine.connect() as connection:
        return await in_its_thread(connection, run)


async def rewrite(engine: AsyncEngine) -> None:
    """Rewrite the database without free pages, and so that later ones can be given back."""
    await outside_transaction(engine, "PRAGMA auto_vacuum = INCREMENTAL")
    await outside_transaction(engine, "VACUUM")


async def make_shrinkable(engine: AsyncEngine, path: Path, *, most_bytes: int = CONVERT_BYTES) -> bool:
    """Rewrite a database of an earlier version once, so that it can give free pages back; whether it can now.

    One that is large stays as it is: nobody wants to wait minutes for a start. What is deleted there makes room for
    what comes.
    """
    ((mode,),) = await outside_transaction(engine, "PRAGMA auto_vacuum")
    if mode == 2:
        return True
    size = path.stat().st_size  # noqa: ASYNC240 - one look, at the start
    if size > most_bytes:
        log.warning("%s (%d MB) does not shrink when runs are deleted; run: tidegate prune --compact", path, size >> 20)
        return False
    log.info("%s is rewritten once, so that it shrinks when runs are deleted", path)
    try:
        await rewrite(engine)
    except SQLITE_ERRORS as error:
        log.warning("%s could not be rewritten, and goes on as it is: %s", path, error)
        return False
    return True


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await it; when the caller is cancelled meanwhile, only after it is done."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


class WriterLock:
    """Holds ``<database>.lock`` while a process writes; the kernel releases it when the process dies.

    Raises:
        StoreError: another process holds it, or the directory cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}; is the state directory yours?") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise StoreError(
                f"{path} is being written by process {holder or '?'}; stop that one, or choose another --state-dir"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def prepare_file(path: Path) -> None:
    """Make the database file with mode 0600; SQLite gives its WAL the same mode.

    Raises:
        StoreError: the directory does not exist or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; choose another --state-dir") from None


SQLITE_ERRORS: Final = (sa.exc.DBAPIError, sqlite3.Error)
"""What a statement may raise when the file, the disk or a lock is to blame."""
