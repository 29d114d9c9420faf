"""Lanes in which intervals that overlap do not touch."""

from __future__ import annotations

from msgspec import Struct, field


class Lanes(Struct, array_like=True):
    """Gives each interval the lowest lane that is free at its start, before its end is known.

    A lane never changes once given, so that a call does not jump while it is drawn. With more than ``limit``
    intervals at once the last lane is shared.
    """

    limit: int = 256
    free_from: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limit = max(self.limit, 1)

    def take(self, start_us: int) -> int:
        """Occupy a lane (from 0) from ``start_us`` on."""
        for lane, free_from in enumerate(self.free_from):
            if free_from is not None and free_from <= start_us:
                self.free_from[lane] = None
                return lane
        if len(self.free_from) < self.limit:
            self.free_from.append(None)
        return len(self.free_from) - 1

    def release(self, lane: int, end_us: int) -> None:
        """Free a lane from ``end_us`` on."""
        self.free_from[lane] = end_us
