"""Which runs there are, and opening, renaming and deleting them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.databases import names_in, table_rows
from tests.support.importing import read_here, write_lines
from tests.support.scenes import scene_lines
from tidegate.errors import NotFoundError, StoreError, UsageError
from tidegate.ingest.recording import load
from tidegate.runs import library as library_module
from tidegate.runs.library import Library, RunBusyError
from tidegate.store import NewRun, Run, Store, open_store
from tidegate.store.migrations import _alembic

ID = "20261130-2306-ab12"


async def recordings(tmp_path: Path, count: int = 1) -> Path:
    source = write_lines(tmp_path / "r.jsonl")
    for _ in range(count):
        await read_here(source, tmp_path / "recordings")
    return tmp_path / "recordings"


@asynccontextmanager
async def live(tmp_path: Path) -> AsyncIterator[tuple[Library, Store, Run, Run]]:
    """A library over a live database with a past run and one that is being written, and one recording."""
    directory = await recordings(tmp_path)
    store = await open_store(tmp_path / "tidegate.db")
    past, _ = await load(write_lines(tmp_path / "past.jsonl"), store, choose_id=lambda _: "past")
    writing = await store.create_run(NewRun(id="now", started_us=2_000_000_000_000_000, title="now", host="box"))
    library = Library(directory, live=store, writing=writing, current="now")
    try:
        yield library, store, past, writing
    finally:
        await library.close()
        await store.close()


async def test_runs_of_all_places_are_listed_the_one_being_written_first(tmp_path: Path) -> None:
    async with live(tmp_path) as (library, _, past, _writing):
        rows = await library.list()
        assert [row.id for row in rows] == ["now", "past", ID]
        now, old, recorded = rows
        assert (now.writing, now.current, now.deletable, now.kind) == (True, True, False, "live")
        assert "being written" in (now.reason or "")
        assert (old.writing, old.deletable, old.sessions, old.records) == (False, True, 2, past.last_ord)
        assert (recorded.kind, recorded.host, recorded.title) == ("recorded", "box", "a scene")
        assert (recorded.records, recorded.sessions, recorded.clean) == (len(scene_lines()), 2, True)
        assert recorded.bytes == (tmp_path / "recordings" / f"{ID}.db").stat().st_size
        assert recorded.ended_us == recorded.last_t_us


async def test_opening_reads_from_the_right_place_and_keeps_it_open(tmp_path: Path) -> None:
    async with live(tmp_path) as (library, store, _, writing):
        opened = await library.open(ID)
        assert [line async for line in opened.store.reads.raw_lines(ID)] == scene_lines()
        assert (await library.open(ID)) is opened
        assert opened.store is not store
        with pytest.raises(StoreError, match="reading only"):
            async with opened.store.begin():
                pass
        assert (await library.open("now")).run is writing
        assert (await library.open("past")).store is store
        for unknown in ("nothing", "../tidegate", "", "a/b", "x" * 1000, "now\0"):
            with pytest.raises(NotFoundError, match="no run"):
                await library.open(unknown)
    assert names_in(tmp_path / "recordings") == {f"{ID}.db"}


async def test_only_so_many_are_kept_open_and_what_is_held_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "MAX_OPEN", 2)
    library = Library(await recordings(tmp_path, 4))
    ids = [row.id for row in await library.list()]
    async with library.hold(ids[0]) as held:
        for run_id in ids[1:]:
            await library.open(run_id)
        assert (await library.open(ids[0])) is held
        assert len(library._open) == 2
        assert [line async for line in held.store.reads.raw_lines(ids[0])] == scene_lines()
    for run_id in ids[1:]:
        await library.open(run_id)
    assert (await library.open(ids[0])) is not held
    await library.close()


async def test_files_that_are_none_are_listed_with_the_reason_and_can_be_deleted(tmp_path: Path) -> None:
    directory = await recordings(tmp_path)
    (directory / "text.db").write_text("hello " * 1000)
    (directory / "empty.db").write_bytes(b"")
    connection = sqlite3.connect(directory / "theirs.db")
    connection.execute("CREATE TABLE x (y)")
    connection.close()
    data = (directory / f"{ID}.db").read_bytes()
    (directory / "cut.db").write_bytes(data[: len(data) // 2])
    (directory / "copied.db").write_bytes(data)
    (directory / "a <b>\n.db").write_bytes(data)
    (directory / "link.db").symlink_to(directory / f"{ID}.db")
    (directory / "notes.txt").write_text("no matter")
    library = Library(directory)
    rows = {row.id: row for row in await library.list()}
    assert set(rows) == {
        ID, "text.db", "empty.db", "theirs.db", "cut.db", "copied.db", "a <b>\n.db", "link.db",
    }  # fmt: skip
    assert [row.id for row in rows.values() if not row.damaged] == [ID]
    assert all(row.reason for row in rows.values() if row.damaged)
    assert "not a Tidegate database" in (rows["text.db"].reason or "")
    assert f"holds run '{ID}'; rename it" in (rows["copied.db"].reason or "")
    with pytest.raises(NotFoundError):
        await library.open("text.db")
    for name in set(rows) - {ID}:
        await library.delete(name)
    assert names_in(directory) == {f"{ID}.db", "notes.txt"}
    await library.close()


async def test_a_file_that_is_put_there_or_replaced_is_seen_at_once(tmp_path: Path) -> None:
    directory = await recordings(tmp_path)
    library = Library(directory)
    assert [row.id for row in await library.list()] == [ID]
    first = await library.open(ID)
    await read_here(tmp_path / "r.jsonl", directory)
    assert [row.id for row in await library.list()] == [f"{ID}-2", ID]
    path = directory / f"{ID}.db"
    other = directory / "other"
    shutil.copy(path, other)
    other.replace(path)
    assert (await library.open(ID)) is not first
    path.unlink()
    with pytest.raises(NotFoundError):
        await library.open(ID)
    assert [row.id for row in await library.list()] == [f"{ID}-2"]
    await library.close()


async def test_renaming_changes_the_title_everywhere(tmp_path: Path) -> None:
    async with live(tmp_path) as (library, store, _, writing):
        opened = await library.open(ID)
        for run_id, title in ((ID, "the night"), ("past", "the day"), ("now", "this one")):
            await library.rename(run_id, f"  {title}\n")
            assert (await library.find(run_id)).title == title
        assert (opened.run.title, writing.title) == ("the night", "this one")
        for bad in ("", " \n ", "x" * 201):
            with pytest.raises(UsageError, match="1 to 200 characters"):
                await library.rename(ID, bad)
        await library.rename(ID, "<b>\x00\x1b[2J</b>")
        assert (await library.find(ID)).title == "<b> [2J</b>"
        assert [line async for line in opened.store.reads.raw_lines(ID)] == scene_lines()
        with pytest.raises(NotFoundError):
            await library.rename("nothing", "x")
        assert {run.title for run in await store.reads.runs()} == {"the day", "this one"}
    assert names_in(tmp_path / "recordings") == {f"{ID}.db"}


async def test_deleting(tmp_path: Path) -> None:
    async with live(tmp_path) as (library, store, _, _writing):
        with pytest.raises(RunBusyError, match="being written"):
            await library.delete("now")
        opened = await library.open(ID)
        await library.delete(ID)
        with pytest.raises(NotFoundError):
            await library.open(ID)
        assert names_in(tmp_path / "recordings") == set()
        await opened.store.close()
        await library.delete("past")
        assert [row.id for row in await library.list()] == ["now"]
        with pytest.raises(NotFoundError):
            await library.delete("past")
        with pytest.raises(NotFoundError):
            await library.delete("../tidegate")
        for table in ("chunks", "mem", "events", "sessions", "calls", "sources", "subjects"):
            assert table_rows(store.path, table) == []
        assert len(table_rows(store.path, "runs")) == 1


async def test_what_a_backend_was_started_to_show_is_not_deleted(tmp_path: Path) -> None:
    library = Library(await recordings(tmp_path), current=ID)
    (row,) = await library.list()
    assert (row.current, row.deletable) == (True, False)
    with pytest.raises(RunBusyError, match="started to show"):
        await library.delete(ID)
    await library.close()


async def test_two_requests_at_once_open_it_once(tmp_path: Path) -> None:
    library = Library(await recordings(tmp_path))
    opened = await asyncio.gather(*(library.open(ID) for _ in range(10)))
    assert len({id(one) for one in opened}) == 1
    await library.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
async def test_a_recording_opens_where_nothing_can_be_written(tmp_path: Path) -> None:
    """GIVEN a folder that belongs to somebody else WHEN it is read without any right to write THEN it opens."""
    import subprocess
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "recordings"
        await read_here(write_lines(tmp_path / "r.jsonl"), directory)
        for path, mode in ((Path(place), 0o755), (directory, 0o755), (directory / f"{ID}.db", 0o644)):
            path.chmod(mode)
        program = (
            "import os, sqlite3, sys; os.setgid(65534); os.setuid(65534)\n"
            "c = sqlite3.connect('file:' + sys.argv[1] + '?mode=ro', uri=True)\n"
            "print(c.execute('SELECT id FROM runs').fetchall()[0][0])"
        )
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", program, str(directory / f"{ID}.db")],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout.strip() == ID, done.stderr


async def test_a_recording_of_an_older_tidegate_is_brought_to_this_one(tmp_path: Path) -> None:
    """GIVEN a recording of the version before WHEN it is listed THEN it is migrated and opens, still one file."""
    directory = tmp_path / "recordings"
    directory.mkdir()
    path = directory / f"{ID}.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as migrating:
        _alembic.upgrade(migrating, "0002")
    engine.dispose()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "INSERT INTO runs (no, id, title, source, host, boot_id, started_us, ended_us, clean, last_ord) "
            "VALUES (1, ?, 'old', 'recorded', 'box', '', 5, 6, 1, 0)",
            (ID,),
        )
    connection.close()
    library = Library(directory)
    (row,) = await library.list()
    assert (row.id, row.title, row.damaged) == (ID, "old", False), row.reason
    assert (await library.open(ID)).run.ended_us == 6
    await library.close()
    assert names_in(directory) == {f"{ID}.db"}
