"""Imports under way: received, one after the other, ended from outside, and nothing left of what failed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.databases import names_in
from tests.support.importing import over, until
from tests.support.scenes import scene_lines
from tidegate.errors import NotFoundError, UnavailableError, UsageError
from tidegate.runs import jobs as jobs_module
from tidegate.runs.jobs import Job, Jobs, safe_name
from tidegate.runs.library import Library

DATA = b"".join(line + b"\n" for line in scene_lines())
LARGE = b"".join(line + b"\n" for line in scene_lines(sessions=8, ticks=2000, end=False)) * 3


async def chunks(data: bytes, size: int = 1 << 16) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@asynccontextmanager
async def running(tmp_path: Path, max_upload_bytes: int = 1 << 30) -> AsyncIterator[tuple[Jobs, Library, Path]]:
    directory = tmp_path / "recordings"
    library = Library(directory)
    jobs = Jobs(directory, library.ids, max_upload_bytes=max_upload_bytes)
    try:
        yield jobs, library, directory
    finally:
        await jobs.close()
        await library.close()


async def test_a_file_becomes_a_run(tmp_path: Path) -> None:
    async with running(tmp_path) as (jobs, library, directory):
        job = await jobs.receive("C:\\theirs\\night <1>.jsonl", chunks(DATA), length=len(DATA))
        assert job.name == "night__1_.jsonl"
        assert jobs.get(job.id) is job
        await over(jobs, job)
        assert (job.state, job.error, job.records, job.format) == ("done", None, len(scene_lines()), "tidegate")
        assert (job.bytes_done, job.bytes_total, job.report and job.report["path"]) == (
            len(DATA), len(DATA), "night__1_.jsonl",
        )  # fmt: skip
        assert job.run_id is not None
        opened = await library.open(job.run_id)
        assert [line async for line in opened.store.reads.raw_lines(job.run_id)] == scene_lines()
        assert (await library.report(opened) or {})["records"] == len(scene_lines())
        assert names_in(directory) == {f"{job.run_id}.db"}
        await jobs.cancel(job.id)
        assert jobs.list() == []
        with pytest.raises(NotFoundError):
            jobs.get(job.id)
        assert names_in(directory) == {f"{job.run_id}.db"}  # forgetting a job is not deleting its run


async def test_one_runs_and_the_others_wait_and_each_can_be_ended(tmp_path: Path) -> None:
    async with running(tmp_path) as (jobs, library, directory):
        first, second, third = [
            await jobs.receive(f"{name}.jsonl", chunks(LARGE, 1 << 20)) for name in ("one", "two", "three")
        ]
        await until(lambda: first.records > 0)
        assert [job.state for job in (first, second, third)] == ["running", "waiting", "waiting"]
        assert [job.name for job in jobs.list()] == ["three.jsonl", "two.jsonl", "one.jsonl"]
        await jobs.cancel(second.id)
        assert second.state == "cancelled"
        await jobs.cancel(first.id)
        assert (first.state, first.run_id) == ("cancelled", None)
        await until(lambda: third.state == "running")
        assert len([name for name in names_in(directory) if name.startswith("upload-")]) == 1
        await jobs.cancel(third.id)
        assert names_in(directory) == set()
        assert await library.list() == []


async def test_the_end_of_the_backend_ends_them(tmp_path: Path) -> None:
    async with running(tmp_path) as (jobs, _, directory):
        job = await jobs.receive("one.jsonl", chunks(LARGE, 1 << 20))
        await until(lambda: job.records > 0)
        await jobs.close()
        assert (job.state, names_in(directory)) == ("cancelled", set())


async def test_what_cannot_be_read_fails_with_the_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as (jobs, _, directory):
        job = await over(jobs, await jobs.receive("t.csv", chunks(b"a,b,c\n1,2,3\n")))
        assert job.state == "failed"
        assert (job.error or "").startswith("t.csv:1: this seems to be CSV; what can be read is")
        assert str(tmp_path) not in (job.error or "")
        assert names_in(directory) == set()


async def test_an_upload_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield DATA[:1000]
        raise ConnectionResetError

    async with running(tmp_path) as (jobs, _, directory):
        job = await jobs.receive("r.jsonl", cut(), length=len(DATA))
        assert (job.state, job.error) == ("failed", "the upload was cut off after 1000 bytes")
        short = await jobs.receive("r.jsonl", chunks(DATA[:1000]), length=len(DATA))
        assert short.error == f"the upload was cut off after 1000 of {len(DATA)} bytes"
        empty = await jobs.receive("r.jsonl", chunks(b""))
        assert (empty.state, empty.error) == ("failed", "the file is empty")
        assert names_in(directory) == set()


async def test_a_file_that_is_too_large_is_not_taken(tmp_path: Path) -> None:
    async with running(tmp_path, max_upload_bytes=2000) as (jobs, _, directory):
        with pytest.raises(UsageError, match="larger than"):
            await jobs.receive("r.jsonl", chunks(DATA), length=2001)
        assert jobs.list() == []
        job = await jobs.receive("r.jsonl", chunks(DATA, 500))
        assert (job.state, job.bytes_done) == ("failed", 2500)
        assert "tidegate import FILE" in (job.error or "")
        assert names_in(directory) == set()


async def test_a_file_for_which_there_is_no_room_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, max_upload_bytes=1 << 62) as (jobs, _, directory):
        job = await jobs.receive("r.jsonl", chunks(DATA), length=1 << 60)
        assert (job.state, job.bytes_done) == ("failed", 0)
        assert "there is no room for it" in (job.error or "")
        monkeypatch.setattr(jobs_module, "_CHECK_BYTES", 1000)
        rooms = iter([1 << 40, 1 << 40, 0, 0])
        monkeypatch.setattr(jobs_module, "free_bytes", lambda _: next(rooms))
        job = await jobs.receive("r.jsonl", chunks(DATA, 1000))
        assert "there is no room for it: 0 MB are free" in (job.error or "")
        assert job.bytes_done < len(DATA)
        assert names_in(directory) == set()


async def test_receiving_can_be_ended(tmp_path: Path) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield DATA[:1000]
        await asyncio.Event().wait()

    async with running(tmp_path) as (jobs, _, directory):
        request = asyncio.create_task(jobs.receive("r.jsonl", slow(), length=len(DATA)))
        await until(lambda: bool(jobs.list()) and jobs.list()[0].bytes_done == 1000)
        (job,) = jobs.list()
        assert (job.state, job.bytes_total) == ("receiving", len(DATA))
        await jobs.cancel(job.id)
        assert (await request) is job
        assert (job.state, names_in(directory)) == ("cancelled", set())
        # and when the request itself is ended
        request = asyncio.create_task(jobs.receive("r.jsonl", slow()))
        await until(lambda: jobs.list()[0].bytes_done == 1000)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert (jobs.list()[0].state, names_in(directory)) == ("cancelled", set())


async def test_no_more_than_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MAX_WAITING", 2)
    monkeypatch.setattr(jobs_module, "MAX_KEPT", 3)
    async with running(tmp_path) as (jobs, _, directory):
        for _ in range(2):
            await jobs.receive("r.jsonl", chunks(LARGE, 1 << 20))
        with pytest.raises(UnavailableError, match="too many imports"):
            await jobs.receive("r.jsonl", chunks(DATA))
        for job in jobs.list():
            await jobs.cancel(job.id)
        assert ([job.state for job in jobs.list()], names_in(directory)) == (["cancelled"] * 2, set())
        for _ in range(6):
            await jobs.receive("r.jsonl", chunks(b""))
        assert len(jobs.list()) <= 4


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def worker_pid() -> int:
    children = children_of(os.getpid())
    (pid,) = [pid for pid in children if b"tidegate.runs.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid


async def test_a_worker_that_is_killed_is_a_failed_job(tmp_path: Path) -> None:
    async with running(tmp_path) as (jobs, _, directory):
        job = await jobs.receive("one.jsonl", chunks(LARGE, 1 << 20))
        await until(lambda: job.records > 0)
        os.kill(worker_pid(), 9)
        await over(jobs, job)
        assert (job.state, job.error) == ("failed", "the import's process was ended from outside (9)")
        assert names_in(directory) == set()


async def test_a_reader_that_dies_is_a_failed_job(tmp_path: Path) -> None:
    async with running(tmp_path) as (jobs, _, directory):
        job = await jobs.receive("one.jsonl", chunks(LARGE, 1 << 20))
        await until(lambda: job.records > 0)
        writer = worker_pid()
        readers = children_of(writer)
        assert len(readers) == 1
        os.kill(readers[0], 9)
        await over(jobs, job)
        assert job.error == "the process that reads the file ended; the log has the details"
        assert names_in(directory) == set()


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd", "passwd"), ("..", "upload"), (".hidden", "hidden"), ("", "upload"), ("a/b\\c.gz", "c.gz"),
        ("n\x00ul", "n_ul"), ("-rf", "rf"), ("é 😀.jsonl", "___.jsonl"), ("x" * 300 + ".jsonl", "x" * 94 + ".jsonl"),
    ],
)  # fmt: skip
def test_names_of_files_are_made_safe(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_a_job_is_json() -> None:
    job = Job(id="1", name="x", format=None, state="waiting", started_us=1)
    assert job.to_dict()["bytes_total"] is None
