"""From when to when there is something of a session, as the building of rollups asks it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec

from tidegate.errors import StoreError
from tidegate.store.chunks import unpack
from tidegate.store.model import Run
from tidegate.store.rollup_pieces import GRAIN_US
from tidegate.store.store import Store

_KEEP_ALIVE_US: Final = 600_000_000
"""So long before the end of the rollups a subject must have been over to be left out of what comes next."""


_CHUNKS: Final = "SELECT no FROM chunks WHERE run = ? AND no >= ? AND first_t < ? ORDER BY no"
_CHUNK: Final = "SELECT first_ord, codec, data FROM chunks WHERE run = ? AND no = ?"


class _Told(msgspec.Struct):
    t: int = 0
    type: str = ""
    session: str | None = None
    window_us: int | None = None


_told: Final = msgspec.json.Decoder(_Told)


async def earliest(store: Store, run: Run, *, after_ord: int, before_us: int) -> dict[str | None, int]:
    """When the earliest is, by session, of what came late: samples and ends told after a record, of times before an
    instant; of a sample with a long window, where that begins. None is the host. Raises StoreError."""
    reads = store.reads
    numbers = await reads.driver_all(_CHUNKS, (run.no, await reads.chunk_of(run.no, after_ord + 1), before_us))
    found: dict[str | None, int] = {}
    for (number,) in numbers:
        for first_ord, codec, data in await reads.driver_all(_CHUNK, (run.no, number)):
            try:
                lines = unpack(codec, data)
            except ValueError as error:
                raise StoreError(f"{store.path}: run {run.id}, chunk {number}: {error}") from None
            for told in await asyncio.to_thread(_all_told, lines[max(0, after_ord + 1 - first_ord) :]):
                window_us = told.window_us or 0
                # What shorter windows reach back is allowed for in where the building begins.
                since_us = told.t if window_us <= GRAIN_US else min(told.t, max(0, told.t - window_us))
                if since_us < before_us and (told.type.endswith(".sample") or told.type == "session.end"):
                    found[told.session] = min(since_us, found.get(told.session, since_us))
    return found


def _all_told(lines: list[bytes]) -> list[_Told]:
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(_told.decode(line))
    return found


async def first_us(store: Store, run: Run, name: str) -> int | None:
    """When a session begins, as far as anything was seen of it. None: nothing."""
    parts = " UNION ALL ".join(
        f"SELECT (SELECT MIN(m.t) FROM {table} m WHERE m.run = s.run AND m.subject = s.no) AS t "  # noqa: S608
        "FROM subjects s INDEXED BY subjects_session WHERE s.run = :run AND s.session = :name"
        for table in ("mem", "sched", "psi")
    )
    found = await store.reads.driver_all(
        f"SELECT MIN(t) FROM ({parts} UNION ALL SELECT MIN(COALESCE(started_us, ended_us), COALESCE(ended_us, "  # noqa: S608
        "started_us)) FROM calls WHERE run = :run AND session = :name)",
        {"run": run.no, "name": name},
    )
    first = found[0][0]
    return None if first is None else int(first)


async def next_us(store: Store, run: Run, name: str, at: int) -> int | None:
    """When something of a session comes after ``at``; clocks that went wrong leave centuries without. None: nothing."""
    since = "(SELECT {} FROM {} m WHERE m.run = s.run AND m.subject = s.no AND m.t >= :at ORDER BY m.t LIMIT 1)"
    # A window reaches back. Where it began before, that has been seen from there.
    window = "CASE WHEN m.t - m.window_us >= :at THEN m.t - m.window_us ELSE m.t END"
    samples = (("m.t", "mem"), (window, "sched"), (window, "psi"))
    found = await store.reads.driver_all(
        "SELECT MIN(t) FROM ("  # noqa: S608 - names of our own
        + "".join(
            f"SELECT {since.format(*each)} AS t FROM subjects s INDEXED BY subjects_session "  # noqa: S608
            "WHERE s.run = :run AND s.session = :name UNION ALL "
            for each in samples
        )
        + "SELECT started_us FROM calls WHERE run = :run AND session = :name AND started_us >= :at "
        "UNION ALL SELECT ended_us FROM calls WHERE run = :run AND session = :name AND ended_us >= :at "
        "UNION ALL SELECT ended_us FROM sessions WHERE run = :run AND id = :name AND ended_us >= :at)",
        {"run": run.no, "name": name, "at": at},
    )
    return None if found[0][0] is None else int(found[0][0])


async def alive_at(store: Store, run: Run, name: str, until: int) -> list[int]:
    """Subjects of a session that may be sampled after ``until``, or were shortly before it."""
    since = until - _KEEP_ALIVE_US
    rows = await store.reads.driver_all(
        "SELECT s.no FROM subjects s INDEXED BY subjects_session LEFT JOIN calls c ON s.kind = 'call' AND "
        "c.run = s.run AND c.session = s.session AND c.id = s.call WHERE s.run = ? AND s.session = ? AND "
        "(c.id IS NULL OR c.ended_us IS NULL OR c.ended_us >= ? OR EXISTS (SELECT 1 FROM mem m WHERE m.run = s.run "
        "AND m.subject = s.no AND m.t >= ?))",
        (run.no, name, since, since),
    )
    if await _is_over(store, run, name, since):
        return []
    if not rows or not await _sampled_since(store, run, name, since):
        # All, for the one of the last sample is among them: from there on is silence.
        rows = await store.reads.driver_all(
            "SELECT no FROM subjects INDEXED BY subjects_session WHERE run = ? AND session = ?",
            (run.no, name),
        )
    return [number for (number,) in rows]


async def _sampled_since(store: Store, run: Run, name: str, since: int) -> bool:
    rows = await store.reads.driver_all(
        "SELECT 1 FROM subjects s INDEXED BY subjects_session CROSS JOIN mem m ON m.run = s.run AND "
        "m.subject = s.no AND m.t >= ? WHERE s.run = ? AND s.session = ? LIMIT 1",
        (since, run.no, name),
    )
    return bool(rows)


async def _is_over(store: Store, run: Run, name: str, since: int) -> bool:
    rows = await store.reads.driver_all(
        "SELECT 1 FROM sessions WHERE run = ? AND id = ? AND end_ord > COALESCE(start_ord, 0) AND ended_us < ? AND "
        "NOT EXISTS (SELECT 1 FROM subjects s INDEXED BY subjects_session JOIN mem m ON m.run = s.run AND "
        "m.subject = s.no AND m.t >= ? WHERE s.run = sessions.run AND s.session = sessions.id) AND NOT EXISTS "
        "(SELECT 1 FROM calls c WHERE c.run = sessions.run AND c.session = sessions.id AND c.ended_us IS NULL)",
        (run.no, name, since, since),
    )
    return bool(rows)
