"""What the tables of :mod:`tidegate.store.schema` are written with."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table

metadata: Final = MetaData()

# STRICT wants INTEGER by that name; BIGINT elsewhere, because times and sizes do not fit into 32 bits.
Int: Final = BigInteger().with_variant(sa.Integer(), "sqlite")
Real: Final[sa.types.TypeEngine[float]] = sa.Double().with_variant(sa.REAL(), "sqlite")
Blob: Final = LargeBinary()

CLUSTERED: Final[dict[str, Any]] = {"sqlite_with_rowid": False, "sqlite_strict": True}


def int_(name: str, **options: Any) -> Column[int]:
    """A column of whole numbers."""
    return Column(name, Int, **options)


def key(name: str, kind: Any = Int) -> Column[Any]:
    """A column of the primary key."""
    return Column(name, kind, primary_key=True, autoincrement=False, nullable=False)


def samples(name: str, *columns: Column[Any]) -> Table:
    """A table of samples of subjects."""
    return Table(name, metadata, key("run"), key("subject"), key("t"), key("ord"), *columns, **CLUSTERED)


def index(name: str, *columns: str, where: str) -> sa.Index:
    """An index of only some rows."""
    condition = sa.text(where)
    return sa.Index(name, *columns, sqlite_where=condition, postgresql_where=condition)
