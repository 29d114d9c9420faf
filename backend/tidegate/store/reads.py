"""Everything that is read from the store. No read holds a transaction across the yield to its caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import aiosqlite
import msgspec
import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.ext.asyncio import AsyncEngine

from tidegate.errors import NotFoundError, StoreError
from tidegate.store import schema
from tidegate.store.chunks import lines_of_session, unpack
from tidegate.store.engines import SQLITE_ERRORS, explain
from tidegate.store.inputs import InputReads
from tidegate.store.marks import MarkReads
from tidegate.store.model import EventRow, Run, SessionRow, Sizes, SourceRow
from tidegate.store.reads_engine import EngineSampleReads
from tidegate.store.reads_kv import DecisionReads
from tidegate.store.reads_session_kv import SessionKvReads
from tidegate.store.rows import AnyLine, decode_stored

ENVELOPE: Final = frozenset({"v", "seq", "src", "t", "type", "host", "session", "turn", "call", "req"})
_CHUNKS_AT_ONCE: Final = 16
_FIRST_ORD: Final = "SELECT first_ord FROM chunks WHERE run = ? AND no >= ? ORDER BY no LIMIT 1"
_ROWS_AT_ONCE: Final = 4096
_EVENT: Final[dict[str, sa.ColumnClause[Any]]] = {
    name: sa.column(name, schema.events.c[name].type) for name in ("ord", "t", "type", "session", "call", "line")
}


class Reads(DecisionReads, SessionKvReads, EngineSampleReads, MarkReads, InputReads):
    """Queries on a read-only connection. All raise StoreError when the database cannot be read."""

    def __init__(self, path: Path, engine: AsyncEngine) -> None:
        self._path = path
        self._engine = engine
        self._numbers: dict[str, int] = {}

    async def all(self, statement: sa.Executable) -> Sequence[Any]:
        """The rows of a statement."""
        try:
            async with self._engine.connect() as connection:
                return (await connection.execute(statement)).all()
        except SQLITE_ERRORS as error:
            raise explain(error, self._path) from error

    async def driver_all(self, sql: str, parameters: tuple[Any, ...] | dict[str, Any]) -> Sequence[tuple[Any, ...]]:
        """The rows of a statement as the driver gives them."""
        # Past SQLAlchemy's row objects: samples come by the hundred thousand.
        try:
            async with self._engine.connect() as connection:
                raw = await connection.get_raw_connection()
                driver: aiosqlite.Connection = raw.driver_connection  # type: ignore[assignment]
                return cast("Sequence[tuple[Any, ...]]", await driver.execute_fetchall(sql, parameters))
        except SQLITE_ERRORS as error:
            raise explain(error, self._path) from error

    async def _driver_array(self, sql: str, parameters: tuple[Any, ...]) -> NDArray[np.int64] | None:
        # Block by block: as Python objects the samples of a long run would take ten times the memory of an array, and
        # to convert all at once would hold up the event loop, whichever thread did it.
        blocks: list[NDArray[np.int64]] = []
        try:
            async with self._engine.connect() as connection:
                raw = await connection.get_raw_connection()
                driver: aiosqlite.Connection = raw.driver_connection  # type: ignore[assignment]
                async with driver.execute(sql, parameters) as cursor:
                    while rows := cast("list[tuple[Any, ...]]", await cursor.fetchmany(_ROWS_AT_ONCE)):
                        blocks.append(np.array(rows, dtype=np.int64))
        except SQLITE_ERRORS as error:
            raise explain(error, self._path) from error
        return np.concatenate(blocks) if blocks else None

    async def number_of(self, run: str) -> int:
        """The key of a run. Raises :class:`NotFoundError`."""
        no = self._numbers.get(run)
        if no is None:
            found = await self.all(sa.select(schema.runs.c.no).where(schema.runs.c.id == run))
            if not found:
                raise NotFoundError(f"no run {run!r}; `tidegate runs` lists those that there are")
            no = self._numbers[run] = int(found[0][0])
        return no

    def forget(self, run: str) -> None:
        """Forget the key of a run: it was deleted."""
        self._numbers.pop(run, None)

    # --- runs, sources, sessions ---------------------------------------------------------------------------------

    async def runs(self) -> list[Run]:
        """All runs, the newest first."""
        table = schema.runs
        found = await self.all(sa.select(table).order_by(table.c.started_us.desc(), table.c.no.desc()))
        return [_run(row) for row in found]

    async def run(self, run: str) -> Run:
        """One run by its id; ``live`` is the newest one that is being written or was written live.

        Raises:
            NotFoundError: there is none.
        """
        runs = await self.runs()
        for candidate in runs:
            if candidate.id == run or (run == "live" and candidate.source == "live"):
                return candidate
        if run == "live":
            raise NotFoundError("there is no live run yet; start one with: tidegate serve")
        raise NotFoundError(f"no run {run!r}; `tidegate runs` lists those that there are")

    async def sources(self, run: str) -> list[SourceRow]:
        """The senders of a run, by name."""
        table = schema.sources
        found = await self.all(
            sa.select(table.c.src, table.c.last_seq, table.c.last_t, table.c.records)
            .where(table.c.run == await self.number_of(run))
            .order_by(table.c.src)
        )
        return [SourceRow(*row) for row in found]

    async def last_seqs(self) -> dict[str, tuple[int, int]]:
        """Over all live runs: src to its highest committed seq, and the time of its last record.

        The time is that of the run with the highest seq.
        """
        table = schema.sources
        live = sa.select(schema.runs.c.no).where(schema.runs.c.source == "live")
        found = await self.all(
            sa.select(table.c.src, table.c.last_seq, table.c.last_t)
            .where(table.c.run.in_(live))
            .order_by(table.c.last_seq)
        )
        return {src: (seq, last_t) for src, seq, last_t in found}

    async def sessions(self, *, run: str | None = None, limit: int = 1000) -> list[SessionRow]:
        """Sessions of one run or of all, the newest first."""
        table, runs = schema.sessions, schema.runs
        started = sa.func.coalesce(table.c.started_us, table.c.first_us).label("started_us")
        # An end that lies before the last start belongs to an earlier life of the same id.
        over = sa.and_(table.c.end_ord.is_not(None), sa.func.coalesce(table.c.start_ord, 0) < table.c.end_ord)
        statement = (
            sa.select(
                runs.c.id, table.c.id, table.c.title, table.c.agent, table.c.priority, table.c.host,
                table.c.budget_bytes, started, sa.case((over, table.c.ended_us)), sa.case((over, table.c.end_reason)),
                sa.case((over, table.c.exit_code)), sa.case((over, table.c.signal)),
            )
            .join_from(table, runs, table.c.run == runs.c.no)
            .order_by(started.desc(), table.c.first_ord.desc())
            .limit(limit)
        )  # fmt: skip
        if run is not None:
            statement = statement.where(table.c.run == await self.number_of(run))
        return [SessionRow(*row) for row in await self.all(statement)]

    # --- the raw log -----------------------------------------------------------------------------------------------

    async def chunks(
        self, run: str, *, from_ord: int = 1, to_ord: int | None = None
    ) -> AsyncIterator[tuple[int, list[bytes]]]:
        """The chunks that hold records with ordinals in ``from_ord..to_ord``: (ordinal of the first line, lines).

        ``to_ord`` is by default the last record that the run has now. A chunk may hold more than was asked for.

        Raises:
            StoreError: a chunk is damaged; the message says which.
        """
        table = schema.chunks
        no = await self.number_of(run)
        if to_ord is None:
            # The last chunk of a live run grows until the next one begins. Without this end, lines that it got after it
            # was read would be missing in front of chunks that are newer than the reading.
            ((to_ord,),) = await self.all(sa.select(schema.runs.c.last_ord).where(schema.runs.c.no == no))
        last = await self.chunk_of(no, from_ord) - 1
        while True:
            rows = await self.all(
                sa.select(table.c.no, table.c.first_ord, table.c.codec, table.c.data)
                .where(table.c.run == no, table.c.no > last, table.c.first_ord <= to_ord)
                .order_by(table.c.no)
                .limit(_CHUNKS_AT_ONCE)
            )
            for chunk_no, first_ord, codec, data in rows:
                try:
                    lines = unpack(codec, data)
                except ValueError as error:
                    raise StoreError(f"{self._path}: run {run}, chunk {chunk_no}: {error}") from None
                if first_ord + len(lines) > from_ord:
                    yield first_ord, lines
                last = chunk_no
            if len(rows) < _CHUNKS_AT_ONCE:
                return

    async def chunk_of(self, run_no: int, ord_: int) -> int:
        """Number of the chunk that holds a record; of the first, or the last, for an ordinal that there is not."""
        ((first, last),) = await self.driver_all("SELECT MIN(no), MAX(no) FROM chunks WHERE run = ?", (run_no,))
        low, high = first or 0, last or 0
        # Both numbers grow together, and only the chunk's is a key.
        while low < high:
            middle = (low + high + 1) // 2
            found = await self.driver_all(_FIRST_ORD, (run_no, middle))
            low, high = (middle, high) if found and found[0][0] <= ord_ else (low, middle - 1)
        return low

    async def records(
        self, run: str, *, from_ord: int = 1, to_ord: int | None = None
    ) -> AsyncIterator[list[tuple[int, AnyLine]]]:
        """All records with their ordinals, some thousands at a time, in order."""
        async for first_ord, lines in self.chunks(run, from_ord=from_ord, to_ord=to_ord):
            batch = [
                (ordinal, decode_stored(line))
                for ordinal, line in enumerate(lines, first_ord)
                if ordinal >= from_ord and (to_ord is None or ordinal <= to_ord)
            ]
            if batch:
                yield batch

    async def raw_lines(self, run: str, *, session: str | None = None) -> AsyncIterator[bytes]:
        """The lines of a run as they came, without newlines; with ``session`` only those that name that session."""
        async for _, lines in self.chunks(run):
            for line in lines if session is None else lines_of_session(lines, session):
                yield line

    # --- events ----------------------------------------------------------------------------------------------------

    async def events(
        self,
        run: str,
        *,
        session: str | None = None,
        call: str | None = None,
        types: Iterable[str] | None = None,
        before_ord: int | None = None,
        limit: int = 200,
    ) -> list[EventRow]:
        """Records that are no samples, the newest first."""
        chosen = None if types is None else list(types)
        only_losses = chosen == ["loss"]
        # SQLite knows nothing of the table's size, and left alone would go through all events of the run.
        index = (
            " INDEXED BY events_loss" if only_losses else " INDEXED BY events_session" if session is not None else ""
        )
        statement = (
            sa.select(*_EVENT.values())
            .select_from(sa.text(f"events{index}"))
            .where(sa.column("run") == await self.number_of(run))
        )
        if only_losses:
            # A literal: of a bound value SQLite could not tell that the partial index holds what is asked for.
            statement = statement.where(_EVENT["type"] == sa.literal_column("'loss'"))
        elif chosen is not None:
            statement = statement.where(_EVENT["type"].in_(chosen))
        if session is not None:
            statement = statement.where(_EVENT["session"] == session)
        if call is not None:
            statement = statement.where(_EVENT["call"] == call)
        if before_ord is not None:
            statement = statement.where(_EVENT["ord"] < before_ord)
        rows = await self.all(statement.order_by(_EVENT["ord"].desc()).limit(limit))
        return [
            EventRow(ord=ord_, t_us=t, type=type_, session=session_, call=call_, body=_body(line))
            for ord_, t, type_, session_, call_, line in rows
        ]

    # --- sizes -----------------------------------------------------------------------------------------------------

    async def sizes(self) -> Sizes:
        """Bytes on disk; records and chunks of all runs."""
        ((rows,),) = await self.all(sa.select(sa.func.coalesce(sa.func.sum(schema.runs.c.last_ord), 0)))
        ((chunks,),) = await self.all(sa.select(sa.func.count()).select_from(schema.chunks))
        wal = self._path.with_name(self._path.name + "-wal")
        return Sizes(_size(self._path), _size(wal), int(rows), int(chunks))


def _body(line: bytes) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(line)
    return {key: value for key, value in body.items() if key not in ENVELOPE}


def _run(row: Any) -> Run:
    return Run(
        no=row.no, id=row.id, title=row.title, source=row.source, host=row.host, boot_id=row.boot_id,
        started_us=row.started_us, ended_us=row.ended_us, clean=bool(row.clean), last_ord=row.last_ord,
        last_t=row.last_t,
    )  # fmt: skip


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
