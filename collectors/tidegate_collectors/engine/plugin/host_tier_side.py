"""The scheduler's side of the host tier: what is there, what is being copied, and what came of it.

The plane asks for copies to the host, vLLM's scheduler for copies back. What ends is kept until the plane looks for it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidegate_collectors.engine.plugin.host_tier import HostTable, Key
from tidegate_collectors.engine.plugin.host_tier_jobs import Copied, Job

log = logging.getLogger("vllm.tidegate")

_MOST_ENDS: Final = 4096
_FAILURES_TO_OFF: Final = 3
_INLINE_BYTES: Final = 4 << 20
"""What a step may copy itself, in each worker: about a millisecond. Handing it to the thread costs two more steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A copy has ended. Seconds: of the copy itself, and what was waited for it: of one within a step that is the
    copy, else all from the wish for it until it was known to be over.

    ``keys``: out: those that are in the tier now; in: those that were to come. ``lost``: copies given up for it.
    """

    job: int
    direction: Literal["out", "in"]
    request: str | None
    keys: tuple[Key, ...]
    lost: tuple[Key, ...]
    inline: bool
    blocks: int
    size_bytes: int
    copy_s: float
    waited_s: float
    error: str | None


@dataclass(frozen=True, slots=True)
class Emptied:
    """The tier was emptied from outside; these are not in it any more."""

    keys: tuple[Key, ...]


@dataclass(slots=True)
class _Running:
    job: Job
    keys: tuple[Key, ...]
    began_s: float
    copied: Copied | None = None
    abandoned: bool = False


class HostSide:
    """Of one engine. Only its own thread calls it.

    Args:
        slots: blocks that the tier takes; 0 with ``unable``.
        block_bytes: bytes of a block, in all layers and workers.
        block_tokens: tokens in a block.
        workers: processes that copy their share of each block.
        unable: why it cannot be used; empty when it can.

    Attributes:
        inline_bytes: what a step may copy itself, in each worker.
    """

    def __init__(self, slots: int, block_bytes: int, block_tokens: int, workers: int, unable: str = "") -> None:
        self.table = HostTable(slots)
        self.block_bytes = block_bytes
        self.block_tokens = block_tokens
        self.unable = unable
        self.inline_bytes = _INLINE_BYTES
        self._inlined_bytes = 0
        self._workers = workers
        self._numbers = 0
        self._failures = 0
        self._unsent: list[Job] = []
        self._running: dict[int, _Running] = {}
        self._found: dict[str, int] = {}
        self._ends: deque[Moved | Emptied] = deque(maxlen=_MOST_ENDS)

    # --- for the plane -------------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Bytes that are taken."""
        return self.table.used() * self.block_bytes

    def total_bytes(self) -> int:
        """Bytes that there are."""
        return self.table.slots * self.block_bytes

    def store(self, blocks: Sequence[tuple[Key, int]], keep: Collection[Key]) -> tuple[int, list[Key]] | None:
        """Copy blocks of the device to the host; number of the job, and the keys that had to go for it.

        Args:
            blocks: keys, none of which is in the table, with the numbers of blocks that nobody changes meanwhile.
            keep: keys whose copies must stay.

        Returns:
            None when there is no room for them.
        """
        number = self._numbers
        room = self.table.reserve(number, [key for key, _ in blocks], keep)
        if room is None:
            return None
        keys, numbers = [key for key, _ in blocks], [block for _, block in blocks]
        self._begin(keys, numbers, room.slots, None, inline=self.fits_inline(len(blocks)))
        return number, room.evicted

    def abandon_stores(self) -> None:
        """The blocks that are being copied to the host are not safe any more: what was copied is thrown away."""
        for running in self._running.values():
            if running.job.request is None:
                running.abandoned = True

    def ends(self) -> list[Moved | Emptied]:
        """What has ended since this was asked last."""
        ends = list(self._ends)
        self._ends.clear()
        return ends

    # --- for vLLM's scheduler ------------------------------------------------------------------------------------

    def find(self, request: str, keys: Sequence[Key], begin: int, end: int) -> int:
        """How many blocks from number ``begin`` of a prompt on are in the tier, one after the other, up to ``end``."""
        count = 0
        for key in keys[begin:end]:
            if not self.table.has(key):
                break
            count += 1
        if count:
            self._found[request] = begin
        return count

    def fits_inline(self, blocks: int) -> bool:
        """Whether so many blocks may be copied within the step that is being planned, beside what it copies already."""
        return self._inlined_bytes + self._share(blocks) <= self.inline_bytes

    def load(self, request: str, keys: Sequence[Key], blocks: Sequence[int], count: int, *, inline: bool) -> None:
        """Fill ``count`` blocks of a request, from the one on that :meth:`find` began with."""
        begin = self._found.pop(request)
        wanted = list(keys[begin : begin + count])
        slots = self.table.read(wanted)
        self.table.touch(wanted)
        self._begin(wanted, list(blocks[begin : begin + count]), slots, request, inline=inline)

    def forget_request(self, request: str) -> None:
        """It has ended; maybe before it was given the blocks to fill."""
        self._found.pop(request, None)

    def take_jobs(self) -> list[Job]:
        """What has to be begun in this step."""
        jobs, self._unsent = self._unsent, []
        self._inlined_bytes = 0
        return jobs

    def busy(self) -> bool:
        """Whether steps are needed even without requests: copies begin and end with them."""
        return any(running.job.request is None for running in self._running.values())

    def ended(self, jobs: Mapping[int, Copied]) -> None:
        """Workers tell of jobs, by number."""
        for number, copied in jobs.items():
            running = self._running.get(number)
            if running is None:
                continue
            running.copied = copied if running.copied is None else running.copied.plus(copied)
            if running.copied.workers >= self._workers:
                del self._running[number]
                self._end(running, running.copied)

    def fault(self, error: Exception) -> None:
        """Something in here went wrong: nothing is begun or waited for any more."""
        log.exception("tidegate: a fault in the host tier; the engine goes on without it")
        self.unable = self.unable or f"a fault: {type(error).__name__}; the engine's log has more"
        self._running.clear()

    def empty(self) -> None:
        """All copies are given up."""
        self.abandon_stores()
        gone = self.table.clear()
        if gone:
            self._ends.append(Emptied(tuple(gone)))

    # --- jobs ----------------------------------------------------------------------------------------------------

    def _share(self, blocks: int) -> int:
        return blocks * self.block_bytes // max(1, self._workers)

    def _begin(
        self, keys: Sequence[Key], blocks: list[int], slots: list[int], request: str | None, *, inline: bool
    ) -> None:  # fmt: skip
        job = Job(self._numbers, blocks, slots, request, inline)
        if inline:
            self._inlined_bytes += self._share(len(blocks))
        self._numbers += 1
        self._running[job.number] = _Running(job, tuple(keys), time.monotonic())
        self._unsent.append(job)

    def _end(self, running: _Running, copied: Copied) -> None:
        job, error, lost = running.job, copied.error, []
        keys: Sequence[Any] = running.keys
        if job.request is None:
            if running.abandoned and error is None:
                error = "abandoned: the cache was emptied meanwhile"
            keys = self.table.written(job.number, running.keys, ok=error is None)
        else:
            self.table.done_reading(running.keys)
            if error is not None:  # it would fail again and again
                lost = self.table.forget(running.keys)
        self._failures = self._failures + 1 if copied.error is not None else 0
        if self._failures >= _FAILURES_TO_OFF and not self.unable:
            self.unable = f"copies fail: {copied.error}"
            log.error("tidegate: the host tier is not used any more: %s", self.unable)
        self._ends.append(
            Moved(
                job=job.number, direction="out" if job.request is None else "in", request=job.request,
                keys=tuple(keys), lost=tuple(lost), inline=job.inline, blocks=len(job.blocks),
                size_bytes=copied.size_bytes, copy_s=copied.seconds,
                waited_s=copied.seconds if job.inline else time.monotonic() - running.began_s, error=error,
            )
        )  # fmt: skip


def side_of(connector: Any) -> HostSide | None:
    """The host tier of a scheduler's connector, also of one among several; None without one."""
    found = (getattr(one, "side", None) for one in _leaves(connector))
    return next((side for side in found if isinstance(side, HostSide)), None)


def _leaves(connector: Any) -> Iterator[Any]:
    yield connector
    for child in getattr(connector, "_connectors", None) or ():
        yield from _leaves(child)
