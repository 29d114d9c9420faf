"""How far the rollups of a run, a session or a host go, and what is needed to go on from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import sqlalchemy as sa

from tidegate.store import schema
from tidegate.store.blocks import DamagedRollupError
from tidegate.store.model import Run
from tidegate.store.store import Store

RUN: Final = "run"
HOST: Final = "host"
SESSION: Final = "session"


class Noted(msgspec.Struct, omit_defaults=True):
    """What is noted of a run (``ord``: looked at up to it; ``newest``: greatest subject by then), or a session.

    Attributes:
        subjects: those that may still be sampled after ``until_us - 10 min``.
        usual_us: usual distance of two samples.
        last_us: time of the last sample.
        ended_us: end of the session.
        silences: distances of samples above :data:`~tidegate.analysis.intervals.MIN_GAP_US`, as their two ends.
    """

    ord: int = 0
    newest: int = 0
    subjects: list[int] = []
    usual_us: float | None = None
    last_us: int | None = None
    ended_us: int | None = None
    silences: list[int] = []


_noted: Final = msgspec.msgpack.Decoder(Noted)
encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Known:
    """A row of ``rollup_states``."""

    until_us: int
    noted: Noted


async def known_states(store: Store, run: Run, kind: str, names: Sequence[str] | None = None) -> dict[str, Known]:
    """What is noted, by name. Raises DamagedRollupError, StoreError."""
    table = schema.rollup_states.c
    statement = sa.select(table.name, table.until_us, table.data).where(table.run == run.no, table.kind == kind)
    if names is not None and len(names) <= 500:
        statement = statement.where(table.name.in_(names))
    rows = await store.reads.all(statement)
    try:
        return {name: Known(until, _noted.decode(data)) for name, until, data in rows}
    except msgspec.DecodeError as error:
        reason = f"{store.path}: what is noted of run {run.id} is damaged ({error}); `tidegate reindex` makes it anew"
        raise DamagedRollupError(reason) from None
