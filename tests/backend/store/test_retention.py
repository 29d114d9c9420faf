from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backend.store.test_store import NEW, batch_of, filled
from tests.support.engine_lines import random_engine_lines
from tests.support.scenes import T0, scene_lines, stamped
from tidegate.errors import StoreError, UsageError
from tidegate.store import NewRun, open_store, schema
from tidegate.store.engines import make_shrinkable
from tidegate.store.retention import DAY_US, Limits, delete_run, give_back, over
from tidegate.store.rollups import build_rollups
from tidegate_collectors.records import MemSample


@dataclass(frozen=True)
class Row:
    ended_us: int | None
    bytes: int = 10
    deletable: bool = True
    writing: bool = False
    damaged: bool = False
    started_us: int | None = 0
    last_t_us: int | None = 0
    imported_us: int | None = None


def test_old_runs_go_first_and_the_one_being_written_never() -> None:
    now = 100 * DAY_US
    rows = [Row(now - days * DAY_US) for days in (1, 40, 5, 31)]
    writing = Row(None, 1000, deletable=False, writing=True)
    assert over([*rows, writing], Limits(max_age_days=30), now_us=now) == [rows[1], rows[3]]
    assert over([*rows, writing], Limits(max_bytes=1025), now_us=now) == [rows[1], rows[3]]
    assert over([*rows, writing], Limits(max_bytes=0), now_us=now) == [rows[1], rows[3], rows[2], rows[0]]
    assert over([*rows, writing], Limits(), now_us=now) == []
    imported = Row(now - 300 * DAY_US, imported_us=now - DAY_US)  # its age counts from the import
    assert over([imported, rows[3]], Limits(max_age_days=30), now_us=now) == [rows[3]]
    assert over([imported, rows[3]], Limits(max_bytes=10), now_us=now) == [rows[3]]
    assert over([Row(0, damaged=True)], Limits(max_age_days=1), now_us=now) == []


@given(st.lists(st.builds(Row, st.integers(0, 50), st.integers(0, 100), st.booleans())), st.integers(0, 1000))
def test_no_more_goes_than_must(rows: list[Row], most: int) -> None:
    gone = over(rows, Limits(max_bytes=most), now_us=100)
    kept = sum(row.bytes for row in rows) - sum(row.bytes for row in gone)
    assert all(row.deletable for row in gone)
    assert kept <= most or len(gone) == sum(row.deletable for row in rows)
    if gone:
        assert kept + gone[-1].bytes > most
    assert [row.ended_us for row in gone] == sorted(row.ended_us or 0 for row in gone)


def test_limits_that_make_no_sense_are_refused() -> None:
    for wrong in ({"max_age_days": -1}, {"max_age_days": float("nan")}, {"max_bytes": -1}):
        with pytest.raises(UsageError):
            Limits(**wrong)


def count(path: Path, table: str, run_no: int) -> int:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        column = "no" if table == "runs" else "run"
        found: int = connection.execute(f"SELECT COUNT(*) FROM {table} WHERE {column} = ?", (run_no,)).fetchone()[0]
        return found
    finally:
        connection.close()


async def test_nothing_of_a_run_with_an_engine_is_left(tmp_path: Path) -> None:
    lines = random_engine_lines(1, 300)
    store, run = await filled(tmp_path / "t.db", lines)
    other = await store.create_run(NewRun(id="other", started_us=T0))
    await store.commit(other, batch_of(lines))
    for name in ("engine_samples", "kv_decisions", "kv_outcomes"):
        assert count(store.path, name, run.no) > 0
    await delete_run(store, run)
    for table in schema.metadata.sorted_tables:
        if "run" in table.c:
            assert count(store.path, table.name, run.no) == 0
    assert count(store.path, "kv_outcomes", other.no) > 0
    await store.close()


async def test_a_run_is_taken_out_while_another_is_written(tmp_path: Path) -> None:
    """GIVEN a large run that ended and one that is being written WHEN the first is deleted THEN commits go on between,
    no row of it is left, nothing of the other is gone, and the file is smaller."""
    lines = stamped([MemSample(t=T0 + n, session="s", subject="runtime", anon_bytes=n) for n in range(60_000)])
    store, old = await filled(tmp_path / "t.db", lines)
    await store.end_run(old, T0 + 10**8, clean=True)
    await build_rollups(store, old)
    live = await store.create_run(NewRun(id="r2", started_us=T0))
    scene = scene_lines(sessions=4, ticks=60)
    await store.commit(live, batch_of(scene[:100]))
    await store.checkpoint()
    size = store.path.stat().st_size
    deleting = asyncio.create_task(delete_run(store, old))
    commits = 0
    for at in range(100, len(scene), 20):
        await store.commit(live, batch_of(scene[at : at + 20]))
        commits += not deleting.done()
        await asyncio.sleep(0)
    await deleting
    assert commits >= 3
    freed = await give_back(store)
    assert freed > size // 2
    for table in ("runs", *(t.name for t in schema.metadata.sorted_tables if "run" in t.c)):
        assert count(store.path, table, old.no) == 0, table
    assert [line async for line in store.reads.raw_lines(live.id)] == scene
    await store.close()
    assert store.path.stat().st_size < size // 2


async def test_a_database_of_an_earlier_version_is_rewritten_once(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", scene_lines())
    await store.close()
    connection = sqlite3.connect(store.path)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA auto_vacuum = NONE")
    connection.execute("VACUUM")
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    connection.close()
    store = await open_store(store.path)
    assert await store.reads.driver_all("PRAGMA auto_vacuum", ()) == [(2,)]
    assert [line async for line in store.reads.raw_lines(run.id)] == scene_lines()
    assert store._writer is not None
    assert await make_shrinkable(store._writer, store.path, most_bytes=0)
    await store.close()


async def test_rollups_of_a_run_that_goes_meanwhile_are_not_left_behind(tmp_path: Path) -> None:
    lines = stamped(
        [MemSample(t=T0 + n * 100_000, session=f"s{n % 8}", subject="runtime", anon_bytes=n) for n in range(20_000)]
    )
    store, run = await filled(tmp_path / "t.db", lines)
    await store.end_run(run, T0 + 3 * 10**9, clean=True)
    building = asyncio.create_task(build_rollups(store, run))
    await asyncio.sleep(0.05)
    await delete_run(store, run)
    with contextlib.suppress(StoreError):
        await building
    assert count(store.path, "rollups", run.no) == count(store.path, "rollup_states", run.no) == 0
    with pytest.raises(StoreError, match="was deleted"):
        await build_rollups(store, run)
    await store.close()


async def test_a_deleted_id_can_be_used_again(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", scene_lines())
    assert (await store.reads.sessions(run=run.id)) != []
    await store.end_run(run, T0 + 10, clean=True)
    await delete_run(store, run)
    again = await store.create_run(NEW)
    assert again.id == run.id
    assert await store.reads.sessions(run=again.id) == []
    await store.close()
