"""Making room: which runs go, taking one out in steps that hold nobody up, and giving its pages back to the disk."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import sqlalchemy as sa

from tidegate.errors import UsageError
from tidegate.store import schema
from tidegate.store.model import Run
from tidegate.store.store import Store

log = logging.getLogger(__name__)

DAY_US: Final = 86_400_000_000

_ROWS_A_STEP: Final = 4000
_BLOBS_A_STEP: Final = 100
_PAGES_A_STEP: Final = 1000
_MIN_PAUSE_S: Final = 0.002


class Sized(Protocol):
    """A run in a list, as far as it matters here."""

    @property
    def started_us(self) -> int | None: ...
    @property
    def ended_us(self) -> int | None: ...
    @property
    def last_t_us(self) -> int | None: ...
    @property
    def imported_us(self) -> int | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def deletable(self) -> bool: ...
    @property
    def writing(self) -> bool: ...
    @property
    def damaged(self) -> bool: ...


SizedT = TypeVar("SizedT", bound=Sized)


@dataclass(frozen=True, slots=True)
class Limits:
    """What is kept at most; None: without that limit."""

    max_age_days: float | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_age_days is not None and not 0 <= self.max_age_days <= 36_500:
            raise UsageError(f"an age of {self.max_age_days:g} days is not between 0 and 36500")
        if self.max_bytes is not None and self.max_bytes < 0:
            raise UsageError(f"a size of {self.max_bytes} bytes is none")

    def __bool__(self) -> bool:
        return self.max_age_days is not None or self.max_bytes is not None


def over(rows: Iterable[SizedT], limits: Limits, *, now_us: int) -> list[SizedT]:
    """The runs that go, the oldest first: those that ended too long ago, then as many as take too much room.

    The age of an imported run counts from its import: who imports an old recording wants to look at it now.

    A run that is being written or shown never goes, though its size counts; neither does a file that is no recording.
    """
    known = [row for row in rows if not row.damaged]
    total = sum(row.bytes for row in known)
    gone: list[SizedT] = []
    for row in sorted((row for row in known if row.deletable and not row.writing), key=kept_from_us):
        too_old = limits.max_age_days is not None and kept_from_us(row) < now_us - limits.max_age_days * DAY_US
        too_much = limits.max_bytes is not None and total > limits.max_bytes
        if too_old or too_much:
            gone.append(row)
            total -= row.bytes
    return gone


def kept_from_us(row: Sized) -> int:
    """Since when a run has been kept as it is: its end, or its import if that was later. Microseconds UTC."""
    ended_us = next((t for t in (row.ended_us, row.last_t_us, row.started_us) if t is not None), 0)
    return max(ended_us, row.imported_us or 0)


async def delete_run(store: Store, run: Run) -> None:
    """Take a run out of a database, a few thousand rows at a time, so that records go on being committed between.

    The raw log goes last: what was interrupted can be done again, or its tables be rebuilt.

    Raises:
        StoreError: the database cannot be written.
    """
    tables = [table for table in schema.metadata.sorted_tables if "run" in table.c and table is not schema.chunks]
    for table in (*tables, schema.chunks):
        await _empty(store, table, run.no)
    async with store.begin() as connection:
        # Rollups may have been built meanwhile; from here on they are not, for there is no such run.
        for table in (schema.rollups, schema.rollup_states):
            await connection.execute(sa.delete(table).where(table.c.run == run.no))
        await connection.execute(sa.delete(schema.runs).where(schema.runs.c.no == run.no))
    store.forget(run)


async def _empty(store: Store, table: sa.Table, run_no: int) -> None:
    keys = ", ".join(column.name for column in table.primary_key.columns)
    blobs = any(isinstance(column.type, sa.LargeBinary) for column in table.columns) and table is not schema.events
    limit = _BLOBS_A_STEP if blobs else _ROWS_A_STEP
    sql = (
        f"DELETE FROM {table.name} WHERE ({keys}) IN "  # noqa: S608 - names of our own schema
        f"(SELECT {keys} FROM {table.name} WHERE run = ? LIMIT {limit})"
    )
    while True:
        started = time.perf_counter()
        deleted = 0

        def step(database: sqlite3.Connection) -> None:
            nonlocal deleted
            deleted = database.execute(sql, (run_no,)).rowcount

        await store.transaction(step)
        if deleted < limit:
            return
        # As long a pause as it took: the ingest is to get its turn.
        await asyncio.sleep(max(_MIN_PAUSE_S, time.perf_counter() - started))


async def give_back(store: Store) -> int:
    """Give free pages back to the disk, some at a time. Returns bytes given back.

    Raises:
        StoreError: the database cannot be written.
    """
    ((page_bytes,),) = await store.reads.driver_all("PRAGMA page_size", ())
    freed = 0
    while True:
        started = time.perf_counter()
        before = after = 0

        def step(database: sqlite3.Connection) -> None:
            nonlocal before, after
            before = _pages(database)
            database.execute(f"PRAGMA incremental_vacuum({_PAGES_A_STEP})").fetchall()
            after = _pages(database)

        await store.transaction(step)
        freed += (before - after) * page_bytes
        if after >= before:
            break
        await asyncio.sleep(max(_MIN_PAUSE_S, time.perf_counter() - started))
    await store.checkpoint()
    return int(freed)


def _pages(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA page_count").fetchone()[0])
