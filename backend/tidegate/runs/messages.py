"""What a backend and an import's process say to each other: a task down its standard input, then JSON lines up."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

TIDEGATE: Final = "tidegate"
"""Name of our own format."""

MEMORY_BYTES: Final = 2 << 30
"""Address space that the process that reads a file may take; a file that makes it take more is not imported."""


class Task(Struct, kw_only=True):
    """One import.

    Attributes:
        source: the file or folder.
        name: what it is called in messages.
        part: where the database is written; its name tells nothing, and it gets its own when it is complete.
        format: name of the format; None: find out.
        title: title of the run; None: the one that the file gives it.
        taken: ids of runs that there are already.
        keep_free_bytes: an import that would leave less room on the disk than this is given up.
        nice: how much less of the CPU it wants than others.
        folder: whether a folder may be read, and not only a file.
    """

    source: str
    name: str
    part: str
    format: str | None = None
    title: str | None = None
    taken: list[str] = []
    keep_free_bytes: int = 0
    memory_bytes: int = MEMORY_BYTES
    nice: int = 5
    folder: bool = False


class Progress(Struct, kw_only=True, tag="progress"):
    """How far it is. ``bytes_done`` are bytes of the file as it lies on the disk; 0 where that is not known."""

    format: str
    records: int
    bytes_done: int = 0


class Done(Struct, kw_only=True, tag="done"):
    """The recording is complete and has its name."""

    run_id: str
    title: str
    format: str
    records: int
    report: dict[str, Any]


class Failed(Struct, kw_only=True, tag="failed"):
    """Nothing was imported; ``error`` is for people, ``kind`` the name of the class of error."""

    error: str
    kind: str


Message: TypeAlias = Progress | Done | Failed

encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(Message).decode
decode_task: Final = msgspec.json.Decoder(Task).decode
