"""Limits on what is kept: shown before they are applied, and applied now and then by the backend."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate.errors import NotFoundError, TidegateError
from tidegate.runs.library import Library, RunRow
from tidegate.store import Store
from tidegate.store.retention import Limits, give_back, over
from tidegate_collectors.records import Note, Record

log = logging.getLogger(__name__)

EVERY_S: Final = 3600.0
"""How often the backend applies the limits."""

FIRST_S: Final = 600.0
"""How long after its start it does so first: time to see what there is, and to change a limit that was a mistake."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What limits would do."""

    runs: list[RunRow]
    bytes: int
    kept_runs: int
    kept_bytes: int

    def to_dict(self) -> dict[str, object]:
        """The shape of the API."""
        return {
            "runs": self.runs,
            "bytes": self.bytes,
            "kept": {"runs": self.kept_runs, "bytes": self.kept_bytes},
        }


async def preview(library: Library, limits: Limits, *, now_us: int | None = None) -> Preview:
    """Which runs would go, the oldest first, and what stays. Raises StoreError."""
    rows = await library.list()
    gone = over(rows, limits, now_us=time.time_ns() // 1000 if now_us is None else now_us)
    freed = sum(row.bytes for row in gone)
    return Preview(gone, freed, len(rows) - len(gone), sum(row.bytes for row in rows) - freed)


async def apply(library: Library, store: Store | None, limits: Limits, *, spare_looked_at: bool = False) -> Preview:
    """Delete what is over the limits, and give the room back to the disk. What cannot be deleted stays, and is logged.

    Args:
        library: the runs.
        store: the database of live runs, open for writing; None where there is none.
        limits: what is kept.
        spare_looked_at: leave the runs that somebody looks at for the next time.

    Returns:
        what went, and what is kept.

    Raises:
        StoreError: nothing could be deleted.
    """
    found = await preview(library, limits)
    gone: list[RunRow] = []
    failed: TidegateError | None = None
    for row in found.runs:
        try:
            if spare_looked_at and (await library.open(row.id)).history.looked_at:
                continue
            await library.delete(row.id)
        except NotFoundError:
            continue  # somebody else was faster
        except TidegateError as error:
            log.warning("run %s stays: %s", row.id, error)
            failed = error
            continue
        gone.append(row)
        log.info("run %s went: %d bytes", row.id, row.bytes)
    if failed is not None and not gone:
        raise failed
    if store is not None and gone:
        await give_back(store)
    freed = sum(row.bytes for row in gone)
    stayed = len(found.runs) - len(gone)
    return Preview(gone, freed, found.kept_runs + stayed, found.kept_bytes + found.bytes - freed)


async def keep_limits(
    library: Library,
    store: Store,
    limits: Limits,
    record: Callable[[Record], None],
    *,
    first_s: float = FIRST_S,
    every_s: float = EVERY_S,
) -> None:
    """Apply the limits ten minutes from now and then every hour until cancelled.

    What went is written into the live run as a note.
    """
    if limits:
        await asyncio.sleep(first_s)
    while limits:
        try:
            went = await apply(library, store, limits, spare_looked_at=True)
        except TidegateError as error:
            log.warning("retention: %s", error)
        except Exception:
            # Nothing of this may end the backend; records go on being stored.
            log.exception("retention failed")
        else:
            if went.runs:
                names = ", ".join(row.id for row in went.runs[:10]) + (", ..." if len(went.runs) > 10 else "")
                text = f"{len(went.runs)} old runs were removed ({went.bytes / 1e6:.1f} MB), by age or size: {names}"
                record(Note(t=time.time_ns() // 1000, text=text, by="tidegate"))
        await asyncio.sleep(every_s)
