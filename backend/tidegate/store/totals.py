"""How much each run of a database holds, for lists of runs."""

from __future__ import annotations

from dataclasses import dataclass

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


async def import_of(reads: Reads, run_no: int) -> tuple[str, str, str] | None:
    """Format, file name and report (JSON) of an imported run; None of one that was live here. Raises StoreError."""
    table = schema.imports.c
    found = await reads.all(sa.select(table.format, table.file, table.report).where(table.run == run_no))
    return (str(found[0][0]), str(found[0][1]), str(found[0][2])) if found else None
