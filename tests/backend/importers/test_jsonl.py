from __future__ import annotations

from pathlib import Path

from tests.support.databases import derived_tables
from tests.support.scenes import scene_lines
from tidegate.importers.jsonl import import_recording
from tidegate.store import open_store


async def test_a_recording_becomes_a_run_and_a_second_import_another(tmp_path: Path) -> None:
    lines = scene_lines()
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    store = await open_store(tmp_path / "t.db")
    first, report = await import_recording(path, store)
    second, _ = await import_recording(path, store)
    named, _ = await import_recording(path, store, run_id="mine")
    assert (first.id, second.id, named.id) == ("20261130-2306-ab12", "20261130-2306-ab12-2", "mine")
    assert report.records == len(lines)
    for run in (first, second, named):
        assert [line async for line in store.reads.raw_lines(run.id)] == lines
        assert len(await store.reads.sessions(run=run.id)) == 2
    await store.close()
    rows = derived_tables(tmp_path / "t.db")["mem"]
    assert len({row[1:] for row in rows}) * 3 == len(rows)
