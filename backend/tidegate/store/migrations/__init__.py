"""Schema versions: a database at the newest one is known by a look, any other is judged and migrated by alembic."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa

HEAD: Final = "0005"
"""The newest version; a test keeps it equal to the scripts. Alembic takes longer to import than all else that a start
does, so it is left alone while there is nothing to migrate."""

_TABLE: Final = "alembic_version"


def check(connection: sa.Connection, path: Path) -> bool:
    """Whether the database is at the newest version of the schema that this Tidegate knows.

    Raises:
        StoreError: a newer Tidegate wrote it, or it is some other program's database.
    """
    tables = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars().all()
    if not tables:
        return False
    if _TABLE in tables:
        versions = connection.exec_driver_sql(f"SELECT version_num FROM {_TABLE}").scalars().all()  # noqa: S608
        if versions == [HEAD]:
            return True
    from tidegate.store.migrations import _alembic

    return _alembic.check(connection, path)


def upgrade(connection: sa.Connection) -> None:
    """Bring the database to the newest version, in the caller's transaction."""
    from tidegate.store.migrations import _alembic

    _alembic.upgrade(connection)
