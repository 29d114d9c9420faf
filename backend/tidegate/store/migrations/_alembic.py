"""The slow way through the schema versions, by alembic. Imported only when a database is not at the newest one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory

from tidegate.errors import StoreError

HERE: Final = Path(__file__).parent


def _scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def check(connection: sa.Connection, path: Path) -> bool:
    """Whether the database is at the newest version of the schema that this Tidegate knows.

    Raises:
        StoreError: a newer Tidegate wrote it, or it is some other program's database.
    """
    scripts = _scripts()
    current = MigrationContext.configure(connection).get_current_heads()
    known = {script.revision for script in scripts.walk_revisions()}
    for revision in current:
        if revision not in known:
            raise StoreError(
                f"{path} was written by a newer Tidegate (schema {revision[:40]!r}); "
                "update this one, or choose another --state-dir"
            )
    if not current and sa.inspect(connection).get_table_names():
        raise StoreError(f"{path} is the database of another program; choose another --state-dir")
    return set(current) == set(scripts.get_heads())


def upgrade(connection: sa.Connection, to: str = "head") -> None:
    """Bring the database to a version, by default the newest, in the caller's transaction."""
    scripts = _scripts()
    with EnvironmentContext(
        Config(), scripts, fn=lambda revision, _context: scripts._upgrade_revs(to, revision), destination_rev=to
    ) as environment:
        environment.configure(connection=connection, transactional_ddl=False)
        environment.run_migrations()
