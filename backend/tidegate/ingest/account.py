"""What an intake keeps count of: each sender, the lines that could not be read, and everything together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SourceState:
    """What is known of one sender. ``last_seq`` -1: nothing yet, 0 is next; None: any number may be first."""

    src: str
    last_seq: int | None = None
    committed_seq: int = -1
    last_t: int = 0
    records: int = 0
    lost: int = 0
    duplicates: int = 0
    broken: int = 0
    clock_back: int = 0
    explained: int = 0  # records missing from seq that a Loss has told already


@dataclass(frozen=True, slots=True)
class LineError:
    """A line that could not be read: ``line`` from 1, ``column`` in bytes from 1 where it is known."""

    source: str
    line: int
    column: int | None
    message: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" + (f":{self.column}" if self.column else "")
        return f"{place}: {self.message}"


@dataclass(slots=True)
class Counts:
    """What an intake has seen so far."""

    records: int = 0
    broken: int = 0
    duplicates: int = 0
    gaps: int = 0
    lost: int = 0
    clock_back: int = 0
    unknown_types: Counter[str] = field(default_factory=Counter)
    unknown_fields: Counter[str] = field(default_factory=Counter)
