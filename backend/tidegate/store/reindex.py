"""Rebuild the derived tables, the snapshots and the rollups from the raw log."""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa

from tidegate.errors import StoreError
from tidegate.fold import State, fold
from tidegate.store import schema, snapshots
from tidegate.store.chunks import unpack
from tidegate.store.engines import SQLITE_ERRORS, explain, in_its_thread
from tidegate.store.model import Run
from tidegate.store.rollups import build_rollups
from tidegate.store.rows import RowBuilder, decode_stored
from tidegate.store.statements import insert_rows
from tidegate.store.store import Store


async def reindex(store: Store, run: Run) -> int:
    """Empty and fill again the derived tables of one run, in one transaction; then its rollups.

    Returns:
        the number of records read.

    Raises:
        StoreError: a chunk is damaged or the database cannot be written; then nothing is changed.
    """
    chunks = schema.chunks.c
    builder = RowBuilder(run.no)
    state, writer = State(track=False), snapshots.SnapshotWriter(run.no)
    last_ord, last_t = 0, None
    try:
        async with store.begin() as connection:
            for table in (*schema.DERIVED, schema.sources, schema.rollups, schema.rollup_states):
                await connection.execute(sa.delete(table).where(table.c.run == run.no))
            await snapshots.drop(connection, run.no)
            numbers = (
                await connection.execute(sa.select(chunks.no).where(chunks.run == run.no).order_by(chunks.no))
            ).scalars()
            for no in list(numbers):
                row = (
                    await connection.execute(
                        sa.select(chunks.first_ord, chunks.codec, chunks.data).where(
                            chunks.run == run.no, chunks.no == no
                        )
                    )
                ).one()
                first_ord, codec, data = row
                try:
                    lines = unpack(codec, data)
                except ValueError as error:
                    raise StoreError(f"{store.path}: run {run.id}, chunk {no}: {error}") from None
                decoded = [decode_stored(line) for line in lines]
                rows = builder.build(first_ord, decoded, lines)
                try:
                    async with connection.begin_nested():
                        await in_its_thread(connection, partial(insert_rows, rows=rows))
                except (OverflowError, UnicodeEncodeError):
                    rows.clamp()
                    await in_its_thread(connection, partial(insert_rows, rows=rows))
                fold(state, enumerate(decoded, first_ord))
                if writer.due(state):
                    await snapshots.save(connection, writer.take(state))
                last_ord, last_t = first_ord + len(lines) - 1, decoded[-1].t
            await connection.execute(
                sa.update(schema.runs).where(schema.runs.c.no == run.no).values(last_ord=last_ord, last_t=last_t)
            )
    except SQLITE_ERRORS as error:
        raise explain(error, store.path) from error
    run.last_ord, run.last_t = last_ord, last_t
    await build_rollups(store, run)
    return last_ord
