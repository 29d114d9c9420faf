"""What the charts of a session's turns and KV blocks are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

from tidegate.analysis.kv_blocks import BlockSteps, Emptied, Residency, Step, block_steps
from tidegate.store.columns import SampleReads
from tidegate.store.rows import MAX_INT, AnyLine, decode_stored
from tidegate.store.rows_kv import engine_of
from tidegate.store.turn_records import AnyTurnRecord, touching
from tidegate_collectors.records import (
    EngineEnd,
    EngineStart,
    KvTransition,
)

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]

MOST: Final = 5000
"""Records of a span that are read at most."""

_MOST_STEPS: Final = 20_000
"""Transitions of a chart that are read one by one; of more, the last of each of so many columns."""

_AROUND: Final = 500
"""Records of turns before and behind a span that are looked at for turns that reach into it."""

_BEFORE: Final = 64
"""Transitions before a span that are looked at: a session may have blocks on several engines."""

_MOST_ENGINES: Final = 1000
_ENGINES: Final = "'engine.end', 'engine.start'"
_TURNS: Final = "'turn.end', 'turn.first_token', 'turn.start', 'turn.tool'"
_OF: Final = "FROM engine_events WHERE run = :run AND session = :session AND type IN ({types}) AND ord <= :to_ord"
_LINES: Final = "SELECT e.ord, e.line FROM ({keys}) k CROSS JOIN events e ON e.run = :run AND e.ord = k.ord"
_COLUMN: Final = "CAST((t - :from_us) * 1.0 / (:to_us - :from_us + 1) * :columns AS INTEGER)"


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """Records with their ordinals, in that order. ``truncated``: only the newest of those asked for are there."""

    records: list[tuple[int, T]]
    truncated: bool


class SessionKvReads(SampleReads):
    """Reads of one session. ``to_ord``: ordinal of the last record that counts; None: the last of the run."""

    async def session_turns(
        self, run: str, session: str, from_us: int, to_us: int, *, to_ord: int | None = None, limit: int = MOST
    ) -> Found[AnyTurnRecord]:
        """Records of the turns that a span touches, those outside it too as far as they are near.

        Args:
            run: its id.
            session: id of the session.
            from_us: start of the span, microseconds UTC.
            to_us: its end, in it.
            to_ord: see the class.
            limit: most records of the span.
        """
        key = await self._key(run, session, from_us, to_us, to_ord)
        within = await self._lines(_TURNS, "t BETWEEN :from_us AND :to_us", "DESC", limit + 1, key)
        before = await self._lines(_TURNS, "t < :from_us", "DESC", _AROUND, key)
        behind = await self._lines(_TURNS, "t > :to_us", "ASC", _AROUND, key)

        def decode() -> Found[AnyTurnRecord]:
            parts = [
                [(ord_, record) for ord_, record in _decoded(rows) if isinstance(record, AnyTurnRecord)]
                for rows in (before, within[:limit], behind)
            ]
            records = sorted(touching(*parts, from_us=from_us), key=itemgetter(0))
            return Found(records, len(within) > limit)

        return await asyncio.to_thread(decode)

    async def session_transitions(
        self, run: str, session: str, from_us: int, to_us: int, *, to_ord: int | None = None, limit: int = MOST
    ) -> Found[KvTransition]:
        """Changes of state of a session's blocks in ``[from_us, to_us]``."""
        key = await self._key(run, session, from_us, to_us, to_ord)
        rows = await self._lines("'kv.transition'", "t BETWEEN :from_us AND :to_us", "DESC", limit + 1, key)

        def decode() -> Found[KvTransition]:
            records = [(ord_, record) for ord_, record in _decoded(rows[:limit]) if isinstance(record, KvTransition)]
            return Found(sorted(records, key=itemgetter(0)), len(rows) > limit)

        return await asyncio.to_thread(decode)

    async def session_blocks(
        self, run: str, session: str, from_us: int, to_us: int, px: int, *, to_ord: int | None = None
    ) -> BlockSteps:
        """Blocks of a session by state over ``[from_us, to_us]``; at its beginning what holds there.

        ``px``: columns; there are at most about three points for each.
        """
        key = await self._key(run, session, from_us, to_us, to_ord)
        key["columns"] = _MOST_STEPS
        of = _OF.format(types="'kv.transition'")
        ((count,),) = await self.driver_all(
            f"SELECT COUNT(*) FROM (SELECT 1 {of} AND t BETWEEN :from_us AND :to_us LIMIT :columns + 1)",  # noqa: S608
            key,
        )
        if count > _MOST_STEPS:
            keys = f"SELECT MAX(ord) AS ord {of} AND t BETWEEN :from_us AND :to_us GROUP BY {_COLUMN}"
        else:
            keys = f"SELECT ord {of} AND t BETWEEN :from_us AND :to_us"
        rows = list(await self.driver_all(_LINES.format(keys=keys), key))
        rows += await self._lines("'kv.transition'", "t < :from_us", "DESC", _BEFORE, key)
        ends = await self._lines(_ENGINES, "t <= :to_us", "DESC", _MOST_ENGINES, {**key, "session": ""})

        def drawn() -> BlockSteps:
            steps = [*_emptied(_decoded(ends)), *_residencies(_decoded(rows))]
            steps.sort(key=itemgetter(0, 1))
            return block_steps((step for _, _, step in steps), from_us, max(to_us, from_us + 1), max(px, 1))

        return await asyncio.to_thread(drawn)

    async def session_engines(self, run: str, session: str) -> frozenset[str] | None:
        """Engines that a session's decisions and transitions name, looking at the first and last of the transitions.

        None, which is any engine, for a session of which there are only turns; empty for one without those too.
        """
        key = {"run": await self.number_of(run), "session": session, "to_ord": MAX_INT}
        names = await self.driver_all(
            "SELECT DISTINCT engine FROM kv_decisions INDEXED BY kv_decisions_session "
            "WHERE run = :run AND session = :session",
            key,
        )
        engines = {name for (name,) in names}
        for order in ("ASC", "DESC"):
            rows = await self._lines("'kv.transition'", "1", order, _BEFORE, key)
            engines |= {engine_of(record) for _, record in _decoded(rows) if isinstance(record, KvTransition)}
        if engines:
            return frozenset(engines)
        return None if await self._lines(_TURNS, "1", "ASC", 1, key) else frozenset()

    async def _key(self, run: str, session: str, from_us: int, to_us: int, to_ord: int | None) -> dict[str, Any]:
        return {
            "run": await self.number_of(run), "session": session, "from_us": from_us, "to_us": max(to_us, from_us),
            "to_ord": MAX_INT if to_ord is None else to_ord,
        }  # fmt: skip

    async def _lines(self, types: str, when: str, order: str, limit: int, key: dict[str, Any]) -> Sequence[Row]:
        """Ordinals and lines; the index alone says which, so that no others are looked up."""
        keys = f"SELECT ord {_OF.format(types=types)} AND {when} ORDER BY t {order}, ord {order} LIMIT :limit"
        return await self.driver_all(_LINES.format(keys=keys), {**key, "limit": limit})


def _decoded(rows: Iterable[Row]) -> Iterable[tuple[int, AnyLine]]:
    return ((ord_, decode_stored(line)) for ord_, line in rows)


def _residencies(records: Iterable[tuple[int, AnyLine]]) -> Iterable[tuple[int, int, Step]]:
    for ord_, record in records:
        if isinstance(record, KvTransition):
            residency = Residency(record.t, engine_of(record), record.residency, record.shared_blocks)
            yield record.t, ord_, residency


def _emptied(records: Iterable[tuple[int, AnyLine]]) -> Iterable[tuple[int, int, Step]]:
    """Instants at which an engine's cache begins empty: its end, and its start from another process."""
    running: dict[str, tuple[str, int | None] | None] = {}
    for ord_, record in sorted(records, key=itemgetter(0)):
        if isinstance(record, EngineStart):
            engine, process = engine_of(record), (record.src, record.pid)
            if running.get(engine) != process:
                yield record.t, ord_, Emptied(record.t, engine)
            running[engine] = process
        elif isinstance(record, EngineEnd):
            running[engine_of(record)] = None
            yield record.t, ord_, Emptied(record.t, engine_of(record))
