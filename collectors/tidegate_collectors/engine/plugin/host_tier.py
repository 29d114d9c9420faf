"""The table of the host tier: which block has its copy in which slot, least recently used first. Pure, and bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

Key = bytes
_RATE_WINDOW_S: Final = 5.0


@dataclass(slots=True)
class _Entry:
    slot: int
    writer: int | None
    readers: int = 0
    doomed: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """Slots for new copies, in the order of their keys, and the keys that had to go for them."""

    slots: list[int]
    evicted: list[Key]


class HostTable:
    """A slot takes one block. A copy that is being written or read keeps its slot until that is over.

    Args:
        slots: how many there are.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._written = 0
        self._rate_per_s = 0.0
        self._rated_s: float | None = None

    def used(self) -> int:
        """Slots that are taken."""
        return self.slots - len(self._free)

    def has(self, key: Key) -> bool:
        """Whether a complete copy is there."""
        entry = self._entries.get(key)
        return entry is not None and entry.writer is None and not entry.doomed

    def writer(self, key: Key) -> int | None:
        """The job that writes a copy of it at present."""
        entry = self._entries.get(key)
        return None if entry is None else entry.writer

    def touch(self, keys: Sequence[Key]) -> None:
        """They were used; of a prompt the end is given up first, so its beginning becomes the newest."""
        for key in reversed(keys):
            if key in self._entries:
                self._entries.move_to_end(key)

    def reserve(self, job: int, keys: Sequence[Key], keep: Collection[Key] = ()) -> Room | None:
        """Slots for copies that a job will write; None, and nothing is changed, when there can be no such room.

        Args:
            job: number of the job.
            keys: distinct, none of them there or being written.
            keep: keys that must not go for it.
        """
        if any(key in self._entries for key in keys):
            return None  # one that is given up, and read still
        missing = len(keys) - len(self._free)
        victims: list[Key] = []
        if missing > 0:
            kept = set(keep)
            for key, entry in self._entries.items():
                if entry.writer is None and not entry.readers and key not in kept:
                    victims.append(key)
                    if len(victims) == missing:
                        break
            if len(victims) < missing:
                return None
        for key in victims:
            self._free.append(self._entries.pop(key).slot)
        slots = [self._free.pop() for _ in keys]
        for key, slot in reversed(list(zip(keys, slots, strict=True))):
            self._entries[key] = _Entry(slot, job)
        self._written += len(keys)
        return Room(slots, victims)

    def written(self, job: int, keys: Iterable[Key], *, ok: bool) -> list[Key]:
        """A job is over: its copies are there, or their slots are free again; those that are there now."""
        there: list[Key] = []
        for key in keys:
            entry = self._entries.get(key)
            if entry is None or entry.writer != job:
                continue
            entry.writer = None
            if ok and not entry.doomed:
                there.append(key)
            else:
                self._free.append(self._entries.pop(key).slot)
        return there

    def read(self, keys: Iterable[Key]) -> list[int]:
        """Slots of copies that will be read; they stay until :meth:`done_reading`."""
        slots = []
        for key in keys:
            entry = self._entries[key]
            entry.readers += 1
            slots.append(entry.slot)
        return slots

    def done_reading(self, keys: Iterable[Key]) -> None:
        """That is over."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is None:
                continue
            entry.readers -= 1
            if entry.doomed and not entry.readers:
                self._free.append(self._entries.pop(key).slot)

    def forget(self, keys: Iterable[Key]) -> list[Key]:
        """Give copies up, also those that are not complete yet; the keys of which there was a complete one."""
        gone = []
        for key in list(keys):
            entry = self._entries.get(key)
            if entry is None:
                continue
            if self.has(key):
                gone.append(key)
            if entry.readers or entry.writer is not None:
                entry.doomed = True
            else:
                self._free.append(self._entries.pop(key).slot)
        return gone

    def clear(self) -> list[Key]:
        """Give all up."""
        return self.forget(list(self._entries))

    def written_per_s(self, now_s: float) -> float:
        """How fast slots are taken, over the last seconds."""
        if self._rated_s is None:
            self._rated_s = now_s
        passed_s = now_s - self._rated_s
        if passed_s > 0.2:
            keep = max(0.0, 1.0 - passed_s / _RATE_WINDOW_S)
            self._rate_per_s = keep * self._rate_per_s + (1.0 - keep) * self._written / passed_s
            self._written, self._rated_s = 0, now_s
        return self._rate_per_s
