"""Importing files in a worker process of its own, as the backend and the command do it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.support.scenes import scene_lines
from tidegate.runs import folder
from tidegate.runs.jobs import Job, Jobs
from tidegate.runs.messages import Done, Progress, Task
from tidegate.runs.process import run_worker
from tidegate.runs.worker import import_file


def write_lines(path: Path, lines: list[bytes] | None = None) -> Path:
    """A recording of these lines; by default of a small scene."""
    path.write_bytes(b"".join(line + b"\n" for line in (scene_lines() if lines is None else lines)))
    return path


async def imported(source: Path, directory: Path, seen: list[Progress] | None = None, **options: Any) -> Done:
    """Import a file into the folder of recordings ``directory``."""
    task = Task(
        source=str(source), name=source.name, part=str(folder.new_part(directory)), **{"folder": True, **options}
    )
    return await run_worker(task, (seen if seen is not None else []).append)


async def read_here(source: Path, directory: Path, **options: Any) -> Done:
    """The same in this process: quicker, where the process is not what is tested."""
    task = Task(source=str(source), name=source.name, part=str(folder.new_part(directory)), folder=True, **options)
    return await import_file(task, lambda _: None)


async def over(jobs: Jobs, job: Job, timeout_s: float = 30.0) -> Job:
    """The job, once it is over."""
    async with asyncio.timeout(timeout_s):
        while job.ended_us is None:  # noqa: ASYNC110 - a job has no event
            await asyncio.sleep(0.01)
    return job


async def until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)
