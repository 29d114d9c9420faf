"""Rollups at 1, 10 and 60 seconds: built from the samples, for finished spans; read back as pictures.

A run's rollups go up to an instant, and each of its sessions may be ahead of that. What is later is read from the
samples. Records that come late, and calls that are told again, make the rollups be built anew from there; both are
found by the ordinal up to which the run was looked at.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import sqlalchemy as sa

from tidegate.errors import StoreError
from tidegate.store import schema
from tidegate.store.blocks import DamagedRollupError
from tidegate.store.model import Run
from tidegate.store.rollup_building import Building
from tidegate.store.rollup_pieces import GRAIN_US, minute_of
from tidegate.store.rollup_states import RUN, known_states
from tidegate.store.store import Store

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
"""How often the rollups of the run that is being written are brought up to date."""

LAG_US: Final = 10_000_000
"""How much later than a finished span the last record must be: by then the next sample of each subject is there."""


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


async def build_rollups(store: Store, run: Run) -> int | None:
    """Build what is missing of a run's rollups.

    Args:
        store: open for writing.
        run: it; of one that has ended, all is built.

    Returns:
        the instant up to which there are rollups now; None when there is nothing to build yet.

    Raises:
        StoreError: the database cannot be read or written; what is built by then stays, and the next call goes on.
    """
    last_ord, last_t = run.last_ord, run.last_t
    if last_t is None:
        return None
    # Two minutes behind the end: what processes left behind hold is given up after it.
    until = last_t - LAG_US if run.ended_us is None else max(last_t, run.ended_us) + 2 * GRAIN_US
    until = minute_of(until)
    try:
        known = (await known_states(store, run, RUN, [""])).get("")
        if known is not None:
            until = max(until, known.until_us)
            if known.noted.ord == last_ord and until == known.until_us:
                return until
        await Building(store, run, known, until, last_ord).all()
    except DamagedRollupError as error:
        log.warning("%s: the rollups of run %s are built anew: %s", store.path, run.id, error)
        await drop_rollups(store, run)
        await Building(store, run, None, until, last_ord).all()
    return until
