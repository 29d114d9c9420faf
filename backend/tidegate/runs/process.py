"""Running an import in a process of its own, from the side of whoever wants it done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate.errors import StoreError
from tidegate.runs import folder, messages
from tidegate.runs.folding import error_of
from tidegate.runs.messages import Done, Failed, Progress, Task

_MAX_MESSAGE_BYTES: Final = 16 << 20


async def run_worker(task: Task, on_progress: Callable[[Progress], None]) -> Done:
    """Import a file in a process of its own; nothing is left of it when this is cancelled or fails.

    Raises:
        TidegateError: what the worker said, as the same class of error, or that it ended without a word.
    """
    part = Path(task.part)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "tidegate.runs.worker",  # -P: no module of the working directory is ours
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_MAX_MESSAGE_BYTES,
        start_new_session=True,  # Ctrl-C is for us: we end it
    )  # fmt: skip
    assert process.stdin is not None  # noqa: S101 - they are pipes
    assert process.stdout is not None  # noqa: S101
    last: Done | Failed | None = None
    try:
        process.stdin.write(messages.encode(task) + b"\n")
        await process.stdin.drain()
        async for line in process.stdout:
            message = messages.decode(line)
            if isinstance(message, Progress):
                on_progress(message)
            else:
                last = message
        await process.wait()
    except (BrokenPipeError, ConnectionResetError):
        await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the reader too, at once: it may be unpacking
            await asyncio.shield(process.wait())
        process.stdin.close()
        await asyncio.to_thread(folder.remove_part, part)
    if isinstance(last, Done):
        return last
    if isinstance(last, Failed):
        raise error_of(last)
    raise StoreError(
        f"the import's process was ended from outside ({-process.returncode})"
        if process.returncode and process.returncode < 0
        else "the import's process failed; the log has the details"
    )
