"""Snapshots in a real database: what is read is what was taken, and what cannot be used is passed over."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench._workload import workload
from tests.backend.fold.test_properties import everything
from tests.support.databases import table_rows
from tests.support.stored_runs import folded, write_run
from tidegate.fold import State, fold, snapshot
from tidegate.store import Batch, Run, Store, open_store, snapshots
from tidegate.store.reindex import reindex
from tidegate.store.snapshots import SnapshotWriter, load, save

LINES = list(workload(6000, sessions=20))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(tmp_path / "t.db")
    yield opened
    await opened.close()


async def loaded(store: Store, run: Run, to_ord: int | None = None) -> State | None:
    state = State(track=False)
    return state if await load(store, run, state, to_ord=to_ord) else None


async def test_the_newest_at_or_before_a_record_is_read(store: Store) -> None:
    run = await write_run(store, LINES, batch=100, every=500)
    assert sorted(row[1] for row in table_rows(store.path, "snapshots")) == list(range(500, 6001, 500))
    for to_ord, expected in ((500, 500), (999, 500), (3000, 3000), (6000, 6000), (None, 6000)):
        state = await loaded(store, run, to_ord)
        assert state is not None
        assert state.ord == expected
        assert everything(state) == everything(folded(LINES, expected))
    assert await loaded(store, run, 499) is None


async def test_what_did_not_change_is_not_written_again_and_the_rest_as_a_difference(store: Store) -> None:
    run = await write_run(store, LINES, batch=100, every=100)
    rows = table_rows(store.path, "parts")
    written = sum(len(row[3]) for row in rows)
    full = SnapshotWriter(run.no).take(folded(LINES, 6000)).bytes
    count = len(table_rows(store.path, "snapshots"))
    assert count == 60
    assert written < full * count / 4
    # A call that is over is in one part that stays as it is.
    assert len([row for row in rows if row[2].startswith("c")]) < 200


async def test_a_snapshot_of_another_version_is_passed_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await write_run(store, LINES[:1000], every=500)
    monkeypatch.setattr(snapshot, "VERSION", snapshot.VERSION + 1)
    assert await loaded(store, run) is None


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE snapshots SET data = x'00'",
        "DELETE FROM parts WHERE name = 'head'",
        "DELETE FROM parts WHERE name LIKE 'c%'",
        "UPDATE parts SET data = substr(data, 1, 20)",
        "UPDATE parts SET data = x'00'",
        # Blocks of calls are opened only when one of them is named: by then it would be too late.
        "UPDATE parts SET data = CAST(substr(data, 1, length(data) - 1) || x'00' AS BLOB) WHERE name LIKE 'c%'",
    ],
)
async def test_a_damaged_snapshot_is_passed_over(store: Store, damage: str) -> None:
    run = await write_run(store, LINES[:2000], every=500)
    assert await loaded(store, run) is not None
    with sqlite3.connect(store.path) as connection:
        connection.execute(damage)
    connection.close()
    state = State(track=False)
    assert not await load(store, run, state)
    assert everything(state) == everything(State())


async def test_after_a_failure_the_next_snapshot_holds_everything(store: Store) -> None:
    run = await write_run(store, LINES[:2000])
    writer = SnapshotWriter(run.no)
    state = folded(LINES, 1000)
    await save(store, writer.take(state))
    fold(state, enumerate((record for record, _ in LINES[1000:1500]), 1001))
    writer.take(state)  # and the disk is full
    writer.failed(state)
    await save(store, writer.take(state))
    found = await loaded(store, run)
    assert found is not None
    assert everything(found) == everything(folded(LINES, 1500))


async def test_snapshots_go_on_from_one_that_was_read(store: Store) -> None:
    run = await write_run(store, LINES[:3000], batch=100, every=1000)
    state = await loaded(store, run)
    assert state is not None
    writer = SnapshotWriter(run.no, 100)
    for start in range(3000, 6000, 250):
        part = LINES[start : start + 250]
        done = await store.commit(run, Batch([record for record, _ in part], [line for _, line in part]))
        fold(state, done.records)
        await save(store, writer.take(state))
    for to_ord in (3250, 4000, 6000):
        found = await loaded(store, run, to_ord)
        assert found is not None
        assert everything(found) == everything(folded(LINES, to_ord))


async def test_reindex_makes_them_anew(store: Store) -> None:
    run = await write_run(store, LINES, every=5000)
    await snapshots.drop(store, run.no)
    await reindex(store, run)
    found = await loaded(store, run)
    assert found is not None
    assert everything(found) == everything(folded(LINES, found.ord))


async def test_a_second_snapshot_of_the_same_record_replaces_the_first(store: Store) -> None:
    run = await write_run(store, LINES[:2000])
    writer = SnapshotWriter(run.no)
    state = folded(LINES, 2000)
    for _ in range(3):
        await save(store, writer.take(state))
        found = await loaded(store, run)
        assert found is not None
        assert everything(found) == everything(state)


async def test_they_can_be_dropped(store: Store) -> None:
    run = await write_run(store, LINES[:1000], every=500)
    await snapshots.drop(store, run.no)
    assert await loaded(store, run) is None
    assert table_rows(store.path, "parts") == []
