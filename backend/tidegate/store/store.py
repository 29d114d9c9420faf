"""The writer: runs, and batches of records in one transaction each."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tidegate.errors import StoreError
from tidegate.store import engines, migrations, schema
from tidegate.store.chunks import CODEC, Tail, pack
from tidegate.store.engines import SQLITE_ERRORS, StoreFullError, WriterLock, explain
from tidegate.store.model import Batch, CommittedBatch, NewRun, Run
from tidegate.store.reads import Reads
from tidegate.store.rows import RowBuilder, Rows
from tidegate.store.statements import insert_rows

_CHUNK_SQL: Final = (
    "INSERT INTO chunks (run, no, first_ord, n, first_t, last_t, raw_bytes, codec, data) VALUES (?,?,?,?,?,?,?,?,?) "
    "ON CONFLICT (run, no) DO UPDATE SET n = excluded.n, first_t = excluded.first_t, last_t = excluded.last_t, "
    "raw_bytes = excluded.raw_bytes, data = excluded.data"
)
_RUN_SQL: Final = "UPDATE runs SET last_ord = ?, last_t = ? WHERE no = ?"


class _Writing:
    """What the writer keeps in mind of one run: the open chunk and the row builder."""

    def __init__(self, tail: Tail, builder: RowBuilder) -> None:
        self.tail = tail
        self.builder = builder
        # Rows of a batch whose commit failed: the builder has counted its subjects already, so they are kept.
        self.pending: tuple[Batch, Rows] | None = None


def new_run_id(now_us: int) -> str:
    """A run id that sorts by time and is unique enough for people, for example ``20261130-2306-ab12`` (UTC)."""
    return time.strftime("%Y%m%d-%H%M", time.gmtime(now_us // 1_000_000)) + f"-{secrets.token_hex(2)}"


class Store:
    """An open database. Make one with :func:`tidegate.store.open_store`; all methods may raise StoreError."""

    def __init__(self, path: Path, writer: AsyncEngine | None, reader: AsyncEngine, lock: WriterLock | None) -> None:
        self.path: Final = path
        self.reads: Final = Reads(path, reader)
        self._writer = writer
        self._reader = reader
        self._lock = lock
        self._writing: dict[int, _Writing] = {}

    async def close(self) -> None:
        """Close all connections; the WAL is merged into the database."""
        # Readers first: only a writer can merge the WAL, and SQLite does it at the close of the last connection.
        await self._reader.dispose()
        if self._writer is not None:
            with contextlib.suppress(*SQLITE_ERRORS):
                async with self._writer.connect() as connection:
                    await connection.exec_driver_sql("PRAGMA optimize")
            await self._writer.dispose()
        if self._lock is not None:
            self._lock.release()

    def begin(self) -> contextlib.AbstractAsyncContextManager[AsyncConnection]:
        """A write transaction. Raises :class:`StoreError` when the store is open for reading only."""
        return self._begin()

    @contextlib.asynccontextmanager
    async def _begin(self) -> Any:
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading only")
        try:
            async with self._writer.begin() as connection:
                yield connection
        except SQLITE_ERRORS as error:
            raise explain(error, self.path) from error

    async def transaction(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run ``work`` in one write transaction, in the thread of the connection. Raises StoreError."""
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading only")
        try:
            await engines.to_its_end(engines.in_transaction(self._writer, work))
        except SQLITE_ERRORS as error:
            raise explain(error, self.path) from error

    async def checkpoint(self) -> None:
        """Merge the WAL into the database as far as readers allow. Raises StoreError."""
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading only")
        try:
            await engines.outside_transaction(self._writer, "PRAGMA wal_checkpoint(PASSIVE)")
        except SQLITE_ERRORS as error:
            raise explain(error, self.path) from error

    async def compact(self) -> int:
        """Rewrite the database without free pages, so that it can also give back later ones. Returns bytes saved.

        Raises:
            StoreError: there is no room for the rewriting, or another process reads the database.
        """
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading only")
        before = self.path.stat().st_size
        try:
            await engines.rewrite(self._writer)
            await engines.outside_transaction(self._writer, "PRAGMA wal_checkpoint(TRUNCATE)")
        except SQLITE_ERRORS as error:
            raise explain(error, self.path) from error
        return max(0, before - self.path.stat().st_size)

    def forget(self, run: Run) -> None:
        """Forget what is kept in mind of a run that was deleted."""
        self._writing.pop(run.no, None)
        self.reads.forget(run.id)

    # --- runs --------------------------------------------------------------------------------------------------

    async def create_run(self, new: NewRun) -> Run:
        """Begin a run. When its id is taken, a number is appended."""
        async with self.begin() as connection:
            taken = set((await connection.execute(sa.select(schema.runs.c.id))).scalars())
            run_id, count = new.id, 1
            while run_id in taken:
                count += 1
                run_id = f"{new.id}-{count}"
            values = {
                "id": run_id, "title": new.title, "source": new.source, "host": new.host, "boot_id": new.boot_id,
                "started_us": new.started_us, "clean": 0, "last_ord": 0,
            }  # fmt: skip
            result = await connection.execute(sa.insert(schema.runs).values(values))
            key = result.inserted_primary_key
        if key is None:
            raise StoreError(f"{self.path}: the new run has no number")
        return Run(
            no=key[0], id=run_id, title=new.title, source=new.source, host=new.host, boot_id=new.boot_id,
            started_us=new.started_us,
        )  # fmt: skip

    async def resume_or_create_live(self, new: NewRun) -> tuple[Run, bool]:
        """The run to write live records to, and whether it is resumed.

        The newest live run is resumed when it was not closed and the host has not been started anew since. All older
        live runs that nobody closed are closed as not clean, at the time of their last record.
        """
        runs = [run for run in await self.reads.runs() if run.source == "live" and run.ended_us is None]
        resumed: Run | None = None
        if runs and runs[0].boot_id == new.boot_id and new.boot_id:
            resumed = runs.pop(0)
        for run in runs:
            await self.end_run(run, run.last_t or run.started_us, clean=False)
        if resumed is not None:
            return resumed, True
        return await self.create_run(new), False

    async def end_run(self, run: Run, ended_us: int, *, clean: bool) -> None:
        """Mark the run as ended; nothing can be added to it afterwards."""
        async with self.begin() as connection:
            await connection.execute(
                sa.update(schema.runs).where(schema.runs.c.no == run.no).values(ended_us=ended_us, clean=int(clean))
            )
        run.ended_us, run.clean = ended_us, clean
        self._writing.pop(run.no, None)

    # --- records -----------------------------------------------------------------------------------------------

    async def commit(self, run: Run, batch: Batch) -> CommittedBatch:
        """Write the batch in one transaction: raw lines, derived rows, sources.

        After an error nothing of it is in the database, and the same batch object may be given again.

        Raises:
            StoreFullError: the disk is full or the file is locked; try again later.
            StoreError: the database is damaged, or the run has ended.
        """
        if run.ended_us is not None:
            raise StoreError(f"run {run.id} has ended")
        first_ord = run.last_ord + 1
        if not batch.records:
            return CommittedBatch(first_ord, [])
        writing = self._writing.get(run.no) or await self._open(run)
        if writing.pending is not None and writing.pending[0] is batch:
            rows = writing.pending[1]
        else:
            rows = writing.builder.build(first_ord, batch.records, batch.lines)
            writing.pending = (batch, rows)
        times = [record.t for record in batch.records]
        tail = writing.tail.extended(first_ord, batch.lines, min(times), max(times))
        last_ord = run.last_ord + len(batch)
        run_row = (last_ord, times[-1], run.no)

        async def write() -> None:
            try:
                await self._write(run.no, tail, rows, run_row)
            except (OverflowError, UnicodeEncodeError):
                rows.clamp()
                await self._write(run.no, tail, rows, run_row)
            writing.tail, writing.pending = tail, None
            run.last_ord, run.last_t = last_ord, times[-1]

        # What is committed must be known to be, also when nobody waits for it any more.
        await engines.to_its_end(write())
        return CommittedBatch(first_ord, list(enumerate(batch.records, first_ord)))

    async def _write(self, run_no: int, tail: Tail, rows: Rows, run_row: tuple[Any, ...]) -> None:
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading only")

        def transaction(database: sqlite3.Connection) -> None:
            chunk = (
                run_no, tail.no, tail.first_ord, len(tail.lines), tail.first_t, tail.last_t, tail.raw_bytes, CODEC,
                pack(tail.lines),
            )  # fmt: skip
            database.execute(_CHUNK_SQL, chunk)
            insert_rows(database, rows)
            database.execute(_RUN_SQL, run_row)

        try:
            await engines.in_transaction(self._writer, transaction)
        except SQLITE_ERRORS as error:
            raise explain(error, self.path) from error

    async def _open(self, run: Run) -> _Writing:
        """Learn from the database what is there of the run."""
        chunks, subjects, sessions = schema.chunks.c, schema.subjects.c, schema.sessions.c
        async with self.begin() as connection:
            last_no = (await connection.execute(sa.select(sa.func.max(chunks.no)).where(chunks.run == run.no))).scalar()
            known = await connection.execute(
                sa.select(subjects.kind, subjects.session, subjects.call, subjects.host, subjects.no).where(
                    subjects.run == run.no
                )
            )
            pairs = [
                (("host", host, None) if kind == "host" and session is None else (kind, session, call), no)
                for kind, session, call, host, no in known
            ]
            ids = list((await connection.execute(sa.select(sessions.id).where(sessions.run == run.no))).scalars())
        writing = _Writing(Tail(no=last_no or 0), RowBuilder(run.no, pairs, ids))
        self._writing[run.no] = writing
        return writing


def _check_readable(path: Path) -> None:
    try:
        exists = path.is_file()
    except PermissionError:
        exists = True
    if not exists:
        raise StoreError(f"{path} does not exist; has `tidegate serve` run with this --state-dir?")
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path} cannot be read by this user; try it as root, or as the user of `tidegate serve`")


async def open_store(path: Path, *, read_only: bool = False) -> Store:
    """Open the database, making and migrating it when it is to be written.

    Raises:
        StoreError: no such file (read-only), not ours, of a newer version, damaged, or written by another process.
    """
    if read_only:
        _check_readable(path)
    lock: WriterLock | None = None
    writer: AsyncEngine | None = None
    if not read_only:
        engines.prepare_file(path)
        lock = WriterLock(path)
        writer = engines.writer_engine(path)
    reader = engines.reader_engine(path)
    try:
        if writer is not None:
            async with writer.begin() as connection:
                if not await connection.run_sync(migrations.check, path):
                    await connection.run_sync(migrations.upgrade)
            await engines.make_shrinkable(writer, path)
        else:
            async with reader.connect() as connection:
                if not await connection.run_sync(migrations.check, path):
                    raise StoreError(f"{path} has an older schema; open it once with `tidegate serve`")
    except BaseException as error:
        if writer is not None:
            await writer.dispose()
        await reader.dispose()
        if lock is not None:
            lock.release()
        if isinstance(error, SQLITE_ERRORS):
            raise explain(error, path) from error
        raise
    return Store(path, writer, reader, lock)


__all__ = ["Store", "StoreFullError", "new_run_id", "open_store"]
