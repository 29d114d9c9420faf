"""Imports under way: receiving files, one worker at a time, progress, and ending them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tidegate.errors import NotFoundError, StoreError, TidegateError, UnavailableError, UsageError
from tidegate.runs import folder
from tidegate.runs.messages import Done, Progress, Task
from tidegate.runs.process import run_worker

log = logging.getLogger(__name__)

MAX_WAITING: Final = 16
"""So many imports may be under way or waiting."""

MAX_KEPT: Final = 50
"""So many that are over are remembered; the oldest is forgotten first."""

KEEP_FREE_BYTES: Final = 256 << 20
"""So much of the disk, or a twentieth of it when that is less, no import and no upload takes."""

_CHECK_BYTES: Final = 16 << 20

JobState = Literal["waiting", "receiving", "running", "done", "failed", "cancelled"]
_OVER: Final = frozenset({"done", "failed", "cancelled"})


@dataclass(slots=True, kw_only=True)
class Job:
    """An import, for the API. Times in microseconds UTC; ``bytes_done`` of ``bytes_total`` as the file lies on disk."""

    id: str
    name: str
    format: str | None
    state: JobState
    started_us: int
    bytes_done: int = 0
    bytes_total: int | None = None
    records: int = 0
    run_id: str | None = None
    error: str | None = None
    report: dict[str, Any] | None = None
    ended_us: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def keep_free(directory: Path) -> int:
    """How much of the disk of a directory is to stay free, bytes."""
    with contextlib.suppress(OSError):
        status = os.statvfs(directory)
        return min(KEEP_FREE_BYTES, status.f_blocks * status.f_frsize // 20)
    return KEEP_FREE_BYTES


def free_bytes(directory: Path) -> int:
    """Room on the disk of a directory, bytes. Raises OSError."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


class Jobs:
    """The imports of a backend.

    Args:
        directory: the folder of recordings.
        taken: ids of runs that there are.
        max_upload_bytes: a larger file is not received.
    """

    def __init__(self, directory: Path, taken: Callable[[], Awaitable[set[str]]], *, max_upload_bytes: int) -> None:
        self.directory: Final = directory
        self.max_upload_bytes: Final = max_upload_bytes
        self._taken = taken
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._one = asyncio.Semaphore(1)

    async def close(self) -> None:
        """End all imports that are under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def list(self) -> list[Job]:
        """All jobs, the newest first."""
        return list(reversed(self._jobs.values()))

    def get(self, job_id: str) -> Job:
        """One job. Raises :class:`NotFoundError`."""
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError("There is no such job; it may have been forgotten.")
        return job

    async def receive(
        self, name: str, chunks: AsyncIterator[bytes], *, format_name: str | None = None, length: int | None = None
    ) -> Job:
        """Take a file and import it when its turn comes.

        Args:
            name: of the file, as its owner calls it.
            chunks: its bytes.
            length: how many there will be, where that is known.

        Returns:
            the job: it waits or runs, or has failed because the file could not be received.

        Raises:
            UnavailableError: too many imports wait already.
            UsageError: the file is larger than is taken.
        """
        if length is not None and length > self.max_upload_bytes:
            raise UsageError(self.too_large())
        job = self._new(safe_name(name), format_name, "receiving", length)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        place = folder.new_upload(self.directory)
        receiving = asyncio.ensure_future(self._receive(job, place, chunks))
        self._tasks[job.id] = receiving
        reason = ""
        try:
            await receiving
        except asyncio.CancelledError:
            # Of the job (by DELETE), or of the request; the second is passed on.
            receiving.cancel()
            self._tasks.pop(job.id, None)
            await asyncio.to_thread(folder.remove_part, place)
            self._end(job, "cancelled")
            if task.cancelling():
                raise
            return job
        except TidegateError as error:
            reason = str(error)
        except Exception as error:
            reason = f"the upload was cut off after {job.bytes_done} bytes"
            if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                reason = f"it could not be written: {error.strerror or error}"
            # What a broken connection raises is the web framework's choice.
            log.info("the upload of %s ended early: %s", job.name, type(error).__name__)
        if reason:
            self._tasks.pop(job.id, None)
            await asyncio.to_thread(folder.remove_part, place)
            self._fail(job, reason)
            return job
        job.state, job.bytes_total, job.bytes_done = "waiting", job.bytes_done, 0
        self._start(job, place / job.name, place)
        return job

    async def cancel(self, job_id: str) -> None:
        """End a job that is under way, with all that it made; forget one that is over.

        Raises:
            NotFoundError: there is no such job.
        """
        job = self.get(job_id)
        if job.state in _OVER:
            del self._jobs[job_id]
            return
        task = self._tasks.get(job_id)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        while job.state not in _OVER:  # noqa: ASYNC110 - whoever received it is about to clear up
            await asyncio.sleep(0.005)

    def too_large(self) -> str:
        """What is said of a file that is not taken for its size."""
        return (
            f"the file is larger than the {self.max_upload_bytes / 1e9:g} GB that are taken by upload; import it on "
            f"the host: tidegate import FILE"
        )

    # --- receiving -----------------------------------------------------------------------------------------------

    async def _receive(self, job: Job, place: Path, chunks: AsyncIterator[bytes]) -> None:
        await asyncio.to_thread(folder.make, self.directory)
        await asyncio.to_thread(place.mkdir, mode=0o700)
        reserve = keep_free(self.directory)
        if free_bytes(self.directory) - (job.bytes_total or 0) < reserve:
            raise StoreError(self._no_room(reserve))
        checked = 0
        with (place / job.name).open("xb") as file:
            async for chunk in chunks:
                job.bytes_done += len(chunk)
                if job.bytes_done > self.max_upload_bytes:
                    raise UsageError(self.too_large())
                if job.bytes_done - checked > _CHECK_BYTES:
                    checked = job.bytes_done
                    if free_bytes(self.directory) < reserve:
                        raise StoreError(self._no_room(reserve))
                await asyncio.to_thread(file.write, chunk)
        if job.bytes_total is not None and job.bytes_done < job.bytes_total:
            raise UsageError(f"the upload was cut off after {job.bytes_done} of {job.bytes_total} bytes")
        if not job.bytes_done:
            raise UsageError("the file is empty")

    def _no_room(self, reserve: int) -> str:
        free = free_bytes(self.directory)
        return (
            f"there is no room for it: {free / 1e6:.0f} MB are free at {self.directory}, of which "
            f"{reserve / 1e6:.0f} MB are kept for the live run"
        )

    # --- running -------------------------------------------------------------------------------------------------

    def _new(self, name: str, format_name: str | None, state: JobState, total: int | None) -> Job:
        if sum(job.state not in _OVER for job in self._jobs.values()) >= MAX_WAITING:
            raise UnavailableError("too many imports are under way; wait for one to end, or cancel one")
        job = Job(
            id=secrets.token_hex(6), name=name, format=format_name, state=state, bytes_total=total, started_us=_now_us()
        )
        self._jobs[job.id] = job
        for old in [job.id for job in self._jobs.values() if job.state in _OVER][:-MAX_KEPT]:
            del self._jobs[old]
        return job

    def _start(self, job: Job, source: Path, remove: Path) -> None:
        task = asyncio.create_task(self._run(job, source, remove), name=f"tidegate-import-{job.id}")
        self._tasks[job.id] = task

        def done(_: asyncio.Task[None]) -> None:
            self._tasks.pop(job.id, None)
            if job.state not in _OVER:  # ended before it had begun
                folder.remove_part(remove)
                self._end(job, "cancelled")

        task.add_done_callback(done)

    async def _run(self, job: Job, source: Path, remove: Path) -> None:
        try:
            try:
                done = await self._import(job, source)
            finally:
                # Before the job is over: whoever sees that finds nothing left.
                await asyncio.to_thread(folder.remove_part, remove)
            job.run_id, job.report, job.records, job.format = done.run_id, done.report, done.records, done.format
            job.bytes_done = job.bytes_total or 0
            self._end(job, "done")
        except asyncio.CancelledError:
            self._end(job, "cancelled")
        except TidegateError as error:
            self._fail(job, str(error))
        except Exception as error:
            log.exception("the import of %s failed", job.name)
            self._fail(job, f"a defect in Tidegate ({type(error).__name__}); its log has the details")

    async def _import(self, job: Job, source: Path) -> Done:
        def on_progress(progress: Progress) -> None:
            job.format = progress.format or job.format
            job.bytes_done, job.records = progress.bytes_done, progress.records

        async with self._one:
            job.state = "running"
            task = Task(
                source=str(source),
                name=job.name,
                part=str(folder.new_part(self.directory)),
                format=job.format,
                taken=sorted(await self._taken()),
                keep_free_bytes=keep_free(self.directory),
            )
            return await run_worker(task, on_progress)

    def _fail(self, job: Job, reason: str) -> None:
        job.error = reason
        self._end(job, "failed")

    def _end(self, job: Job, state: JobState) -> None:
        job.state, job.ended_us = state, _now_us()


def safe_name(name: str) -> str:
    """The last part of a file's name, such that it can be one here: letters, digits, dot, dash and underscore."""
    last = name.replace("\\", "/").rpartition("/")[2]
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in last)
    return safe[-100:].lstrip(".-") or "upload"


def _now_us() -> int:
    return time.time_ns() // 1000
