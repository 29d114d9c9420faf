"""What an importer could not use, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

MAX_KEPT: Final = 100
"""So many places are named; all are counted."""

MAX_REASONS: Final = 100
_MAX_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Skip:
    """One thing that was left out: ``line`` counts from 1, None where the whole file or a value is meant."""

    place: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        where = self.place if self.line is None else f"{self.place}:{self.line}"
        return f"{where}: {self.reason}"


class Skipped:
    """Everything an import left out or had to guess.

    Attributes:
        total: how many there were.
        kept: the first :data:`MAX_KEPT` of them.
        reasons: how often each reason was given.
    """

    def __init__(self) -> None:
        self.total = 0
        self.kept: list[Skip] = []
        self.reasons: Counter[str] = Counter()

    def add(self, place: str, line: int | None, reason: str) -> None:
        """Note one. ``place`` is the file's name within the import, ``line`` its line from 1 where there is one."""
        self.total += 1
        reason = _printable(reason)
        if len(self.kept) < MAX_KEPT:
            self.kept.append(Skip(_printable(place), line, reason))
        if reason in self.reasons or len(self.reasons) < MAX_REASONS:
            self.reasons[reason] += 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON for the page."""
        return {
            "total": self.total,
            "kept": [{"place": skip.place, "line": skip.line, "reason": skip.reason} for skip in self.kept],
            "reasons": dict(self.reasons.most_common()),
        }


def _printable(text: str) -> str:
    cut = text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"
    return "".join(char if char.isprintable() else "?" for char in cut)
