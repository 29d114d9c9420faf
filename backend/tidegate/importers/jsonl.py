"""A recording of our own (JSON lines) into a run of the store."""

from __future__ import annotations

from pathlib import Path

from tidegate.ingest.recording import Report, load
from tidegate.store import Run, Store


async def import_recording(path: Path, store: Store, *, run_id: str | None = None) -> tuple[Run, Report]:
    """Read ``path`` into a new run.

    The run keeps the id that the recording gives it, with a number appended when that id is taken.

    Raises:
        NotFoundError, BadInputError, StoreError: see :func:`tidegate.ingest.recording.load`.
    """
    return await load(path, store, run_id=run_id)
