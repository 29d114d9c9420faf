"""The sparkline of a session: its last two minutes in a bounded ring that keeps the extremes."""

from __future__ import annotations

from msgspec import Struct, field

SparkPoint = tuple[int, int, int]
"""t_us, runtime_bytes, calls_bytes."""


class Spark(Struct, array_like=True):
    """At most ``limit`` points over ``length_us``; of the samples in one slot the one with the most memory stays.

    The newest point is always the highest of its slot too: for the value of this moment read the session itself.
    """

    length_us: int = 120_000_000
    limit: int = 240
    slot_us: int = 0
    ring: list[SparkPoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.length_us, self.limit = max(self.length_us, 1), max(self.limit, 1)
        # One slot more than fits would be cut in half by the moving edge, so a slot is a little longer than needed.
        self.slot_us = max(1, -(-self.length_us // max(self.limit - 1, 1)))

    def add(self, t_us: int, runtime_bytes: int, calls_bytes: int) -> None:
        """Add a sample; one that is older than the newest slot is left out."""
        ring = self.ring
        if not ring:
            ring.append((t_us, runtime_bytes, calls_bytes))
            return
        last_t, last_runtime, last_calls = ring[-1]
        slot_us = self.slot_us
        slot, last_slot = t_us // slot_us, last_t // slot_us
        if slot > last_slot:
            oldest, gone = t_us - self.length_us, max(0, len(ring) + 1 - self.limit)
            while gone < len(ring) and ring[gone][0] < oldest:
                gone += 1
            del ring[:gone]
            ring.append((t_us, runtime_bytes, calls_bytes))
        elif slot == last_slot and runtime_bytes + calls_bytes > last_runtime + last_calls:
            ring[-1] = (t_us, runtime_bytes, calls_bytes)

    def points(self) -> list[SparkPoint]:
        """The points in order of time."""
        return list(self.ring)
