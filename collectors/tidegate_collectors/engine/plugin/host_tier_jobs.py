"""What the scheduler's side of the host tier has workers copy, and what they tell of it. Plain values: they travel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Job:
    """Copy blocks. ``request``: waits for it, which makes it a copy from the host to the device.

    ``blocks[i]`` of the device goes with ``slots[i]`` of the host. ``inline``: copied within the step that begins it,
    so that a request that needs it runs in that step.
    """

    number: int
    blocks: list[int]
    slots: list[int]
    request: str | None = None
    inline: bool = False


@dataclass(slots=True)
class Copied:
    """How a job ended, in ``workers`` workers so far: bytes of all together, seconds of the slowest."""

    size_bytes: int
    seconds: float
    error: str | None = None
    workers: int = 1

    def plus(self, other: Copied) -> Copied:
        """The same job in other workers, too."""
        return Copied(
            self.size_bytes + other.size_bytes, max(self.seconds, other.seconds), self.error or other.error,
            self.workers + other.workers,
        )  # fmt: skip


def merged(one: dict[int, Copied], other: dict[int, Copied]) -> dict[int, Copied]:
    """Jobs by number, from several workers."""
    both = dict(one)
    for number, copied in other.items():
        both[number] = both[number].plus(copied) if number in both else copied
    return both
