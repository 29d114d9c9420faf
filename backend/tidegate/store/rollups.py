"""Rollups at 1, 10 and 60 seconds: built from the samples, for finished spans; read back as pictures.

A run's rollups go up to an instant, and each of its sessions may be ahead of that. What is later is read from the
samples. Records that come late, and calls that are told again, make the rollups be built anew from there; both are
found by the ordinal up to which the run was looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.analysis.decimate import BUCKETS_US
from tidegate.analysis.inputs import SessionInput
from tidegate.analysis.intervals import MIN_GAP_US, usual_distance_us
from tidegate.analysis.layers import HOLD_US
from tidegate.analysis.picture import Picture, host_picture, joined, part, reduced, session_picture
from tidegate.errors import StoreError
from tidegate.store import blocks, schema
from tidegate.store.inputs import Alive
from tidegate.store.model import Run
from tidegate.store.store import Store

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
"""How often the rollups of the run that is being written are brought up to date."""

LAG_US: Final = 10_000_000
"""How much later than a finished span the last record must be: by then the next sample of each subject is there."""

_GRAIN_US: Final = 60_000_000
_PIECE_US: Final = 6 * 3600 * 1_000_000
_KEEP_ALIVE_US: Final = 600_000_000

RUN: Final = "run"
HOST: Final = "host"
SESSION: Final = "session"


class Noted(msgspec.Struct, omit_defaults=True):
    """What is noted of a run (``ord``: looked at up to it; ``newest``: greatest subject by then), or a session.

    Attributes:
        subjects: those that may still be sampled after ``until_us - 10 min``.
        usual_us: usual distance of two samples.
        last_us: time of the last sample.
        ended_us: end of the session.
        silences: distances of samples above :data:`~tidegate.analysis.intervals.MIN_GAP_US`, as their two ends.
    """

    ord: int = 0
    newest: int = 0
    subjects: list[int] = []
    usual_us: float | None = None
    last_us: int | None = None
    ended_us: int | None = None
    silences: list[int] = []


_noted: Final = msgspec.msgpack.Decoder(Noted)
_encode: Final = msgspec.msgpack.Encoder().encode


_Fine: TypeAlias = tuple[Picture, blocks.Stats]


@dataclass(frozen=True, slots=True)
class Known:
    """A row of ``rollup_states``."""

    until_us: int
    noted: Noted


async def known_states(store: Store, run: Run, kind: str, names: Sequence[str] | None = None) -> dict[str, Known]:
    """What is noted, by name."""
    table = schema.rollup_states.c
    statement = sa.select(table.name, table.until_us, table.data).where(table.run == run.no, table.kind == kind)
    if names is not None and len(names) <= 500:
        statement = statement.where(table.name.in_(names))
    return {name: Known(until, _noted.decode(data)) for name, until, data in await store.reads.all(statement)}


async def drop_rollups(store: Store, run: Run) -> None:
    """Remove the rollups of a run; charts are then drawn from its samples."""
    async with store.begin() as connection:
        for table in (schema.rollups, schema.rollup_states):
            await connection.execute(sa.delete(table).where(table.c.run == run.no))


async def keep_rollups(store: Store, run: Run, *, every_s: float = EVERY_S) -> None:
    """Keep the rollups of a run that is being written up to date, until cancelled; first those of runs before it."""
    await _build_or_say(store, run)
    try:
        past = [one for one in await store.reads.runs() if one.no != run.no and one.ended_us is not None]
    except StoreError as error:
        log.warning("rollups: %s", error)
        past = []
    for one in past:  # what was left to do when the backend ended, or all of a run of an earlier version
        await _build_or_say(store, one)
    while True:
        await asyncio.sleep(every_s)
        await _build_or_say(store, run)


async def _build_or_say(store: Store, run: Run) -> None:
    try:
        await build_rollups(store, run)
    except StoreError as error:
        log.warning("rollups: %s", error)
    except Exception:
        # Charts are then drawn from the samples: slower, but the same. The records must go on being stored.
        log.exception("rollups of %s could not be built", run.id)


async def build_rollups(store: Store, run: Run, *, until_us: int | None = None) -> int | None:
    """Build what is missing of a run's rollups.

    Args:
        store: open for writing.
        run: it; of one that has ended, all is built.
        until_us: build up to here at most, rounded down to a minute.

    Returns:
        the instant up to which there are rollups now; None when there is nothing to build yet.

    Raises:
        StoreError: the database cannot be read or written; what is built by then stays, and the next call goes on.
    """
    last_ord, last_t = run.last_ord, run.last_t
    if last_t is None:
        return None
    # Two minutes behind the end: what processes left behind hold is given up after it.
    until = last_t - LAG_US if run.ended_us is None else max(last_t, run.ended_us) + 2 * _GRAIN_US
    if until_us is not None:
        until = min(until, until_us)
    until -= until % _GRAIN_US
    known = (await known_states(store, run, RUN, [""])).get("")
    if known is not None:
        until = max(until, known.until_us)
        if known.noted.ord == last_ord and until == known.until_us:
            return until
    await _Building(store, run, known, until, last_ord).all()
    return until


class _Building:
    """One pass over a run."""

    def __init__(self, store: Store, run: Run, known: Known | None, until_us: int, last_ord: int) -> None:
        self._store, self._run, self._known = store, run, known
        self._until = until_us
        self._last_ord = last_ord

    async def all(self) -> None:
        reads, run, known = self._store.reads, self._run, self._known
        newest = (await reads.driver_all("SELECT MAX(no) FROM subjects WHERE run = ?", (run.no,)))[0][0] or 0
        await self._hosts(await self._begin_us() if known is not None else None)
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
        if known is None:
            for name in names:
                await self._from_the_start(name)
        else:
            begin = await self._begin_us()
            touched = await self._touched()
            fresh = [name for name in names if name not in states]
            again = {name: since for name, since in touched.items() if since < begin and name in states}
            for name in fresh:
                await self._from_the_start(name)
            for name, since in again.items():
                await self._session(name, states[name], _floor(since) - _GRAIN_US)
            changed = await self._changed(states)
            rest = [name for name in changed if name in states and name not in again]
            for name in rest:
                if not states[name].noted.subjects:  # it was over, and something is told of it once more
                    await self._session(name, states[name], begin)
            await self._together([name for name in rest if states[name].noted.subjects], states, begin)
        await self._note(RUN, "", Noted(ord=self._last_ord, newest=newest))

    async def _begin_us(self) -> int:
        """Where what was built may be wrong: a minute before the end, or before the earliest record since."""
        assert self._known is not None  # noqa: S101 - asked for only then
        since = await self._store.reads.driver_all(
            "SELECT MIN(first_t) FROM chunks WHERE run = ? AND first_ord + n > ?",
            (self._run.no, self._known.noted.ord + 1),
        )
        late = since[0][0]
        begin = self._known.until_us if late is None else min(self._known.until_us, late)
        return _floor(max(begin, 0)) - _GRAIN_US

    async def _touched(self) -> dict[str, int]:
        """Sessions with calls that were told since: from when on their charts may look different."""
        assert self._known is not None  # noqa: S101
        ordinal = self._known.noted.ord
        rows = await self._store.reads.driver_all(
            "SELECT session, MIN(CASE WHEN start_ord > ? OR lost = 1 THEN MIN(COALESCE(started_us, ended_us), "
            "COALESCE(ended_us, started_us)) ELSE ended_us END) FROM calls WHERE run = ? "
            "AND (start_ord > ? OR end_ord > ?) GROUP BY session",
            (ordinal, self._run.no, ordinal, ordinal),
        )
        return {session: since for session, since in rows if since is not None}

    async def _changed(self, states: dict[str, Known]) -> list[str]:
        """Sessions that may have got samples since."""
        assert self._known is not None  # noqa: S101
        rows = await self._store.reads.driver_all(
            "SELECT DISTINCT session FROM subjects WHERE run = ? AND no > ? AND session IS NOT NULL",
            (self._run.no, self._known.noted.newest),
        )
        more = await self._touched()
        open_ = [name for name, state in states.items() if state.noted.subjects]
        return list(dict.fromkeys([*open_, *(name for (name,) in rows), *more]))

    async def _from_the_start(self, name: str) -> None:
        first = await self._first_us(name)
        if first is not None:
            await self._session(name, None, _floor(first) - _GRAIN_US)

    async def _first_us(self, name: str) -> int | None:
        parts = " UNION ALL ".join(
            f"SELECT (SELECT MIN(m.t) FROM {table} m WHERE m.run = s.run AND m.subject = s.no) AS t "  # noqa: S608
            "FROM subjects s INDEXED BY subjects_session WHERE s.run = :run AND s.session = :name"
            for table in ("mem", "sched", "psi")
        )
        found = await self._store.reads.driver_all(
            f"SELECT MIN(t) FROM ({parts} UNION ALL SELECT MIN(COALESCE(started_us, ended_us), COALESCE(ended_us, "  # noqa: S608
            "started_us)) FROM calls WHERE run = :run AND session = :name)",
            {"run": self._run.no, "name": name},
        )
        first = found[0][0]
        return None if first is None else int(first)

    async def _session(self, name: str, state: Known | None, begin: int) -> None:
        """Build one session from ``begin`` on, some hours at a time."""
        pieces: list[_Fine] = []
        last: SessionInput | None = None
        noted = Noted() if state is None else state.noted
        at = begin
        while at < self._until:
            end = min(at + _PIECE_US, self._until)
            data = (await self._store.reads.session_inputs(self._run, [name], at, end))[name]
            pieces.append(await asyncio.to_thread(_fine, data, at, end))
            noted, last = _with_silences(noted, data, at, end), data
            at = end
        noted.subjects = await self._alive(name)
        if last is None:  # it begins later; but that its subjects are there must be known
            await self._note(SESSION, name, noted)
        else:
            await self._write(SESSION, name, pieces, begin, noted)

    async def _together(self, names: list[str], states: dict[str, Known], begin: int) -> None:
        """Build the last minutes of many sessions."""
        if not names or begin >= self._until:
            return
        assert self._known is not None  # noqa: S101
        alive = None
        if begin >= self._known.until_us - _KEEP_ALIVE_US + HOLD_US:
            alive = {name: Alive(states[name].noted.subjects, self._known.noted.newest) for name in names}
        inputs = await self._store.reads.session_inputs(self._run, names, begin, self._until, alive=alive)
        for name, data in inputs.items():
            if (earlier := _reach_us(data, begin)) < begin:
                await self._session(name, states[name], _floor(earlier) - _GRAIN_US)
                continue
            noted = _with_silences(states[name].noted, data, begin, self._until)
            noted.subjects = await self._alive(name)
            fine = await asyncio.to_thread(_fine, data, begin, self._until)
            await self._write(SESSION, name, [fine], begin, noted)

    async def _alive(self, name: str) -> list[int]:
        """Subjects that may be sampled after the end, or were shortly before it."""
        since = self._until - _KEEP_ALIVE_US
        rows = await self._store.reads.driver_all(
            "SELECT s.no FROM subjects s INDEXED BY subjects_session LEFT JOIN calls c ON s.kind = 'call' AND "
            "c.run = s.run AND c.session = s.session AND c.id = s.call WHERE s.run = ? AND s.session = ? AND "
            "(c.id IS NULL OR c.ended_us IS NULL OR c.ended_us >= ? OR EXISTS (SELECT 1 FROM mem m WHERE m.run = s.run "
            "AND m.subject = s.no AND m.t >= ?))",
            (self._run.no, name, since, since),
        )
        if await self._is_over(name, since):
            return []
        if not rows or not await self._sampled_since(name, since):
            # All, for the one of the last sample is among them: from there on is silence.
            rows = await self._store.reads.driver_all(
                "SELECT no FROM subjects INDEXED BY subjects_session WHERE run = ? AND session = ?",
                (self._run.no, name),
            )
        return [number for (number,) in rows]

    async def _sampled_since(self, name: str, since: int) -> bool:
        rows = await self._store.reads.driver_all(
            "SELECT 1 FROM subjects s INDEXED BY subjects_session CROSS JOIN mem m ON m.run = s.run AND "
            "m.subject = s.no AND m.t >= ? WHERE s.run = ? AND s.session = ? LIMIT 1",
            (since, self._run.no, name),
        )
        return bool(rows)

    async def _is_over(self, name: str, since: int) -> bool:
        rows = await self._store.reads.driver_all(
            "SELECT 1 FROM sessions WHERE run = ? AND id = ? AND end_ord > COALESCE(start_ord, 0) AND ended_us < ? AND "
            "NOT EXISTS (SELECT 1 FROM subjects s INDEXED BY subjects_session JOIN mem m ON m.run = s.run AND "
            "m.subject = s.no AND m.t >= ? WHERE s.run = sessions.run AND s.session = sessions.id) AND NOT EXISTS "
            "(SELECT 1 FROM calls c WHERE c.run = sessions.run AND c.session = sessions.id AND c.ended_us IS NULL)",
            (self._run.no, name, since, since),
        )
        return bool(rows)

    async def _hosts(self, begin: int | None) -> None:
        reads = self._store.reads
        if begin is None:
            first = await reads.driver_all("SELECT MIN(t) FROM host_samples WHERE run = ?", (self._run.no,))
            if first[0][0] is None:
                return
            begin = _floor(first[0][0]) - _GRAIN_US
        pieces: list[_Fine] = []
        at = begin
        while at < self._until:
            end = min(at + _PIECE_US, self._until)
            columns = await reads.host_points(self._run.id, at, end, after=True)
            pieces.append(_finest(await asyncio.to_thread(host_picture, columns), at, end))
            at = end
        if pieces:
            await self._write(HOST, "", pieces, begin, Noted())

    # --- writing -------------------------------------------------------------------------------------------------

    async def _write(self, kind: str, name: str, pieces: list[_Fine], begin: int, noted: Noted) -> None:
        """Replace what there is from ``begin`` on."""
        made = await asyncio.to_thread(_made, pieces)
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
        return (self._run.no, kind, name, self._until, _encode(noted))

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


_STATE_SQL: Final = (
    "INSERT INTO rollup_states (run, kind, name, until_us, data) VALUES (?,?,?,?,?) ON CONFLICT (run, kind, name) "
    "DO UPDATE SET until_us = excluded.until_us, data = excluded.data"
)


def _floor(t_us: int) -> int:
    return t_us // _GRAIN_US * _GRAIN_US


def _fine(data: SessionInput, from_us: int, to_us: int) -> _Fine:
    return _finest(session_picture(data, from_us=from_us), from_us, to_us)


def _finest(picture: Picture, from_us: int, to_us: int) -> _Fine:
    """The part of an exact picture at the finest resolution."""
    # Cut only then: a layer that has no step within the part is to have the level that it holds there.
    fine = part(reduced(picture, BUCKETS_US[-1]), from_us, to_us)
    return fine, blocks.figures(part(picture, from_us, to_us).total, BUCKETS_US[-1])


def _made(pieces: Sequence[_Fine]) -> dict[int, _Fine]:
    """The pieces at all resolutions, each from the finer one."""
    picture = joined([one for one, _ in pieces])
    stats = blocks.joined_stats([figures for _, figures in pieces])
    made: dict[int, _Fine] = {}
    for bucket_us in reversed(BUCKETS_US):
        picture, stats = reduced(picture, bucket_us), blocks.coarser(stats, bucket_us)
        made[bucket_us] = (picture, stats)
    return made


def _reach_us(data: SessionInput, begin: int) -> int:
    """How far back long windows reach that end after ``begin``."""
    reach = begin
    for samples in (data.sched, data.psi):
        long = (samples.t_us >= begin) & (samples.window_us > _GRAIN_US)
        if bool(long.any()):
            reach = min(reach, int((samples.t_us - samples.window_us)[long].min()))
    return max(reach, 0)


def _with_silences(noted: Noted, data: SessionInput, from_us: int, to_us: int) -> Noted:
    """The silences up to ``to_us``, those from ``from_us`` on anew."""
    t = data.sample_times_us
    ends = np.flatnonzero(np.diff(t) > MIN_GAP_US)
    fresh = [(int(t[i]), int(t[i + 1])) for i in ends if from_us <= t[i + 1] < to_us]
    pairs = zip(noted.silences[::2], noted.silences[1::2], strict=True)
    old = [value for pair in pairs if pair[1] < from_us for value in pair]
    seen = t[t < to_us]
    usual = noted.usual_us if noted.usual_us is not None else usual_distance_us(seen)
    last = int(seen[-1]) if len(seen) else noted.last_us
    return Noted(
        usual_us=usual,
        ended_us=data.ended_us,
        last_us=last if noted.last_us is None or last is None else max(noted.last_us, last),
        silences=[*old, *(value for pair in fresh for value in pair)],
    )
