"""Opening a recording to look at it: read into a private database that is removed again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import StoreError
from tidegate.ingest.recording import Report, load
from tidegate.store import Run, Store, open_store


@dataclass(slots=True)
class OpenedRecording:
    """A recording that is open: its store, its run, and what was found while reading it."""

    store: Store
    run: Run
    report: Report
    directory: Path

    async def close(self) -> None:
        """Close the database and remove it."""
        await self.store.close()
        shutil.rmtree(self.directory, ignore_errors=True)


async def open_recording(
    path: Path, *, state_dir: Path | None = None, on_progress: Callable[[int], None] | None = None
) -> OpenedRecording:
    """Read a recording (.jsonl, also compressed with gzip or zstd) into a private database.

    Args:
        path: the file.
        state_dir: where the private database is made; default: the system's temporary directory.
        on_progress: called now and then with the number of records read so far.

    Raises:
        NotFoundError, BadInputError: see :func:`tidegate.ingest.recording.load`.
        StoreError: there is no room for the database.
    """
    try:
        directory = Path(tempfile.mkdtemp(prefix="tidegate-replay-", dir=state_dir))
    except OSError as error:
        raise StoreError(f"no directory for the recording's database: {error}") from None
    store: Store | None = None
    try:
        store = await open_store(directory / "replay.db")
        run, report = await load(path, store, on_progress=on_progress)
    except BaseException:
        if store is not None:
            await store.close()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return OpenedRecording(store, run, report, directory)
