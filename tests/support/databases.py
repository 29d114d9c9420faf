"""Looking into a store's tables, past the code under test."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from tidegate.store.schema import DERIVED, sources


def table_rows(path: Path, name: str) -> list[tuple[Any, ...]]:
    """All rows of a table in the order of its key."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
    finally:
        connection.close()


def derived_tables(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The content of every table that is derived from the raw log."""
    return {table.name: table_rows(path, table.name) for table in (*DERIVED, sources)}


def names_in(directory: Path) -> set[str]:
    """Names of what lies in a directory."""
    return {path.name for path in directory.iterdir()}
