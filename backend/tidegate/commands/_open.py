"""Opening the runs from the command line."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.errors import StoreError
from tidegate.settings import Settings

if TYPE_CHECKING:
    from tidegate.runs.library import Library
    from tidegate.store import Store


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Add ``--state-dir``."""
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="where the database is (default: $TIDEGATE_STATE_DIR)"
    )


def settings_of(args: argparse.Namespace) -> Settings:
    """Settings from the environment and ``--state-dir``."""
    return Settings.from_env(state_dir=args.state_dir)


@contextlib.asynccontextmanager
async def open_library(settings: Settings, *, write: bool = False) -> AsyncIterator[tuple[Library, Store | None]]:
    """All runs of the state directory, and the database of live ones where there is one.

    Args:
        write: whether live runs are to be changed: then no backend may be running.

    Raises:
        StoreError: there are none at all, or they cannot be read by this user.
    """
    from tidegate.runs.library import Library
    from tidegate.store import open_store

    database, recordings = settings.database, settings.recordings
    store: Store | None = None
    if _exists(database) or not _exists(recordings):
        store = await open_store(database, read_only=not write)
    try:
        try:
            if _exists(recordings):
                next(recordings.iterdir(), None)
        except PermissionError:
            raise StoreError(
                f"{recordings} cannot be read by this user; try it as root, or as the user of `tidegate serve`"
            ) from None
        library = Library(recordings, live=store)
        try:
            yield library, store
        finally:
            await library.close()
    finally:
        if store is not None:
            await store.close()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return True
