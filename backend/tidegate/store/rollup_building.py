"""Building rollups: one pass over what is new of a run, and over what is told anew."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.analysis.columns import HostColumns
from tidegate.analysis.inputs import SessionInput
from tidegate.analysis.picture import Picture, host_picture, joined, part
from tidegate.errors import StoreError
from tidegate.store import blocks, schema
from tidegate.store.inputs import Alive
from tidegate.store.model import Run
from tidegate.store.rollup_pieces import (
    GRAIN_US,
    Fine,
    fine_piece,
    finest,
    minute_of,
    reach_us,
    resolutions,
    with_silences,
)
from tidegate.store.rollup_spans import alive_at, earliest, first_us, next_us
from tidegate.store.rollup_states import HOST, RUN, SESSION, Known, Noted, encode, known_states
from tidegate.store.store import Store

_PIECE_US: Final = 6 * 3600 * 1_000_000

_STATE_SQL: Final = (
    "INSERT INTO rollup_states (run, kind, name, until_us, data) VALUES (?,?,?,?,?) ON CONFLICT (run, kind, name) "
    "DO UPDATE SET until_us = excluded.until_us, data = excluded.data"
)


class Building:
    """One pass over a run."""

    def __init__(self, store: Store, run: Run, known: Known | None, until_us: int, last_ord: int) -> None:
        self._store, self._run, self._known = store, run, known
        self._until = until_us
        self._last_ord = last_ord

    async def all(self) -> None:
        """Build all that is missing. Raises DamagedRollupError, StoreError."""
        reads, run, known = self._store.reads, self._run, self._known
        newest = (await reads.driver_all("SELECT MAX(no) FROM subjects WHERE run = ?", (run.no,)))[0][0] or 0
        begin: int | None = None
        late: dict[str | None, int] = {}
        if known is not None:
            begin = minute_of(known.until_us) - GRAIN_US
            late = await earliest(self._store, run, after_ord=known.noted.ord, before_us=begin)
        await self._hosts(None if begin is None else minute_of(late.pop(None, begin + GRAIN_US)) - GRAIN_US)
        states = await known_states(self._store, run, SESSION)
        # One of which nothing but samples came has no row of its own.
        names = [
            name
            for (name,) in await reads.driver_all(
                "SELECT id FROM sessions WHERE run = ?1 UNION SELECT session FROM subjects INDEXED BY subjects_session "
                "WHERE run = ?1 AND session IS NOT NULL",
                (run.no,),
            )
        ]
        if known is None or begin is None:
            for name in names:
                await self._from_the_start(name)
        else:
            touched = await self._touched(known)
            for name in names:
                if name not in states:
                    await self._from_the_start(name)
            told_late = {name: min(late.get(name, begin), touched.get(name, begin)) for name in states}
            again = {name: since for name, since in told_late.items() if since < begin}
            for name, since in again.items():
                # What came in time may have a window that reaches further back than all that came late.
                data = (await reads.session_inputs(run, [name], begin, self._until))[name]
                earlier = min(since, reach_us(data, begin))
                await self._session(name, states[name], minute_of(max(earlier, 0)) - GRAIN_US)
            changed = dict.fromkeys([*await self._changed(known, states), *touched])
            rest = [name for name in changed if name in states and name not in again]
            for name in rest:
                if not states[name].noted.subjects:  # it was over, and something is told of it once more
                    await self._session(name, states[name], begin)
            await self._together([name for name in rest if states[name].noted.subjects], known, states, begin)
        await self._note(RUN, "", Noted(ord=self._last_ord, newest=newest))

    async def _touched(self, known: Known) -> dict[str, int]:
        """Sessions with calls that were told since: from when on their charts may look different."""
        ordinal = known.noted.ord
        rows = await self._store.reads.driver_all(
            "SELECT session, MIN(CASE WHEN start_ord > ? OR lost = 1 THEN MIN(COALESCE(started_us, ended_us), "
            "COALESCE(ended_us, started_us)) ELSE ended_us END) FROM calls WHERE run = ? "
            "AND (start_ord > ? OR end_ord > ?) GROUP BY session",
            (ordinal, self._run.no, ordinal, ordinal),
        )
        return {session: since for session, since in rows if since is not None}

    async def _changed(self, known: Known, states: dict[str, Known]) -> list[str]:
        """Sessions that may have got samples since."""
        rows = await self._store.reads.driver_all(
            "SELECT DISTINCT session FROM subjects WHERE run = ? AND no > ? AND session IS NOT NULL",
            (self._run.no, known.noted.newest),
        )
        return [*(name for name, state in states.items() if state.noted.subjects), *(name for (name,) in rows)]

    async def _from_the_start(self, name: str) -> None:
        first = await first_us(self._store, self._run, name)
        if first is not None:
            await self._session(name, None, minute_of(first) - GRAIN_US)

    async def _session(self, name: str, state: Known | None, begin: int) -> None:
        """Build one session from ``begin`` on, some hours at a time."""
        pieces: list[Fine] = []
        last: SessionInput | None = None
        noted = Noted() if state is None else state.noted
        at = begin
        while at < self._until:
            end = min(at + _PIECE_US, self._until)
            data = (await self._store.reads.session_inputs(self._run, [name], at, end))[name]
            pieces.append(await asyncio.to_thread(fine_piece, data, at, end))
            noted, last = with_silences(noted, data, at, end), data
            quiet = not pieces[-1][0].changes_after(at)
            at = await self._after(name, end) if quiet else end
        noted.subjects = await alive_at(self._store, self._run, name, self._until)
        if last is None:  # it begins later; but that its subjects are there must be known
            await self._note(SESSION, name, noted)
        else:
            await self._write(SESSION, name, pieces, begin, noted)

    async def _after(self, name: str, end: int) -> int:
        """Where to go on after a piece in which nothing was."""
        later = await next_us(self._store, self._run, name, end)
        return self._until if later is None else max(end, minute_of(later) - GRAIN_US)

    async def _together(self, names: list[str], known: Known, states: dict[str, Known], begin: int) -> None:
        """Build the last minutes of many sessions."""
        if not names or begin >= self._until:
            return
        alive = {name: Alive(states[name].noted.subjects, known.noted.newest) for name in names}
        inputs = await self._store.reads.session_inputs(self._run, names, begin, self._until, alive=alive)
        for name, data in inputs.items():
            if (earlier := reach_us(data, begin)) < begin:
                await self._session(name, states[name], minute_of(earlier) - GRAIN_US)
                continue
            noted = with_silences(states[name].noted, data, begin, self._until)
            noted.subjects = await alive_at(self._store, self._run, name, self._until)
            fine = await asyncio.to_thread(fine_piece, data, begin, self._until)
            await self._write(SESSION, name, [fine], begin, noted)

    async def _hosts(self, begin: int | None) -> None:
        reads = self._store.reads
        if begin is None:
            first = await reads.driver_all("SELECT MIN(t) FROM host_samples WHERE run = ?", (self._run.no,))
            if first[0][0] is None:
                return
            begin = minute_of(first[0][0]) - GRAIN_US
        pieces: list[Fine] = []
        at = begin
        while at < self._until:
            end = min(at + _PIECE_US, self._until)
            columns = await reads.host_points(self._run.id, at, end, after=True)
            pieces.append(finest(await asyncio.to_thread(host_picture, columns), at, end))
            quiet = not pieces[-1][0].changes_after(at)
            at = max(end, minute_of(_next_window_us(columns, end, self._until))) if quiet else end
        if pieces:
            await self._write(HOST, "", pieces, begin, Noted())

    # --- writing -------------------------------------------------------------------------------------------------

    async def _write(self, kind: str, name: str, pieces: list[Fine], begin: int, noted: Noted) -> None:
        """Replace what there is from ``begin`` on."""
        made = await asyncio.to_thread(resolutions, pieces)
        rows: list[tuple[Any, ...]] = []
        for bucket_us, (picture, stats) in made.items():
            head = await self._head(kind, name, bucket_us, begin)
            if head is not None:
                picture = joined([head[0], picture])
                stats = blocks.joined_stats([head[1], stats])
            rows += await asyncio.to_thread(self._rows, kind, name, bucket_us, picture, stats)
        table = schema.rollups
        async with self._store.begin() as connection:
            await self._must_exist(connection)
            for bucket_us in made:
                first = begin // (bucket_us * blocks.BLOCK_BUCKETS)
                await connection.execute(
                    sa.delete(table).where(
                        table.c.run == self._run.no, table.c.kind == kind, table.c.name == name,
                        table.c.bucket_us == bucket_us, table.c.block >= first,
                    )
                )  # fmt: skip
            if rows:
                await connection.exec_driver_sql(
                    "INSERT INTO rollups (run, kind, name, bucket_us, block, stats, total, layers, shares) "
                    "VALUES (?,?,?,?,?,?,?,?,?)",
                    rows,
                )
            await connection.exec_driver_sql(_STATE_SQL, self._state(kind, name, noted))

    async def _note(self, kind: str, name: str, noted: Noted) -> None:
        async with self._store.begin() as connection:
            await self._must_exist(connection)
            await connection.exec_driver_sql(_STATE_SQL, self._state(kind, name, noted))

    async def _must_exist(self, connection: AsyncConnection) -> None:
        runs = schema.runs.c
        found = await connection.execute(sa.select(runs.id).where(runs.no == self._run.no))
        if found.scalar() != self._run.id:
            raise StoreError(f"run {self._run.id} was deleted")

    def _state(self, kind: str, name: str, noted: Noted) -> tuple[Any, ...]:
        return (self._run.no, kind, name, self._until, encode(noted))

    def _rows(
        self, kind: str, name: str, bucket_us: int, picture: Picture, stats: blocks.Stats
    ) -> list[tuple[Any, ...]]:
        return [
            (self._run.no, kind, name, bucket_us, one.block, one.stats, one.total, one.layers, one.shares)
            for one in blocks.blocks(picture, stats, bucket_us)
        ]

    async def _head(self, kind: str, name: str, bucket_us: int, begin: int) -> tuple[Picture, blocks.Stats] | None:
        """What the block around ``begin`` holds of the time before it."""
        table = schema.rollups.c
        rows = await self._store.reads.all(
            sa.select(table.total, table.layers, table.shares, table.stats).where(
                table.run == self._run.no, table.kind == kind, table.name == name, table.bucket_us == bucket_us,
                table.block == begin // (bucket_us * blocks.BLOCK_BUCKETS),
            )
        )  # fmt: skip
        if not rows:
            return None
        total, layers, shares, stats = rows[0]
        picture = part(blocks.picture_of(total, layers, shares), None, begin)
        return picture, blocks.stats_before(blocks.stats_of(stats), begin)


def _next_window_us(columns: HostColumns, at: int, none: int) -> int:
    """When the first window behind ``at`` begins; where it began before, when it ends."""
    t_us = int(columns.t_us[-1]) if len(columns.t_us) else -1
    if t_us < at:
        return none
    begins_us = t_us - max(0, int(columns.window_us[-1]))
    return begins_us if begins_us >= at else t_us
