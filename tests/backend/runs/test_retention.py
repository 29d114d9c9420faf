"""Limits on all runs of a state directory: seen first, then applied; by the backend, the API and the command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.backend import backend
from tests.support.databases import names_in
from tests.support.importing import read_here, write_lines
from tidegate.commands import main
from tidegate.errors import StoreError
from tidegate.ingest.recording import load
from tidegate.runs import history
from tidegate.runs.library import Library
from tidegate.runs.retention import apply, keep_limits, preview
from tidegate.store import NewRun, Store, open_store
from tidegate.store.retention import Limits
from tidegate_collectors.records import Note, Record

ID = "20261130-2306-ab12"


@asynccontextmanager
async def runs(tmp_path: Path) -> AsyncIterator[tuple[Library, Store]]:
    """A past run and the one being written in the live database, and a recording; all of them long ago."""
    source = write_lines(tmp_path / "r.jsonl")
    await read_here(source, tmp_path / "state" / "recordings")
    store = await open_store(tmp_path / "state" / "tidegate.db")
    past, _ = await load(source, store, choose_id=lambda _: "past")
    assert past.last_t is not None
    writing = await store.create_run(NewRun(id="now", started_us=2_000_000_000_000_000))
    library = Library(tmp_path / "state" / "recordings", live=store, writing=writing, current="now")
    try:
        yield library, store
    finally:
        await library.close()
        await store.close()


async def test_what_the_preview_shows_goes_and_nothing_else(tmp_path: Path) -> None:
    async with runs(tmp_path) as (library, store):
        limits = Limits(max_bytes=0)
        found = await preview(library, limits)
        assert {row.id for row in found.runs} == {"past", ID}
        assert (found.kept_runs, found.bytes) == (1, sum(row.bytes for row in found.runs))
        assert await preview(library, limits) == found  # looking removes nothing
        went = await apply(library, store, limits)
        assert [row.id for row in went.runs] == [row.id for row in found.runs]
        assert [row.id for row in await library.list()] == ["now"]
        assert names_in(tmp_path / "state" / "recordings") == set()
        assert (await apply(library, store, limits)).runs == []


async def test_the_backend_notes_what_went(tmp_path: Path) -> None:
    async with runs(tmp_path) as (library, store):
        said: list[Record] = []
        done = asyncio.Event()

        def record(one: Record) -> None:
            said.append(one)
            done.set()

        task = asyncio.create_task(keep_limits(library, store, Limits(max_bytes=1), record, first_s=0.0, every_s=0.01))
        await asyncio.wait_for(done.wait(), 20)
        await asyncio.sleep(0.1)
        task.cancel()
        (note,) = said  # later rounds found nothing
        assert isinstance(note, Note)
        assert note.text.startswith("2 old runs were removed")
        assert "past" in note.text and ID in note.text
        await keep_limits(library, store, Limits(), record)  # without a limit there is nothing to keep


async def test_a_fresh_import_of_an_old_recording_is_kept(tmp_path: Path) -> None:
    async with runs(tmp_path) as (library, store):
        row = await library.find(ID)
        assert row.imported_us is not None
        limits = Limits(max_age_days=1)
        later = await preview(library, limits, now_us=row.imported_us + 86_400_000_000 + 1)
        assert ID in {row.id for row in later.runs}
        assert ID not in {row.id for row in (await preview(library, limits, now_us=row.imported_us)).runs}
        # and nothing at all goes right after a start
        task = asyncio.create_task(keep_limits(library, store, Limits(max_bytes=1), lambda _: None))
        await asyncio.sleep(0.1)
        task.cancel()
        assert len(await library.list()) == 3


async def test_the_backend_spares_what_somebody_looks_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with runs(tmp_path) as (library, store):
        for run_id in ("past", ID):
            await (await library.open(run_id)).history.extent()
        limits = Limits(max_bytes=0)
        went = await apply(library, store, limits, spare_looked_at=True)
        assert (went.runs, went.kept_runs) == ([], 3)
        monkeypatch.setattr(history, "LOOKED_AT_S", 0.0)
        went = await apply(library, store, limits, spare_looked_at=True)
        assert {row.id for row in went.runs} == {"past", ID}


async def test_a_run_that_cannot_be_deleted_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs(tmp_path) as (library, store):
        limits = Limits(max_bytes=0)
        first, second = (row.id for row in (await preview(library, limits)).runs)
        real = library.delete

        async def delete(run_id: str) -> None:
            if run_id == first:
                raise StoreError("this one cannot be removed")
            await real(run_id)

        monkeypatch.setattr(library, "delete", delete)
        went = await apply(library, store, limits)
        assert [row.id for row in went.runs] == [second]
        assert (went.kept_runs, went.bytes) == (2, went.runs[0].bytes)
        assert "this one cannot be removed" in caplog.text
        with pytest.raises(StoreError, match="cannot be removed"):
            await apply(library, store, limits)


async def test_the_api_previews_and_applies(tmp_path: Path) -> None:
    async with backend(tmp_path) as web:
        assert web.state.library is not None
        await read_here(write_lines(tmp_path / "r.jsonl"), web.state.library.directory)
        body = await web.json("/api/retention", max_bytes=0)
        assert [row["id"] for row in body["runs"]] == [ID]
        assert body["bytes"] == body["runs"][0]["bytes"] > 0
        assert body["kept"]["runs"] == 1
        assert (await web.json("/api/retention"))["runs"] == []
        for wrong, code in (({}, 400), ({"max_bytes": -1}, 422), ({"max_age_days": "x"}, 422)):
            assert (await web.client.post("/api/retention", json=wrong)).status_code in (code, 400)
        assert (await web.client.get("/api/retention", params={"max_age_days": "nan"})).status_code in (400, 422)
        done = await web.client.post("/api/retention", json={"max_bytes": 0})
        assert [row["id"] for row in done.json()["runs"]] == [ID]
        assert ID not in {row["id"] for row in (await web.json("/api/runs"))["runs"]}
        foreign = await web.client.post(
            "/api/retention", json={"max_bytes": 0}, headers={"sec-fetch-site": "cross-site"}
        )
        assert foreign.status_code == 403


async def test_the_command_shows_asks_and_deletes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs(tmp_path) as (_, store):
        await store.end_run(await store.reads.run("now"), 2_000_000_000_000_001, clean=True)
    state = ["--state-dir", str(tmp_path / "state")]

    async def prune(*arguments: str) -> int:
        return await asyncio.to_thread(main, ["prune", *arguments, *state])

    assert await prune() == 2
    assert await prune("--older-than", "soon") == 2
    assert await prune("--max-size", "0") == 2  # nobody can be asked
    shown = capsys.readouterr()
    assert "2 runs would go" in shown.out
    assert "--yes" in shown.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert await prune("--max-size", "0") == 1
    assert "nothing was deleted" in capsys.readouterr().out
    assert await prune("--max-size", "0", "--yes") == 0
    assert "2 runs deleted" in capsys.readouterr().out
    assert await prune("--max-size", "0", "--yes") == 0
    assert "0 runs would go" in capsys.readouterr().out
    assert await prune("--compact") == 0
    assert "given back" in capsys.readouterr().out


async def test_beside_a_running_backend_the_command_names_the_runs_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await open_store(tmp_path / "tidegate.db")  # as a backend does
    arguments = ["prune", "--max-size", "1G", "--yes", "--state-dir", str(tmp_path)]
    assert await asyncio.to_thread(main, arguments) == 6
    assert "Runs page" in capsys.readouterr().err
    await store.close()
