from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.backend.store.test_store import batch_of, filled
from tests.support.databases import names_in
from tests.support.scenes import T0, scene_lines, stamped
from tidegate.commands import main
from tidegate.errors import StoreError, UsageError
from tidegate.store import backup as backup_module
from tidegate.store import open_store
from tidegate.store.backup import backup
from tidegate_collectors.records import MemSample


async def test_a_copy_made_while_records_come_is_the_run_at_one_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a store that is written all the time WHEN it is copied in many small steps THEN writing goes on, and the
    copy holds the run as it was when the copy began."""
    lines = stamped([MemSample(t=T0 + n, session="s", subject="runtime", anon_bytes=n) for n in range(40_000)])
    store, run = await filled(tmp_path / "t.db", lines[:20_000])
    monkeypatch.setattr(backup_module, "PAGES_A_STEP", 16)
    began, steps = run.last_ord, 0
    loop = asyncio.get_running_loop()

    def progress(_done: int, _total: int) -> None:
        nonlocal steps
        steps += 1
        at = run.last_ord
        if at < len(lines):
            asyncio.run_coroutine_threadsafe(store.commit(run, batch_of(lines[at : at + 500])), loop).result(10)

    size = await asyncio.to_thread(backup, store.path, tmp_path / "copy.db", progress=progress)
    assert steps > 10
    assert run.last_ord > began + 4000
    await store.close()
    assert names_in(tmp_path) == {"t.db", "t.db.lock", "copy.db"}
    assert (tmp_path / "copy.db").stat().st_size == size
    assert (tmp_path / "copy.db").stat().st_mode & 0o077 == 0
    copy = await open_store(tmp_path / "copy.db", read_only=True)
    assert [line async for line in copy.reads.raw_lines(run.id)] == lines[:began]
    await copy.close()


async def test_what_is_there_is_replaced_only_when_that_is_wanted(tmp_path: Path) -> None:
    store, _ = await filled(tmp_path / "t.db", scene_lines())
    await store.close()
    target = tmp_path / "copy.db"
    target.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        backup(store.path, target)
    assert target.read_text() == "mine"
    backup(store.path, target, force=True)
    assert sqlite3.connect(target).execute("SELECT COUNT(*) FROM runs").fetchone() == (1,)
    with pytest.raises(UsageError, match="the database itself"):
        backup(store.path, store.path, force=True)
    with pytest.raises(StoreError, match="does not exist"):
        backup(tmp_path / "no.db", tmp_path / "copy2.db")
    with pytest.raises(UsageError, match="cannot be written"):
        backup(store.path, tmp_path / "no" / "copy.db")


async def test_what_a_killed_backend_left_beside_the_last_copy_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    served, _ = await filled(tmp_path / "served.db", scene_lines(sessions=1))
    for suffix in ("", "-wal"):  # as they lie there when the process is gone
        shutil.copy(f"{served.path}{suffix}", f"{target}{suffix}")
    await served.close()
    assert target.with_name("copy.db-wal").stat().st_size > 0
    store, run = await filled(tmp_path / "t.db", scene_lines())
    backup(store.path, target, force=True)
    await store.close()
    copy = await open_store(target, read_only=True)
    assert [line async for line in copy.reads.raw_lines(run.id)] == scene_lines()
    await copy.close()


async def test_a_copy_that_a_backend_serves_is_not_replaced(tmp_path: Path) -> None:
    served, _ = await filled(tmp_path / "copy.db", scene_lines(sessions=1))
    store, _ = await filled(tmp_path / "t.db", scene_lines())
    with pytest.raises(StoreError, match="being written"):
        backup(store.path, served.path, force=True)
    await store.close()
    await served.close()


async def test_a_damaged_database_gives_no_copy(tmp_path: Path) -> None:
    lines = stamped([MemSample(t=T0 + n, session="s", subject="runtime", anon_bytes=n) for n in range(5000)])
    store, _ = await filled(tmp_path / "t.db", lines)
    await store.close()
    data = bytearray(store.path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = bytes(range(256)) * 16
    store.path.write_bytes(data)
    with pytest.raises(StoreError, match=r"damaged|cannot be read|malformed"):
        backup(store.path, tmp_path / "copy.db")
    assert not any("copy" in name for name in names_in(tmp_path))


async def test_the_command_copies_a_whole_state_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    store, run = await filled(state / "tidegate.db", scene_lines())
    other, _ = await filled(state / "recordings" / "r.db", scene_lines())
    await other.close()
    code = await asyncio.to_thread(main, ["backup", "--state-dir", str(state), "-o", f"{tmp_path}/out/"])
    assert code == 0
    await store.close()
    said = capsys.readouterr().err
    assert "tidegate.db" in said and "recordings/r.db" in said
    for name in ("tidegate.db", "recordings/r.db"):
        copy = await open_store(tmp_path / "out" / name, read_only=True)
        assert [line async for line in copy.reads.raw_lines(run.id)] == scene_lines()
        await copy.close()
