"""Which runs there are: live ones in the backend's database, recordings in files of their own; and opening them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from tidegate.errors import NotFoundError, UsageError
from tidegate.runs import folder
from tidegate.runs.history import History
from tidegate.runs.recordings import Identity, OpenRun, RunRow, files_in, inode_of, look, open_recording, remove
from tidegate.store import Run, Store, schema
from tidegate.store.retention import delete_run
from tidegate.store.totals import import_of, totals

log = logging.getLogger(__name__)

MAX_OPEN: Final = 8
"""So many recordings are kept open; the one that was used longest ago is closed first."""

_MAX_PAST: Final = 32
"""Of so many runs of the live database it is remembered what was learned about them; they share its connections."""

MAX_TITLE: Final = 200


class RunBusyError(UsageError):
    """A run that is being written or shown cannot be deleted."""


@dataclass(slots=True)
class _Entry:
    """A recording that is open. ``identity`` tells whether the file is still the one that was opened."""

    opened: OpenRun
    identity: tuple[int, int]
    holds: int = 0


@dataclass(slots=True)
class _Seen:
    """What is known of a file without opening it again: valid while its inode, size and time stay."""

    identity: Identity
    row: RunRow


Rows: TypeAlias = list[RunRow]


class Library:
    """The runs of a state directory.

    Args:
        directory: the folder of recordings; it need not exist.
        live: the database of live runs; none in a replay.
        writing: the run that is being written, if any.
        current: id of the run that is shown by default.
    """

    def __init__(
        self,
        directory: Path,
        *,
        live: Store | None = None,
        writing: Run | None = None,
        current: str | None = None,
    ) -> None:
        self.directory: Final = directory
        self.current = current
        self._live = live
        self._writing = writing
        self._open: OrderedDict[str, _Entry] = OrderedDict()
        self._seen: dict[Path, _Seen] = {}
        self._past: OrderedDict[str, OpenRun] = OrderedDict()
        self._going: set[str] = set()
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        """Close all recordings. The live database is its owner's to close."""
        while self._open:
            _, entry = self._open.popitem()
            await entry.opened.store.close()
        self._past.clear()

    # --- looking -------------------------------------------------------------------------------------------------

    async def list(self) -> Rows:
        """All runs, the newest first; files that are no recordings with the reason.

        Raises:
            StoreError: the live database cannot be read.
        """
        rows = await self._live_rows()
        files = await asyncio.to_thread(files_in, self.directory)
        self._seen = {path: seen for path, seen in self._seen.items() if path in files}
        ids = {row.id for row in rows}
        for path, identity in files.items():
            seen = self._seen.get(path)
            if seen is None or seen.identity != identity:
                seen = self._seen[path] = _Seen(identity, await look(path, identity))
            row = replace(seen.row, current=seen.row.id == self.current)
            if row.id in ids and not row.damaged:
                row = replace(row, id=path.name, damaged=True, reason=f"another run has the id {row.id} too")
            elif row.current:
                row = replace(row, deletable=False, reason="it is the run that this backend was started to show")
            ids.add(row.id)
            rows.append(row)
        return sorted(rows, key=lambda row: (row.writing, row.started_us or 0, row.id), reverse=True)

    async def find(self, run_id: str) -> RunRow:
        """One run of the list. Raises :class:`NotFoundError`."""
        for row in await self.list():
            if row.id == run_id:
                return row
        raise NotFoundError(f"no run {run_id!r}; `tidegate runs` lists those that there are")

    async def ids(self) -> set[str]:
        """Ids that are taken. Raises StoreError."""
        return {row.id for row in await self.list()}

    async def _live_rows(self) -> Rows:
        if self._live is None:
            return []
        known = await totals(self._live.reads)
        rows = []
        for run in await self._live.reads.runs():
            writing = self._is_writing(run)
            total = known.get(run.no)
            rows.append(
                RunRow(
                    id=run.id, title=run.title or run.id, kind=run.source, host=run.host, started_us=run.started_us,
                    ended_us=run.ended_us, last_t_us=run.last_t, records=run.last_ord,
                    bytes=total.bytes if total else 0, sessions=total.sessions if total else 0, clean=run.clean,
                    writing=writing, current=run.id == self.current, deletable=not writing,
                    reason="it is being written; it can be deleted once another run has begun" if writing else None,
                )
            )  # fmt: skip
        return rows

    def _is_writing(self, run: Run) -> bool:
        if self._writing is not None:
            return run.no == self._writing.no
        # Seen from a process that does not write: whoever does has not closed it.
        return self._live is not None and run.ended_us is None

    # --- opening -------------------------------------------------------------------------------------------------

    async def open(self, run_id: str) -> OpenRun:
        """A run to read from now; a recording is kept open until others were used more recently.

        Raises:
            NotFoundError: there is no such run.
            StoreError: its file is damaged or of another version.
        """
        return (await self._entry(run_id)).opened

    @contextlib.asynccontextmanager
    async def hold(self, run_id: str) -> AsyncIterator[OpenRun]:
        """A run that stays open for as long as the context: for streams. Raises as :meth:`open`."""
        entry = await self._entry(run_id)
        entry.holds += 1
        try:
            yield entry.opened
        finally:
            entry.holds -= 1

    async def _entry(self, run_id: str) -> _Entry:
        async with self._lock:
            if self._live is not None:
                past = self._past.get(run_id) or await self._open_live(run_id)
                if past is not None:
                    return _Entry(past, (0, 0))
            path = self._path(run_id)
            identity = await asyncio.to_thread(inode_of, path)
            entry = self._open.get(run_id)
            if entry is not None and entry.identity != identity:
                del self._open[run_id]
                await entry.opened.store.close()
                entry = None
            if identity is None:
                raise NotFoundError(f"no run {run_id!r}; `tidegate runs` lists those that there are")
            if entry is None:
                entry = self._open[run_id] = _Entry(await open_recording(path), identity)
            self._open.move_to_end(run_id)
            await self._make_room()
            return entry

    async def _open_live(self, run_id: str) -> OpenRun | None:
        assert self._live is not None  # noqa: S101 - the caller has looked
        if self._writing is not None and self._writing.id == run_id:
            run = self._writing
        else:
            found = [run for run in await self._live.reads.runs() if run.id == run_id]
            if not found:
                return None
            run = found[0]
        opened = OpenRun(self._live, run, History(self._live, run))
        if run.ended_us is not None or run is self._writing:
            self._past[run_id] = opened
            while len(self._past) > _MAX_PAST:
                self._past.popitem(last=False)
        return opened

    def _path(self, run_id: str) -> Path:
        try:
            return folder.file_of(self.directory, run_id)
        except ValueError:
            raise NotFoundError(f"no run {run_id[:100]!r}; `tidegate runs` lists those that there are") from None

    async def _make_room(self) -> None:
        idle = [run_id for run_id, entry in self._open.items() if not entry.holds and run_id != self.current]
        # The last one is the one that was just asked for.
        for run_id in idle[: -1 if idle else None]:
            if len(self._open) <= MAX_OPEN:
                return
            entry = self._open.pop(run_id)
            await entry.opened.store.close()

    # --- changing ------------------------------------------------------------------------------------------------

    async def rename(self, run_id: str, title: str) -> None:
        """Give a run another title. Its records stay as they are.

        Raises:
            UsageError: the title is empty or too long.
            NotFoundError, StoreError: as :meth:`open`; the database cannot be written.
        """
        title = " ".join("".join(char if char.isprintable() else " " for char in title).split())
        if not title or len(title) > MAX_TITLE:
            raise UsageError(f"a title has 1 to {MAX_TITLE} characters")
        title = title.encode("utf-8", "replace").decode()
        opened = await self.open(run_id)
        if opened.store is self._live:
            async with self._live.begin() as connection:
                await connection.execute(
                    sa.update(schema.runs).where(schema.runs.c.no == opened.run.no).values(title=title)
                )
        else:
            await asyncio.to_thread(folder.set_values, self._path(run_id), title=title)
        opened.run.title = title

    async def delete(self, run_id: str) -> None:
        """Delete a run for good; from the live database in small steps, between which records are committed.

        Raises:
            RunBusyError: it is being written, or the one that is shown by default.
            NotFoundError: there is none.
            StoreError: its file cannot be removed.
        """
        row = await self.find(run_id)
        if not row.deletable:
            raise RunBusyError(f"run {run_id} cannot be deleted: {row.reason}")
        self._going.add(run_id)
        try:
            await self._delete(row)
        finally:
            self._going.discard(run_id)

    async def _delete(self, row: RunRow) -> None:
        run_id = row.id
        if self._live is not None and not row.damaged:
            run = next((run for run in await self._live.reads.runs() if run.id == run_id), None)
            if run is not None:
                await delete_run(self._live, run)
                self._past.pop(run_id, None)  # after it: whoever looks at the run meanwhile has it opened again
                return
        path = self.directory / row.id if row.damaged else self._path(run_id)
        async with self._lock:
            entry = self._open.pop(run_id, None)
            if entry is not None:
                await entry.opened.store.close()
            await asyncio.to_thread(remove, path)

    async def is_gone(self, run_id: str) -> bool:
        """Whether a run was deleted, or is being deleted. Raises StoreError."""
        if run_id in self._going:
            return True
        try:
            await self.open(run_id)
        except NotFoundError:
            return True
        return False

    async def report(self, opened: OpenRun) -> dict[str, Any] | None:
        """What was found wrong when a run was imported; None of one that was live here. Raises StoreError."""
        found = await import_of(opened.store.reads, opened.run.no)
        return None if found is None else found.report


__all__ = ["Library", "OpenRun", "RunBusyError", "RunRow"]
