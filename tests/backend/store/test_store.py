from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.databases import derived_tables, table_rows
from tests.support.engine_lines import hostile_engine_lines, random_engine_lines
from tests.support.scenes import T0, decoded, scene_lines, stamped
from tidegate.errors import NotFoundError, StoreError
from tidegate.store import Batch, NewRun, Run, Store, StoreFullError, open_store
from tidegate.store.reindex import reindex
from tidegate_collectors.records import CallEnd, CallStart, MemSample, Record, SessionEnd, SessionStart

NEW = NewRun(id="r1", started_us=T0, title="t", host="box", boot_id="boot-1")


def batch_of(lines: list[bytes]) -> Batch:
    return Batch(decoded(lines), list(lines))


async def filled(path: Path, lines: list[bytes], cuts: list[int] | None = None) -> tuple[Store, Run]:
    store = await open_store(path)
    run = await store.create_run(NEW)
    for start, end in pairwise([0, *(cuts or []), len(lines)]):
        await store.commit(run, batch_of(lines[start:end]))
    return store, run


async def test_lines_come_out_as_they_went_in_and_tables_hold_every_record(tmp_path: Path) -> None:
    lines = scene_lines()
    store, run = await filled(tmp_path / "t.db", lines, [5, 6, 50])
    assert [line async for line in store.reads.raw_lines(run.id)] == lines
    counts = {name: len(rows) for name, rows in derived_tables(store.path).items()}
    samples = counts["mem"] + counts["sched"] + counts["psi"] + counts["host_samples"]
    assert samples + counts["events"] == len(lines) == run.last_ord
    assert counts["sessions"] == 2
    assert counts["calls"] == 4
    assert table_rows(store.path, "sources") == [(run.no, "kernel-1", len(lines) - 1, run.last_t, len(lines))]
    assert (await store.reads.sizes()).rows == len(lines)
    await store.close()
    assert not (tmp_path / "t.db-wal").exists()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=230), max_size=12))
def test_any_batching_of_the_same_records_gives_the_same_tables(cuts: list[int]) -> None:
    lines = scene_lines(sessions=3, ticks=12)
    # the same ids started, ended and started again, which is where grouping could go wrong
    again: list[Record] = [
        CallStart(t=T0 + 1, session="s0", call="c1", tool="second"),
        SessionEnd(t=T0 + 2, session="s0", reason="killed", signal=9),
        CallEnd(t=T0 + 3, session="s0", call="c1", exit_code=7),
        SessionStart(t=T0 + 4, session="s0", title="again"),
        CallStart(t=T0 + 5, session="s0", call="c1", tool="third"),
        MemSample(t=T0 + 5, session="never started", subject="runtime", anon_bytes=1),
    ]
    lines = lines + stamped(again, src="other-1")

    async def tables(cuts: list[int]) -> dict[str, list[tuple[object, ...]]]:
        with tempfile.TemporaryDirectory() as directory:
            store, _ = await filled(Path(directory) / "t.db", lines, cuts)
            await store.close()
            return derived_tables(store.path)

    cuts = sorted(min(cut, len(lines)) for cut in cuts)
    assert asyncio.run(tables(cuts)) == asyncio.run(tables([]))


async def test_reindex_gives_the_same_tables(tmp_path: Path) -> None:
    lines = scene_lines(sessions=3)
    huge = (
        b'{"type":"mem.sample","v":1,"seq":0,"src":"x","t":5,"session":"s0","subject":"call","anon_bytes":%d}' % 10**30
    )
    unknown = b'{"type":"of.tomorrow","v":1,"seq":1,"src":"x","t":6,"session":"s0","deep":{"a":[1]}}'
    store, run = await filled(tmp_path / "t.db", [*lines, huge, unknown], [1, 7, 40])
    before = derived_tables(store.path)
    async with store.begin() as connection:
        for name in before:
            await connection.exec_driver_sql(f"DELETE FROM {name}")
    assert derived_tables(store.path) != before
    assert await reindex(store, run) == len(lines) + 2
    assert derived_tables(store.path) == before
    # and the run can be written on, with the same subjects
    await store.commit(
        run, batch_of(stamped([MemSample(t=T0, session="s0", subject="runtime", anon_bytes=5)], src="y"))
    )
    assert len(table_rows(store.path, "subjects")) == len(before["subjects"])
    await store.close()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), max_size=8))
def test_any_batching_of_the_engine_plane_and_a_reindex_give_the_same_tables(seed: int, cuts: list[int]) -> None:
    """GIVEN decisions, outcomes and samples in no order, hostile ones among them WHEN they come in any batches THEN
    each outcome finds the decision that it would have found in one batch, and after a reindex too."""
    lines = (
        random_engine_lines(seed, 50)
        + hostile_engine_lines()
        + stamped([MemSample(t=T0, subject="host", anon_bytes=1)])
    )

    async def tables(cuts: list[int]) -> list[dict[str, list[tuple[object, ...]]]]:
        with tempfile.TemporaryDirectory() as directory:
            store, run = await filled(Path(directory) / "t.db", lines, cuts)
            before = derived_tables(store.path)
            await reindex(store, run)
            await store.close()
            return [before, derived_tables(store.path)]

    before, after = asyncio.run(tables(sorted(min(cut, len(lines)) for cut in cuts)))
    assert before == after == asyncio.run(tables([]))[0]
    counts = {name: len(rows) for name, rows in before.items()}
    assert counts["events"] + counts["engine_samples"] + counts["mem"] == len(lines)
    assert counts["kv_decisions"] + counts["kv_outcomes"] <= counts["events"]
    assert counts["kv_decisions"] >= 2


async def test_a_number_no_database_holds_is_cut_in_the_table_and_kept_in_the_log(tmp_path: Path) -> None:
    line = (
        b'{"type":"mem.sample","v":1,"seq":0,"src":"x","t":5,"session":"s","subject":"call","anon_bytes":%d}' % 10**30
    )
    store, run = await filled(tmp_path / "t.db", [line])
    assert [raw async for raw in store.reads.raw_lines(run.id)] == [line]
    assert [row[4] for row in table_rows(store.path, "mem")] == [2**63 - 1]
    await store.close()


async def test_a_run_is_written_on_after_a_restart(tmp_path: Path) -> None:
    lines = scene_lines(end=False)
    store, run = await filled(tmp_path / "t.db", lines[:60])
    await store.close()
    store = await open_store(tmp_path / "t.db")
    again, resumed = await store.resume_or_create_live(NEW)
    assert resumed
    assert (again.id, again.last_ord) == (run.id, 60)
    await store.commit(again, batch_of(lines[60:]))
    assert [line async for line in store.reads.raw_lines(run.id)] == lines
    await store.close()
    whole = derived_tables(tmp_path / "t.db")
    store, _ = await filled(tmp_path / "u.db", lines)
    await store.close()
    assert whole == derived_tables(tmp_path / "u.db")


async def test_only_the_newest_open_run_of_the_same_boot_is_resumed(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "t.db")
    first = await store.create_run(NEW)
    other = NewRun(id="r2", started_us=T0 + 5, boot_id="boot-2")
    second, resumed = await store.resume_or_create_live(other)
    assert not resumed
    assert (await store.reads.run(first.id)).ended_us is not None
    assert not (await store.reads.run(first.id)).clean
    await store.end_run(second, T0 + 9, clean=True)
    third, resumed = await store.resume_or_create_live(NewRun(id="r2", started_us=T0 + 10, boot_id="boot-2"))
    assert not resumed
    assert third.id == "r2-2"
    with pytest.raises(StoreError, match="has ended"):
        await store.commit(second, batch_of(scene_lines()))
    await store.close()


async def test_small_batches_share_chunks(tmp_path: Path) -> None:
    lines = scene_lines(sessions=4, ticks=40)
    store, run = await filled(tmp_path / "t.db", lines, list(range(1, len(lines))))
    sizes = await store.reads.sizes()
    assert sizes.chunks <= 1 + sum(map(len, lines)) // (128 * 1024) + 1
    assert [line async for line in store.reads.raw_lines(run.id)] == lines
    assert [ordinal async for b in store.reads.records(run.id, from_ord=7, to_ord=9) for ordinal, _ in b] == [7, 8, 9]
    await store.close()


async def test_a_full_database_is_said_to_be_full_and_the_same_batch_can_be_committed_later(tmp_path: Path) -> None:
    lines = scene_lines(sessions=6, ticks=200)
    store, run = await filled(tmp_path / "t.db", lines[:10])
    async with store.begin() as connection:
        pages = (await connection.exec_driver_sql("PRAGMA page_count")).scalar()
        await connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    batch = batch_of(lines[10:])
    with pytest.raises(StoreFullError, match="full"):
        await store.commit(run, batch)
    assert run.last_ord == 10
    assert [line async for line in store.reads.raw_lines(run.id)] == lines[:10]
    async with store.begin() as connection:
        await connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert (await store.commit(run, batch)).first_ord == 11
    assert [line async for line in store.reads.raw_lines(run.id)] == lines
    await store.close()
    tables = derived_tables(tmp_path / "t.db")
    other, _ = await filled(tmp_path / "u.db", lines)
    await other.close()
    assert tables == derived_tables(tmp_path / "u.db")


async def test_what_cannot_be_opened_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        await open_store(tmp_path / "no.db", read_only=True)
    (tmp_path / "text.db").write_text("no database " * 1000)
    with pytest.raises(StoreError, match="not a Tidegate database"):
        await open_store(tmp_path / "text.db")
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE things (a)")
    connection.close()
    with pytest.raises(StoreError, match="another program"):
        await open_store(tmp_path / "other.db")
    store, _ = await filled(tmp_path / "new.db", [])
    async with store.begin() as transaction:
        await transaction.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    await store.close()
    for read_only in (False, True):
        with pytest.raises(StoreError, match="newer Tidegate"):
            await open_store(tmp_path / "new.db", read_only=read_only)


async def test_a_second_writer_is_refused_and_readers_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "a ?#%name.db"
    store, run = await filled(path, scene_lines())
    with pytest.raises(StoreError, match="being written by process"):
        await open_store(path)
    reader = await open_store(path, read_only=True)
    assert len([line async for line in reader.reads.raw_lines(run.id)]) == run.last_ord
    with pytest.raises(StoreError, match="reading only"):
        await reader.create_run(NEW)
    await reader.close()
    await store.close()
    assert path.stat().st_mode & 0o077 == 0
    again = await open_store(path)
    await again.close()


async def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", scene_lines())
    async with store.begin() as connection:
        await connection.exec_driver_sql("UPDATE chunks SET data = x'00010203'")
    with pytest.raises(StoreError, match="chunk 1: a damaged chunk"):
        [line async for line in store.reads.raw_lines(run.id)]
    with pytest.raises(StoreError, match="chunk 1"):
        await reindex(store, run)
    assert len(table_rows(store.path, "mem")) > 0
    with pytest.raises(NotFoundError):
        await store.reads.run("../x")
    await store.close()


async def test_what_is_committed_is_known_to_be_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    lines = scene_lines()
    store, run = await filled(tmp_path / "t.db", lines[:10])
    task = asyncio.create_task(store.commit(run, batch_of(lines[10:50])))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.last_ord in (10, 50)
    await store.commit(run, batch_of(lines[run.last_ord :]))
    assert [line async for line in store.reads.raw_lines(run.id)] == lines
    await store.close()
    whole = derived_tables(tmp_path / "t.db")
    other, _ = await filled(tmp_path / "u.db", lines)
    await other.close()
    assert whole == derived_tables(tmp_path / "u.db")
