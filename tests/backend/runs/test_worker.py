"""Imports in their process: what comes out, what is left when one fails, and that it cannot do harm."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.support.databases import derived_tables, names_in, table_rows
from tests.support.importing import imported, read_here, write_lines
from tests.support.scenes import scene_lines, stamped
from tidegate.errors import BadInputError, NotFoundError, StoreError, TidegateError
from tidegate.exporters.jsonl import export_lines
from tidegate.runs import folder, messages
from tidegate.runs.library import Library
from tidegate.runs.messages import Done, Failed, Progress, Task
from tidegate.store import open_store
from tidegate_collectors.records import MemSample

REPO = Path(__file__).resolve().parents[3]
DEMO = REPO / "recordings" / "demo.jsonl"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


async def exported(directory: Path, run_id: str) -> bytes:
    library = Library(directory)
    try:
        opened = await library.open(run_id)
        return b"".join([block async for block in export_lines(opened.store.reads, run_id)])
    finally:
        await library.close()


@pytest.mark.parametrize("packing", ["plain", "gz", "zst", "zip"])
async def test_our_own_recording_comes_out_byte_by_byte(tmp_path: Path, packing: str) -> None:
    data = DEMO.read_bytes()
    source = tmp_path / f"demo.jsonl.{packing}"
    if packing == "zip":
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("demo.jsonl", data)
    else:
        source.write_bytes(PACKERS[packing](data))
    seen: list[Progress] = []
    done = await imported(source, tmp_path / "recordings", seen)
    assert (done.format, done.records) == ("tidegate", data.count(b"\n"))
    assert await exported(tmp_path / "recordings", done.run_id) == data
    assert seen[-1].bytes_done <= source.stat().st_size
    # one file, which needs no other beside it and no lock
    assert names_in(tmp_path / "recordings") == {f"{done.run_id}.db"}
    assert (tmp_path / "recordings" / f"{done.run_id}.db").stat().st_mode & 0o777 == 0o600
    assert done.report["errors_total"] == 0


async def test_a_recording_with_everything_wrong_is_stable_from_its_first_import_on(tmp_path: Path) -> None:
    lines = scene_lines()
    odd = [
        *lines[:9],
        b"broken",
        *lines[10:20],
        lines[19],
        *lines[30:],
        b'{"type":"of.tomorrow","v":1,"seq":9,"src":"z","t":5}',
    ]
    first = await read_here(write_lines(tmp_path / "a.jsonl", odd), tmp_path / "recordings")
    once = await exported(tmp_path / "recordings", first.run_id)
    report = first.report
    assert (report["errors_total"], report["duplicates"], report["gaps"]) == (1, 1, 1)
    assert report["errors"][0].startswith("a.jsonl:10:1: not JSON")
    (tmp_path / "b.jsonl").write_bytes(once)
    second = await read_here(tmp_path / "b.jsonl", tmp_path / "other")
    assert await exported(tmp_path / "other", second.run_id) == once
    assert (second.report["errors_total"], second.report["gaps"], second.report["duplicates"]) == (0, 0, 0)


async def test_the_same_tables_as_in_the_live_database(tmp_path: Path) -> None:
    """GIVEN a recording WHEN it is imported THEN its tables are those that reindex makes of its raw log."""
    from tidegate.store.reindex import reindex

    done = await read_here(write_lines(tmp_path / "r.jsonl"), tmp_path / "recordings")
    path = folder.file_of(tmp_path / "recordings", done.run_id)
    before = derived_tables(path)
    store = await open_store(path)
    await reindex(store, await store.reads.run(done.run_id))
    await store.close()
    assert derived_tables(path) == before
    (row,) = table_rows(path, "imports")
    assert row[1:3] == ("tidegate", "r.jsonl")


async def test_ids_are_unique_and_safe(tmp_path: Path) -> None:
    recordings = tmp_path / "recordings"
    source = write_lines(tmp_path / "r.jsonl")
    ids = [(await read_here(source, recordings)).run_id for _ in range(2)]
    ids.append((await read_here(source, recordings, taken=["20261130-2306-ab12-3"])).run_id)
    assert ids == ["20261130-2306-ab12", "20261130-2306-ab12-2", "20261130-2306-ab12-4"]
    hostile = stamped([MemSample(t=5, session="s", subject="runtime", anon_bytes=1)])
    meta = b'{"type":"run.meta","v":1,"seq":0,"src":"m","t":5,"run":"../../../tmp/x","title":"<script>"}'
    done = await read_here(write_lines(tmp_path / "h.jsonl", [meta, *hostile]), recordings)
    assert done.run_id == "tmp_x"
    live = b'{"type":"run.meta","v":1,"seq":0,"src":"m","t":5,"run":"live"}'
    assert (await read_here(write_lines(tmp_path / "l.jsonl", [live]), recordings)).run_id == "live-run"
    assert all(name.endswith(".db") for name in names_in(recordings))
    assert len(names_in(recordings)) == 5


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.jsonl", b"", "the file is empty"),
        ("t.csv", b"time,cpu,mem\n1,2,3\n", "CSV; what can be read is a recording of Tidegate, AgentCgroup"),
        ("t.json", b'{"traceEvents": []}', "a Chrome trace"),
        ("program", b"\x7fELF\x02\x01" + bytes(100), "a program"),
        ("db", b"SQLite format 3\0" + bytes(100), "an SQLite database"),
        ("x.gz", gzip.compress(b"hello\n"), "seems to be text"),
        ("cut.gz", gzip.compress(os.urandom(10_000))[:5000], "damaged or cut"),
        ("v2.jsonl", b'{"type":"note","v":2,"seq":0,"src":"x","t":1,"text":"x"}\n', "record version 2"),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_named_and_nothing_is_left(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInputError, match=rf"^{name}") as caught:
        await read_here(tmp_path / name, tmp_path / "recordings")
    assert message in str(caught.value)
    assert names_in(tmp_path / "recordings") == set()


async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no\.jsonl does not exist"):
        await read_here(tmp_path / "no.jsonl", tmp_path / "recordings")


@pytest.mark.parametrize("member", ["../../escaped", "/tmp/escaped-h3", "a/../../escaped"])
async def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path: Path, member: str) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("ok/resources.json", "{}")
        archive.writestr(member, "x")
    with pytest.raises(BadInputError, match="leads out of its folder"):
        await read_here(tmp_path / "t.zip", tmp_path / "deep" / "recordings")
    assert names_in(tmp_path / "deep" / "recordings") == set()
    assert names_in(tmp_path) == {"t.zip", "deep"}
    assert names_in(tmp_path / "deep") == {"recordings"}
    assert "escaped-h3" not in names_in(Path("/tmp"))


@pytest.mark.parametrize("packing", ["gz", "zst", "zip"])
async def test_a_bomb_of_no_known_format_is_refused_with_little_unpacked(tmp_path: Path, packing: str) -> None:
    data = b" " * (100 << 20)
    buffer = io.BytesIO()
    if packing == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x/resources.json", data)
    else:
        buffer.write(PACKERS[packing](data))
    (tmp_path / f"b.{packing}").write_bytes(buffer.getvalue())
    with pytest.raises(BadInputError, match="unpacks to more than 200 times its size"):
        await read_here(tmp_path / f"b.{packing}", tmp_path / "recordings")
    assert names_in(tmp_path / "recordings") == set()


async def test_an_import_that_takes_too_much_memory_ends_in_words(tmp_path: Path) -> None:
    # GIVEN a limit below what the interpreter itself takes
    lines = scene_lines(sessions=40, ticks=400)
    with pytest.raises(TidegateError) as caught:
        await imported(write_lines(tmp_path / "r.jsonl", lines), tmp_path / "recordings", memory_bytes=90 << 20)
    assert "r.jsonl takes more than 0.1 GB of memory to read" in str(caught.value)
    assert names_in(tmp_path / "recordings") == set()


async def test_an_import_goes_no_further_than_the_room_that_is_kept(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the disk is nearly full: .* are kept free for the live run"):
        await read_here(write_lines(tmp_path / "r.jsonl"), tmp_path / "recordings", keep_free_bytes=1 << 60)
    assert names_in(tmp_path / "recordings") == set()


def start(task: Task) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate.runs.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(messages.encode(task) + b"\n")
    process.stdin.flush()
    return process


def test_a_worker_ends_with_whoever_started_it_and_takes_its_files_along(tmp_path: Path) -> None:
    lines = scene_lines(sessions=4, ticks=1500)
    source = write_lines(tmp_path / "r.jsonl", lines * 6)
    recordings = tmp_path / "recordings"
    process = start(Task(source=str(source), name="r", part=str(folder.new_part(recordings))))
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert isinstance(messages.decode(process.stdout.readline()), Progress)
        assert any(name.endswith(".db.part") for name in names_in(recordings))
        process.stdin.close()  # as when the backend is killed
        assert process.wait(10) == 1
        assert names_in(recordings) == set()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_what_a_killed_worker_left_is_removed_and_what_a_running_one_has_is_not(tmp_path: Path) -> None:
    lines = scene_lines(sessions=4, ticks=1500)
    source = write_lines(tmp_path / "r.jsonl", lines * 6)
    recordings = tmp_path / "recordings"
    process = start(Task(source=str(source), name="r", part=str(folder.new_part(recordings))))
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        process.stdout.readline()
        assert folder.remove_leftovers(recordings) == 0
        assert any(name.endswith(".db.part") for name in names_in(recordings))
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert names_in(recordings) != set()
        (recordings / "upload-0011aabb.part").mkdir()
        (recordings / "upload-0011aabb.part" / "x.jsonl").write_bytes(b"x")
        (recordings / "kept.db").write_bytes(b"x")
        (recordings / "import-mine.txt").write_bytes(b"x")
        assert folder.remove_leftovers(recordings) == 2
        assert names_in(recordings) == {"kept.db", "import-mine.txt"}
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def test_two_imports_at_once_of_the_same_recording_both_get_a_name(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "r.jsonl")
    done = await asyncio.gather(*(imported(source, tmp_path / "recordings") for _ in range(3)))
    assert {one.run_id for one in done} == {f"20261130-2306-ab12{ending}" for ending in ("", "-2", "-3")}
    library = Library(tmp_path / "recordings")
    assert [row.damaged for row in await library.list()] == [False] * 3
    await library.close()


def test_messages_survive_their_way() -> None:
    for message in (
        Progress(format="x", records=3, bytes_done=5),
        Done(run_id="a", title="b", format="c", records=1, report={"a": [1]}),
        Failed(error="e", kind="BadInputError"),
    ):
        assert messages.decode(messages.encode(message)) == message
