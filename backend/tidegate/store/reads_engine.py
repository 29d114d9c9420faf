"""Charts of engines, read from the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from tidegate.analysis.engine_series import COLUMNS, Chosen, EngineSeries, choose, draw
from tidegate.store.columns import SampleReads
from tidegate.store.rows import MAX_INT

_VALUES: Final = ", ".join(f"COALESCE(m.{name}, -1)" for name in COLUMNS)
_HEAD: Final = f"SELECT m.t, m.ord, {_VALUES} FROM engine_samples m WHERE m.run = ? AND m.engine = ? AND m.ord <= ?"  # noqa: S608
_EDGE: Final = "SELECT %s(e.t) FROM engine_samples e WHERE e.run = ? AND e.engine = ? AND e.ord <= ? AND e.t %s ?"
_SAMPLES: Final = (
    f"{_HEAD} AND m.t BETWEEN ? AND ? UNION ALL {_HEAD} AND m.t = ({_EDGE % ('MAX', '<')}) UNION ALL "
    f"{_HEAD} AND m.t = ({_EDGE % ('MIN', '>')})"
)
_REASONS: Final = (
    "SELECT j.key, m.waiting_by_reason FROM json_each(?) j CROSS JOIN engine_samples m ON m.run = ? AND m.engine = ? "
    "AND m.t = json_extract(j.value, '$[0]') AND m.ord = json_extract(j.value, '$[1]') "
    "WHERE m.waiting_by_reason IS NOT NULL"
)
_counts: Final[msgspec.json.Decoder[dict[str, int]]] = msgspec.json.Decoder(dict[str, int])


class EngineSampleReads(SampleReads):
    """Reads of samples of engines."""

    async def engine_series(
        self,
        run: str,
        engine: str,
        from_us: int,
        to_us: int,
        px: int,
        *,
        to_ord: int | None = None,
        until_us: int | None = None,
    ) -> EngineSeries:
        """The chart of an engine over ``[from_us, to_us]``; the samples next to it are in it too.

        Args:
            run: its id.
            engine: name of the engine.
            from_us: start, microseconds UTC.
            to_us: end.
            px: columns; there are at most about ``2 px`` points, and one more in each gap.
            to_ord: ordinal of the last record that counts; None: the last of the run.
            until_us: up to when there should be samples, for a gap at the end; None: the last record of the run.
        """
        no = await self.number_of(run)
        to_us = max(to_us, from_us + 1)
        key = (no, engine, MAX_INT if to_ord is None else to_ord)
        table = await self._driver_array(_SAMPLES, (*key, from_us, to_us, *key, *key, from_us, *key, *key, to_us))
        if table is None:
            return EngineSeries()
        if until_us is None:
            ((last_t,),) = await self.driver_all("SELECT last_t FROM runs WHERE no = ?", (no,))
            until_us = to_us if last_t is None else int(last_t)
        chosen = await asyncio.to_thread(choose, table, from_us, to_us, max(px, 2), until_us=min(to_us, until_us))
        pairs = json.dumps(np.stack((chosen.t_us, chosen.ord), axis=1).tolist())
        reasons = await self.driver_all(_REASONS, (pairs, no, engine))
        return await asyncio.to_thread(_drawn, chosen, reasons)


def _drawn(chosen: Chosen, rows: Sequence[tuple[Any, ...]]) -> EngineSeries:
    reasons: list[dict[str, int]] = [{} for _ in chosen.t_us]
    for index, text in rows:
        reasons[index] = _counts.decode(text)
    return draw(chosen, reasons)
