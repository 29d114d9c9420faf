from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.dialects import postgresql

from tests.backend.store.test_store import filled
from tests.support.databases import derived_tables
from tests.support.engine_lines import hostile_engine_lines, random_engine_lines
from tests.support.scenes import decoded
from tidegate.store import migrations, open_store, schema
from tidegate.store.migrations import _alembic
from tidegate.store.reindex import reindex
from tidegate.store.rows import type_of
from tidegate_collectors.records import Record


async def test_the_migrations_make_the_schema_that_the_code_uses(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "t.db")
    await store.close()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 't.db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
        rows = connection.execute(sa.text("SELECT name, sql FROM sqlite_master WHERE type = 'table'")).all()
        sql = {str(name): str(text) for name, text in rows}
    engine.dispose()
    for table in schema.metadata.sorted_tables:
        assert "STRICT" in sql[table.name]
        assert ("WITHOUT ROWID" in sql[table.name]) == (table.dialect_options["sqlite"]["with_rowid"] is False)


def test_the_version_known_by_a_look_is_the_newest_script() -> None:
    assert _alembic._scripts().get_heads() == [migrations.HEAD]


async def test_opening_a_migrated_database_leaves_alembic_alone(tmp_path: Path) -> None:
    await (await open_store(tmp_path / "t.db")).close()
    code = (
        "import asyncio, pathlib, sys; from tidegate.store import open_store\n"
        f"asyncio.run((lambda: open_store(pathlib.Path({str(tmp_path / 't.db')!r}), read_only=True))())\n"
        "assert 'alembic' not in sys.modules"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_postgresql_could_hold_the_schema() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for table in schema.metadata.sorted_tables:
        text = str(sa.schema.CreateTable(table).compile(dialect=dialect))
        assert "INTEGER" not in text
        for index in table.indexes:
            str(sa.schema.CreateIndex(index).compile(dialect=dialect))


async def test_a_database_of_the_first_schema_gets_what_came_later(tmp_path: Path) -> None:
    new, old = tmp_path / "new.db", tmp_path / "old.db"
    await (await open_store(new)).close()
    engine = sa.create_engine(f"sqlite:///{old}")
    with engine.begin() as connection:
        _alembic.upgrade(connection, "0001")
        connection.execute(
            sa.text(
                "INSERT INTO runs (no, id, title, source, host, boot_id, started_us, clean, last_ord) "
                "VALUES (1, 'old', '', 'live', '', '', 5, 0, 0)"
            )
        )
    engine.dispose()
    assert _schema(old).keys() < _schema(new).keys()
    store = await open_store(old)
    assert [run.id for run in await store.reads.runs()] == ["old"]
    await store.close()
    assert _schema(old) == _schema(new)


async def test_what_a_database_of_before_has_of_engines_goes_into_their_tables(tmp_path: Path) -> None:
    """GIVEN a database of schema 0004, where samples of engines are events, with hostile and damaged lines WHEN it is
    opened THEN its tables are those that the raw log gives, and what cannot be read is still an event."""
    lines = [*hostile_engine_lines(), *random_engine_lines(2, 300), *random_engine_lines(3, 5000)]
    new = tmp_path / "new.db"
    store, _ = await filled(new, lines, [100, 101])
    await store.close()
    wanted = derived_tables(new)
    assert len(wanted["engine_samples"]) > 300
    assert len(wanted["kv_decisions"]) > 300
    assert any(row[1] for row in wanted["kv_outcomes"])
    old = tmp_path / "old.db"
    _as_of_0004(old, new, lines)
    with contextlib.closing(sqlite3.connect(old)) as database, database:
        for ord_, line in enumerate((b"{", b"\xff", b"", b'{"type":"engine.sample"}', b"[" * 100_000), 90_001):
            row = (1, ord_, 5, "engine.sample" if ord_ % 2 else "kv.decision", line)
            database.execute("INSERT INTO events (run, ord, t, type, line) VALUES (?, ?, ?, ?, ?)", row)
    store = await open_store(old)
    run = await store.reads.run("r1")
    migrated = derived_tables(old)
    kept = [row for row in migrated["events"] if row[1] > 90_000]
    migrated["events"] = [row for row in migrated["events"] if row[1] <= 90_000]
    assert migrated == wanted
    assert len(kept) == 5
    await reindex(store, run)
    await store.close()
    assert derived_tables(old) == wanted


def _as_of_0004(old: Path, new: Path, lines: list[bytes]) -> None:
    """The same run as version 0004 has written it."""
    engine = sa.create_engine(f"sqlite:///{old}")
    with engine.begin() as connection:
        _alembic.upgrade(connection, "0004")
    engine.dispose()
    with contextlib.closing(sqlite3.connect(old)) as database, database:
        database.execute("ATTACH ? AS new", (str(new),))
        tables = [row[0] for row in database.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
        for table in tables:
            if table != "alembic_version":
                database.execute(f"INSERT INTO main.{table} SELECT * FROM new.{table}")
        database.execute("DELETE FROM main.events")
        for ord_, (line, record) in enumerate(zip(lines, decoded(lines), strict=True), 1):
            assert isinstance(record, Record)
            t = min(record.t, 2**63 - 1)
            row = (1, ord_, t, type_of(record), record.session, record.call, line)
            database.execute("INSERT INTO main.events VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def _schema(path: Path) -> dict[str, str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, COALESCE(sql, '') FROM sqlite_master"))
