"""``python -m tidegate.runs.worker``: imports one file into one recording, in processes that may be killed at any time.

A task comes as a JSON line on standard input, messages go to standard output. One process reads the file and folds it,
another one, its parent, writes the database. Both end when standard input does, so they never outlive whoever started
them. Files are other people's: what goes wrong here, with memory, time or a defect, is not the backend's trouble.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import sqlalchemy as sa

from tidegate.errors import StoreError, TidegateError
from tidegate.importers import Skipped
from tidegate.runs import folder, messages, reading
from tidegate.runs.folding import Folded, FoldedItem, Receiver, Sender, folded
from tidegate.runs.messages import Done, Failed, Message, Progress, Task
from tidegate.runs.reading import Ended
from tidegate.store import NewRun, Run, Store, StoreFullError, open_store, schema, snapshots
from tidegate.store.rollups import build_rollups, drop_rollups

log = logging.getLogger(__name__)

_STDIN: Final = 0
_TELL_S: Final = 0.2
_CHECK_BYTES: Final = 32 << 20
"""After so many bytes of records the room on the disk is looked at."""

_GC_THRESHOLD: Final = (50_000, 20, 100)
_PIPE_BYTES: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1

Tell = Callable[[Progress], None]


# --- the writer ------------------------------------------------------------------------------------------------------


class _Writing:
    """Writes one recording, out of what was read."""

    def __init__(self, task: Task, format_name: str, unpacked: bool, tell: Tell) -> None:
        self._task = task
        self._part = Path(task.part)
        self._format = format_name
        self._unpacked = unpacked
        self._tell = tell
        self._told = 0.0
        self._until_check = 0
        self._end_us = 0

    async def write(self, items: Iterator[FoldedItem]) -> Done:
        """Do it. What it made is the caller's to remove when this raises."""
        self._check_room()
        store = await open_store(self._part)
        try:
            self._tell(Progress(format=self._format, records=0))
            run, report = await self._fill(store, items)
            await _add_rollups(store, run)
        finally:
            await store.close()
        folder.seal(self._part)
        run_id = folder.publish(self._part, run.id, self._task.taken)
        return Done(run_id=run_id, title=run.title, format=self._format, records=run.last_ord, report=report)

    async def _fill(self, store: Store, items: Iterator[FoldedItem]) -> tuple[Run, dict[str, Any]]:
        run: Run | None = None
        for item in items:
            if isinstance(item, NewRun):
                run = await self._create(store, item)
            elif run is not None and isinstance(item, Folded):
                await self._commit(store, run, item)
            elif run is not None and isinstance(item, Ended):
                report = item.report | {"imported_us": time.time_ns() // 1000}
                await self._end(store, run, item.clean, report)
                return run, report
        raise StoreError("the file was not read to its end; the log has the details")

    async def _create(self, store: Store, new: NewRun) -> Run:
        run_id = folder.free_id(new.id, self._task.taken)
        return await store.create_run(replace(new, id=run_id, title=self._task.title or new.title))

    async def _commit(self, store: Store, run: Run, item: Folded) -> None:
        self._until_check -= sum(map(len, item.piece.batch.lines))
        if self._until_check < 0:
            self._check_room()
        await store.commit(run, item.piece.batch)
        # Records of several senders: the last one is not always the latest.
        self._end_us = max(self._end_us, max((record.t for record in item.piece.batch.records), default=0))
        if item.snapshots:
            async with store.begin() as connection:
                for rows in item.snapshots:
                    await snapshots.save(connection, replace(rows, run=run.no))
        now = time.monotonic()
        if now - self._told > _TELL_S:
            self._told = now
            done = 0 if self._unpacked else item.piece.bytes_done
            self._tell(Progress(format=self._format, bytes_done=done, records=run.last_ord))

    async def _end(self, store: Store, run: Run, clean: bool, report: dict[str, Any]) -> None:
        await store.end_run(run, self._end_us or run.started_us, clean=clean)
        text = msgspec.json.encode(report).decode()
        values = {"run": run.no, "format": self._format, "file": self._task.name, "report": text}
        async with store.begin() as connection:
            await connection.execute(sa.insert(schema.imports).values(values))

    def _check_room(self) -> None:
        self._until_check = _CHECK_BYTES
        status = os.statvfs(self._part.parent)
        free = status.f_bavail * status.f_frsize
        if free < self._task.keep_free_bytes:
            raise StoreError(
                f"the disk is nearly full: {free / 1e6:.0f} MB are left at {self._part.parent}, and "
                f"{self._task.keep_free_bytes / 1e6:.0f} MB are kept free for the live run"
            )


async def _add_rollups(store: Store, run: Run) -> None:
    try:
        await build_rollups(store, run)
    except StoreError:
        raise
    except Exception:
        # Charts are then drawn from the samples: slower, but the same.
        log.exception("%s: rollups could not be built", run.id)
        await drop_rollups(store, run)


# --- the reader ------------------------------------------------------------------------------------------------------


def open_source(task: Task) -> tuple[reading.Found, Iterator[FoldedItem]]:
    """Find out what the file is, and read it.

    Raises:
        TidegateError: it cannot be read.
    """
    skipped = Skipped()
    part = Path(task.part)
    scratch = part.with_name(f"{part.name}-unpacked")
    source = Path(task.source)
    found = reading.find(source, task.name, scratch, wanted=task.format, folder=task.folder, skipped=skipped)
    return found, folded(reading.read(found, skipped))


def _read(task: Task, fd: int) -> None:
    """Read the file into a pipe."""
    sender = Sender(fd)
    try:
        found, items = open_source(task)
        sender.begin(found.format_name, unpacked=found.path != Path(task.source))
        sender.items(items)
    except TidegateError as error:
        sender.failed(str(error), type(error).__name__)
    except MemoryError:
        limit = task.memory_bytes / 1e9
        sender.failed(f"{task.name} takes more than {limit:.1f} GB of memory to read", "BadInputError")


def _start_reader(task: Task) -> tuple[int, int]:
    """Start a process that reads; returns its id and the pipe. To be called before there is any thread."""
    ours, theirs = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    code = 1
    try:
        os.close(ours)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_AS, (task.memory_bytes, task.memory_bytes))
        _read(task, theirs)
        code = 0
    except BrokenPipeError:
        pass
    except BaseException:
        log.exception("reading %s failed", task.name)
    finally:
        os._exit(code)


# --- both ------------------------------------------------------------------------------------------------------------


async def import_file(task: Task, tell: Tell, receiver: Receiver | None = None) -> Done:
    """Import a file; nothing of it is left when that fails.

    Args:
        task: what is to be done.
        tell: called now and then with how far it is.
        receiver: of the process that reads the file; None: it is read here.

    Raises:
        TidegateError: it cannot be read, or there is no room for it.
    """
    part = Path(task.part)
    try:
        folder.make(part.parent)
        if receiver is None:
            found, items = open_source(task)
            format_name, unpacked = found.format_name, found.path != Path(task.source)
        else:
            (format_name, unpacked), items = receiver.begin(), receiver.items()
        return await _Writing(task, format_name, unpacked, tell).write(items)
    except StoreFullError:
        raise StoreError(f"the disk is full; {task.name} was not imported, and nothing of it is left") from None
    finally:
        folder.remove_part(part)


def say(message: Message) -> None:
    """Write a message."""
    sys.stdout.buffer.write(messages.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Take the task, do it, say how it ended. Returns the exit code."""
    task = messages.decode_task(_first_line(_STDIN))
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(task.nice)
    # Records come and go by the thousand and hold no cycles: looking for some takes a fifth of the time.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLD)
    try:
        folder.make(Path(task.part).parent)
        pid, pipe = _start_reader(task)
        threading.Thread(target=_end_with_stdin, args=(Path(task.part),), daemon=True).start()
        try:
            message: Message = asyncio.run(import_file(task, say, Receiver(pipe)))
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            # Only now nobody unpacks anything there any more.
            folder.remove_part(Path(task.part))
    except TidegateError as error:
        message = Failed(error=str(error), kind=type(error).__name__)
    with contextlib.suppress(BrokenPipeError):
        say(message)
    return 0


def _first_line(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        block = os.read(fd, 1 << 16)
        if not block:
            raise EOFError("no task came")
        line += block
    return line


def _end_with_stdin(part: Path) -> NoReturn:
    # By descriptor: a thread that waits in a buffered reader would be in the way of the interpreter's end.
    while os.read(_STDIN, 4096):
        pass
    folder.remove_part(part)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
