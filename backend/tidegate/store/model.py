"""What goes into the store and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tidegate.store.rows import AnyLine

Source = Literal["live", "recorded", "imported", "modelled"]


@dataclass(slots=True)
class Run:
    """A run as the store knows it. ``last_ord`` and ``last_t`` move with each commit.

    ``no`` is its key inside the database, ``id`` its name everywhere else. Times are microseconds UTC.
    """

    no: int
    id: str
    title: str
    source: Source
    host: str
    boot_id: str
    started_us: int
    ended_us: int | None = None
    clean: bool = False
    last_ord: int = 0
    last_t: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """What is needed to begin a run."""

    id: str
    started_us: int
    title: str = ""
    source: Source = "live"
    host: str = ""
    boot_id: str = ""


@dataclass(slots=True)
class Batch:
    """Records of one run in their order, with the lines they came as (without newlines).

    ``records[i]`` was decoded from ``lines[i]``. The ordinals are given by the store at the commit.
    """

    records: list[AnyLine] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: AnyLine, line: bytes) -> None:
        """Append one record."""
        self.records.append(record)
        self.lines.append(line)


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A batch that is in the database: ``records`` with their ordinals, ascending from ``first_ord``."""

    first_ord: int
    records: Sequence[tuple[int, AnyLine]]


@dataclass(frozen=True, slots=True)
class EventRow:
    """A record that is no sample. ``body`` has its fields without the envelope."""

    ord: int
    t_us: int
    type: str
    session: str | None
    call: str | None
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """What a run holds of one sender."""

    src: str
    last_seq: int
    last_t_us: int
    records: int


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as lists need it; the fold knows more."""

    run: str
    id: str
    title: str | None
    agent: str | None
    priority: str | None
    host: str | None
    budget_bytes: int | None
    started_us: int
    ended_us: int | None
    end_reason: str | None
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the database takes on disk, and how many records and chunks it holds."""

    database_bytes: int
    wal_bytes: int
    rows: int
    chunks: int
