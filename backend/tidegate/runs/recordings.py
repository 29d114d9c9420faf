"""Recordings as files: what a list says of each, and opening one. Whatever somebody put there becomes a reason."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from tidegate.errors import StoreError, TidegateError
from tidegate.runs import folder
from tidegate.runs.history import History
from tidegate.runs.messages import TIDEGATE
from tidegate.store import Run, Store, open_store
from tidegate.store.totals import import_of, totals

log = logging.getLogger(__name__)

OLDER: Final = "older schema"
"""What the store says of a database that has yet to be brought to this version."""

Identity = tuple[int, int, int, int]
"""Device, inode, size and time of the last change of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in a list.

    Attributes:
        id: its id, unique over all places.
        kind: live, recorded, imported or modelled.
        last_t_us: time of the last record, microseconds UTC.
        bytes: size of its file; of a run in the live database, its share of that by records.
        clean: whether its end was written.
        writing: whether records are being added to it.
        current: whether it is the run that this backend shows by default.
        format: of what it was imported; ``tidegate`` for our own.
        file: name of the file that it was imported from, without its folder; empty for a live run.
        imported_us: when it was imported, microseconds UTC; None for a live run.
        deletable: whether :meth:`Library.delete` would do it.
        reason: why it cannot be deleted, or, with ``damaged``, why it cannot be opened.
        damaged: the file in the folder of recordings is none, or of another version.
    """

    id: str
    title: str
    kind: str
    host: str = ""
    started_us: int | None = None
    ended_us: int | None = None
    last_t_us: int | None = None
    records: int = 0
    bytes: int = 0
    sessions: int = 0
    clean: bool = False
    writing: bool = False
    current: bool = False
    format: str = TIDEGATE
    file: str = ""
    imported_us: int | None = None
    deletable: bool = True
    reason: str | None = None
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that can be read. Its store is the library's: it is not for the caller to close."""

    store: Store
    run: Run
    history: History


def files_in(directory: Path) -> dict[Path, Identity]:
    """The files that should be recordings, each with what tells it from another one of its name."""
    found: dict[Path, Identity] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            if entry.name.endswith(folder.SUFFIX) and not entry.name.startswith("."):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                    found[Path(entry.path)] = identity
    return found


def inode_of(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one of its name, however it is changed; None when there is none."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def remove(path: Path) -> None:
    """Remove a file and what SQLite may have left beside it. Raises StoreError."""
    try:
        path.unlink(missing_ok=True)
        for ending in ("-wal", "-shm", "-journal", ".lock"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be removed: {error.strerror}") from None


async def _open_file(path: Path) -> Store:
    """Open a recording for reading; one of an older Tidegate is brought to this version first. Raises StoreError."""
    try:
        return await open_store(path, read_only=True)
    except StoreError as error:
        if OLDER not in str(error):
            raise
    store = await open_store(path)
    await store.close()
    await asyncio.to_thread(folder.seal, path)
    return await open_store(path, read_only=True)


async def open_recording(path: Path) -> OpenRun:
    """Open a recording.

    Raises:
        StoreError: it is damaged, of a later version, or holds something else than its one run.
    """
    store = await _open_file(path)
    try:
        run = await _only_run(store, path)
    except BaseException:
        await store.close()
        raise
    return OpenRun(store, run, History(store, run))


async def _only_run(store: Store, path: Path) -> Run:
    runs = await store.reads.runs()
    if len(runs) != 1:
        raise StoreError(f"{path} holds {len(runs)} runs; a recording holds one")
    if runs[0].id != path.name.removesuffix(folder.SUFFIX):
        raise StoreError(f"{path} holds run {runs[0].id[:100]!r}; rename it after that")
    return runs[0]


async def look(path: Path, identity: Identity) -> RunRow:
    """The row of a file; whatever is wrong with it becomes its reason."""
    size_bytes, changed_us = identity[2], identity[3] // 1000
    try:
        if await asyncio.to_thread(path.is_symlink):
            raise StoreError(f"{path} is a link")
        store = await _open_file(path)
        try:
            run = await _only_run(store, path)
            total = (await totals(store.reads)).get(run.no)
            found = await import_of(store.reads, run.no)
        finally:
            await store.close()
    except TidegateError as error:
        return RunRow(id=path.name, title=path.name, kind="recorded", bytes=size_bytes, damaged=True, reason=str(error))
    except Exception as error:
        # A file somebody put there must not take the list of all others away.
        log.exception("%s cannot be looked at", path)
        return RunRow(id=path.name, title=path.name, kind="recorded", bytes=size_bytes, damaged=True, reason=str(error))
    return RunRow(
        id=run.id, title=run.title or run.id, kind=run.source, host=run.host, started_us=run.started_us,
        ended_us=run.ended_us, last_t_us=max(run.last_t or 0, run.ended_us or 0) or None, records=run.last_ord,
        bytes=size_bytes,
        sessions=total.sessions if total else 0, clean=run.clean, format=found.format if found else TIDEGATE,
        file=PurePath(found.file).name if found else "",
        imported_us=(found.imported_us if found else None) or changed_us,
    )  # fmt: skip
