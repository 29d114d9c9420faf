"""How much each run of a database holds, for lists of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from tidegate.store import schema
from tidegate.store.reads import Reads


@dataclass(frozen=True, slots=True)
class Totals:
    """Sessions of a run, and its share of the database by records, in bytes."""

    sessions: int
    bytes: int


async def totals(reads: Reads) -> dict[int, Totals]:
    """Totals by the run's number. Raises StoreError."""
    sessions = schema.sessions.c
    counted = await reads.all(sa.select(sessions.run, sa.func.count()).group_by(sessions.run))
    by_run = {int(run): int(count) for run, count in counted}
    runs = await reads.runs()
    size = (await reads.sizes()).database_bytes
    records = sum(run.last_ord for run in runs)
    return {run.no: Totals(by_run.get(run.no, 0), size * run.last_ord // records if records else 0) for run in runs}


@dataclass(frozen=True, slots=True)
class Import:
    """Where a run came from. ``report``: what was found wrong, and ``imported_us``, which those of before lack."""

    format: str
    file: str
    report: dict[str, Any]

    @property
    def imported_us(self) -> int | None:
        """When it was imported, microseconds UTC, where that is known."""
        found = self.report.get("imported_us")
        return found if isinstance(found, int) else None


async def import_of(reads: Reads, run_no: int) -> Import | None:
    """Where an imported run came from; None of one that was live here. Raises StoreError."""
    table = schema.imports.c
    found = await reads.all(sa.select(table.format, table.file, table.report).where(table.run == run_no))
    if not found:
        return None
    try:
        report = msgspec.json.decode(str(found[0][2]), type=dict[str, Any])
    except msgspec.MsgspecError:
        report = {}  # somebody else's hand; the run itself can be read all the same
    return Import(str(found[0][0]), str(found[0][1]), report)
