"""Rebuild the derived tables from the raw log."""

from __future__ import annotations

import sqlalchemy as sa

from tidegate.errors import StoreError
from tidegate.store import schema
from tidegate.store.chunks import unpack
from tidegate.store.engines import SQLITE_ERRORS, explain
from tidegate.store.model import Run
from tidegate.store.rows import RowBuilder, decode_stored
from tidegate.store.store import Store, write_rows


async def reindex(store: Store, run: Run) -> int:
    """Empty and fill again the derived tables of one run, in one transaction.

    Returns:
        the number of records read.

    Raises:
        StoreError: a chunk is damaged or the database cannot be written; then nothing is changed.
    """
    chunks = schema.chunks.c
    builder = RowBuilder(run.no)
    last_ord, last_t = 0, None
    try:
        async with store.begin() as connection:
            for table in (*schema.DERIVED, schema.sources):
                await connection.execute(sa.delete(table).where(table.c.run == run.no))
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
                        await write_rows(connection, rows)
                except (OverflowError, UnicodeEncodeError):
                    rows.clamp()
                    await write_rows(connection, rows)
                last_ord, last_t = first_ord + len(lines) - 1, decoded[-1].t
            await connection.execute(
                sa.update(schema.runs).where(schema.runs.c.no == run.no).values(last_ord=last_ord, last_t=last_t)
            )
    except SQLITE_ERRORS as error:
        raise explain(error, store.path) from error
    return last_ord
