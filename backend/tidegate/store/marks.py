"""What the playhead's track shows: how many events of each kind fall into each of its columns."""

from __future__ import annotations

from typing import Final

from tidegate.store.columns import SampleReads
from tidegate.store.schema import IS_OOM, MARKED, MAYBE_OOM

TYPE_OF_KIND: Final = {
    "burst": "mem.burst",
    "call": "call.start",
    "oom": "mem.event",
    "action": "action",
    "decision": "kv.decision",
    "loss": "loss",
}
"""Kinds of marks, in the order in which they are listed, and the records that they are of."""

MARK_KINDS: Final = tuple(TYPE_OF_KIND)

_KIND_OF_TYPE: Final = {type_: kind for kind, type_ in TYPE_OF_KIND.items()}

# Integers up to 2^63 times the columns overflow into floating point numbers, which is close enough for a column.
_COLUMN: Final = "MAX(0, MIN(?, CAST((t - ?) * ? / ? AS INTEGER))) AS col"
# SQLite knows nothing of the table's size, and left alone would go through all events of the run.
_MARKS: Final = (
    f"SELECT type, {_COLUMN}, COUNT(*) FROM events INDEXED BY events_marks"  # noqa: S608 - names of our own
    f" WHERE run = ? AND {MARKED} GROUP BY type, col"
    f" UNION ALL SELECT type, {_COLUMN}, COUNT(*) FROM events INDEXED BY events_oom"
    f" WHERE run = ? AND {MAYBE_OOM} AND {IS_OOM} GROUP BY type, col"
    f" UNION ALL SELECT type, {_COLUMN}, COUNT(*) FROM events INDEXED BY events_loss"
    " WHERE run = ? AND type = 'loss' GROUP BY type, col"
)


class MarkReads(SampleReads):
    """Counts of events by time."""

    async def marks(self, run: str, from_us: int, to_us: int, columns: int) -> dict[str, list[tuple[int, int]]]:
        """Events by kind: (column, how many), in order of the columns; those of no event are left out.

        A call is marked where it starts. What lies outside is counted in the first or last column.

        Args:
            run: its id.
            from_us: left edge of the first column, microseconds UTC.
            to_us: right edge of the last column, after ``from_us``.
            columns: how many.
        """
        one = (columns - 1, from_us, columns, to_us - from_us, await self.number_of(run))
        found: dict[str, list[tuple[int, int]]] = {kind: [] for kind in MARK_KINDS}
        for type_, column, count in await self.driver_all(_MARKS, one * 3):
            found[_KIND_OF_TYPE[type_]].append((column, count))
        for counts in found.values():
            counts.sort()
        return found
