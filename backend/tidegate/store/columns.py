"""Samples as numpy columns, for charts. Unknown numbers are -1 (:data:`tidegate.analysis.columns.UNKNOWN`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tidegate.analysis.columns import (
    HostColumns,
)
from tidegate.store.rows import MAX_INT

I8 = NDArray[np.int64]

# Sums are cut too: two clamped numbers would overflow into a floating point number.
USED: Final = f"MIN(m.anon_bytes, {MAX_INT // 4}) + MIN(COALESCE(m.shmem_bytes, 0), {MAX_INT // 4})"
MEM: Final = f"{USED}, COALESCE(m.peak_bytes, -1)"
SCHED: Final = "m.oncpu_us, COALESCE(m.wait_us, -1), COALESCE(m.window_us, -1)"
PSI: Final = (
    "COALESCE(m.memory_some_us, -1), COALESCE(m.cpu_some_us, -1), COALESCE(m.io_some_us, -1), COALESCE(m.window_us, -1)"
)
_WIDTH: Final = 6  # columns of an empty answer: no table has more
OF_SESSION: Final = "subjects s INDEXED BY subjects_session"
_HOST: Final = "m.mem_total_bytes, m.mem_available_bytes, m.cpu_busy_us, COALESCE(m.window_us, -1)"


class SampleReads:
    """Columns of samples between two instants, both included, in order of time.

    The last sample before ``from_us`` of each subject is included as well, so that a line that holds its value from
    sample to sample is right at the left edge.
    """

    async def number_of(self, run: str) -> int:
        """The key of a run."""
        raise NotImplementedError

    async def driver_all(self, sql: str, parameters: tuple[Any, ...] | dict[str, Any]) -> Sequence[tuple[Any, ...]]:
        """The rows of a statement as the driver gives them."""
        raise NotImplementedError

    async def _driver_array(self, sql: str, parameters: tuple[Any, ...]) -> I8 | None:
        """Rows of whole numbers as an array (rows, columns); None when there are none."""
        raise NotImplementedError

    async def host_points(
        self, run: str, from_us: int, to_us: int, *, host: str | None = None, after: bool = False
    ) -> HostColumns:
        """Samples of one host; by default of the first that the run knows. ``after``: the next behind them too."""
        no = await self.number_of(run)
        found = await self.driver_all(
            "SELECT no FROM subjects WHERE run = ? AND kind = 'host' AND session IS NULL AND (? IS NULL OR host = ?) "
            "AND EXISTS (SELECT 1 FROM host_samples h WHERE h.run = subjects.run AND h.subject = subjects.no) "
            "ORDER BY no LIMIT 1",
            (no, host, host),
        )
        if not found:
            return HostColumns()
        table = await self._columns("host_samples", _HOST, no, [found[0][0]], from_us, to_us, after=after)
        return HostColumns(
            t_us=table[0],
            mem_total_bytes=table[2],
            mem_available_bytes=table[3],
            cpu_busy_us=table[4],
            window_us=table[5],
        )

    async def _columns(
        self,
        table: str,
        columns: str,
        run_no: int,
        subjects: Sequence[int],
        from_us: int,
        to_us: int,
        *,
        after: bool = False,
    ) -> I8:
        """Columns (t, subject number, ``columns``...) as rows of an array, in order of time and then of arrival.

        ``after``: the first sample behind ``to_us`` of each subject is included too.
        """
        # All parts of these statements are constants of this module; values are bound. CROSS JOIN: SQLite, which knows
        # nothing of the tables' sizes, would else go through all samples of the run and ask of each whose it is.
        head = (
            f"SELECT m.ord, m.t, m.subject, {columns} FROM json_each(?) s CROSS JOIN {table} m "  # noqa: S608
            "ON m.run = ? AND m.subject = s.value AND m.t"
        )
        edge = f"(SELECT %s(e.t) FROM {table} e WHERE e.run = ? AND e.subject = s.value AND e.t %s ?)"  # noqa: S608
        key = (json.dumps(subjects), run_no)
        parts = [
            await self._driver_array(f"{head} = {edge % ('MAX', '<')}", (*key, run_no, from_us)),
            await self._driver_array(f"{head} BETWEEN ? AND ?", (*key, from_us, to_us)),
        ]
        if after:
            parts.append(await self._driver_array(f"{head} = {edge % ('MIN', '>')}", (*key, run_no, to_us)))
        found = [part for part in parts if part is not None]
        if not found:
            return np.empty((_WIDTH, 0), dtype=np.int64)
        return await asyncio.to_thread(_in_order, found)


def _in_order(parts: list[I8]) -> I8:
    array = np.concatenate(parts)
    order = np.lexsort((array[:, 0], array[:, 1]))
    return np.ascontiguousarray(array[order, 1:].T)
