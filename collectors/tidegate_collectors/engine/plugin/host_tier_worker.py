"""The worker's side of the host tier: memory for the copies, and a thread that copies beside the engine's steps.

The device is that of vLLM's CPU backend, so both ends are ordinary memory. Another device would need its own streams
and fences, which nobody could try here; it is refused with the reason.
"""

from __future__ import annotations

import ctypes
import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tidegate_collectors.engine.plugin.host_tier_jobs import Copied, Job

log = logging.getLogger("vllm.tidegate")

_CLOSING: Final = "the engine shuts down"


@dataclass(frozen=True, slots=True)
class Region:
    """Memory in rows of ``stride_bytes``, one a block, from ``address`` on. ``owner`` keeps it alive."""

    address: int
    stride_bytes: int
    owner: Any


def regions(caches: dict[str, torch.Tensor], num_blocks: int) -> list[Region]:
    """The engine's KV cache; layers that share one cache give one region.

    Raises:
        ValueError: it is not ordinary memory, or blocks do not lie one after the other in it.
    """
    found: dict[tuple[int, int], Region] = {}
    for name, cache in caches.items():
        if cache.device.type != "cpu":
            raise ValueError(f"the KV cache is on {cache.device.type}; the host tier copies on the CPU backend only")
        if cache.dim() < 2 or not num_blocks or cache.shape[0] % num_blocks:
            raise ValueError(f"layer {name}: {tuple(cache.shape)} does not begin with {num_blocks} blocks")
        size = cache.element_size()
        stride_bytes = cache.stride(0) * (cache.shape[0] // num_blocks) * size
        inner = sum((length - 1) * step for length, step in zip(cache.shape[1:], cache.stride()[1:], strict=True)) + 1
        begin = cache.storage_offset() * size
        outside = begin + num_blocks * stride_bytes > cache.untyped_storage().nbytes()
        if inner > cache.stride(0) or outside:
            raise ValueError(f"layer {name}: blocks of {tuple(cache.shape)} do not lie one after the other")
        found.setdefault((cache.data_ptr(), stride_bytes), Region(cache.data_ptr(), stride_bytes, cache))
    if not found:
        raise ValueError("the engine has no KV cache")
    return list(found.values())


class HostWorker:
    """Of one worker process. The engine's thread calls everything but the copying itself.

    Args:
        slots: blocks that the tier takes.
        num_blocks: blocks of the pool.
    """

    def __init__(self, slots: int, num_blocks: int) -> None:
        self._slots = slots
        self._num_blocks = num_blocks
        self._device: list[Region] = []
        self._host: list[Region] = []
        self._unable = "the engine has not shown its KV cache yet"
        self._todo: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Job, Copied]] = queue.SimpleQueue()
        self._ended: dict[int, Copied] = {}
        self._failed_blocks: set[int] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    def register(self, caches: dict[str, torch.Tensor]) -> None:
        """The engine's KV cache; memory for copies is reserved, and used only as it is written."""
        try:
            self._device = regions(caches, self._num_blocks)
            for region in self._device:
                memory = torch.empty((self._slots, region.stride_bytes), dtype=torch.uint8)
                self._host.append(Region(memory.data_ptr(), region.stride_bytes, memory))
            self._unable = ""
        except (ValueError, MemoryError, RuntimeError) as error:
            self._device, self._host, self._unable = [], [], str(error)
            log.error("tidegate: the host tier cannot copy, OFFLOAD will be refused: %s", error)

    def begin(self, jobs: Sequence[Job]) -> None:
        """Have these copied: at once those that are small, the others by the thread."""
        for job in jobs:
            if self._unable or self._closed:
                self._done.put((job, Copied(0, 0.0, self._unable or _CLOSING)))
                continue
            if job.inline:
                self._copied(job)
                continue
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidegate-host-tier", daemon=True)
                self._thread.start()
            self._todo.put(job)

    def collect(self) -> set[str]:
        """Requests whose blocks have come, or will not; how each job ended is in :meth:`ended`."""
        arrived: set[str] = set()
        while True:
            try:
                job, copied = self._done.get_nowait()
            except queue.Empty:
                return arrived
            self._ended[job.number] = copied
            if job.request is not None:
                if not job.inline:  # of the others vLLM does not wait to hear
                    arrived.add(job.request)
                if copied.error is not None:
                    self._failed_blocks.update(job.blocks)

    def failed_blocks(self) -> set[int]:
        """Blocks of the device that were to be filled and were not, since this was asked last."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def ended(self) -> dict[int, Copied]:
        """Jobs that have ended since this was asked last."""
        ended, self._ended = self._ended, {}
        return ended

    def close(self) -> None:
        """No copy is begun any more; one that runs is waited for, since it uses the engine's memory."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            self._todo.put(None)
            thread.join(timeout=10.0)

    def _run(self) -> None:
        while (job := self._todo.get()) is not None:
            if self._closed:
                self._done.put((job, Copied(0, 0.0, _CLOSING)))
                continue
            self._copied(job)

    def _copied(self, job: Job) -> None:
        began_s = time.perf_counter()
        size_bytes, failure = 0, None
        try:
            size_bytes = self.copy(job)
        except Exception as error:
            log.exception("tidegate: a copy of the host tier failed")
            failure = f"{type(error).__name__}: {error}"[:200]
        self._done.put((job, Copied(size_bytes, time.perf_counter() - began_s, failure)))

    def copy(self, job: Job) -> int:
        """Copy now, block by block, while other threads run; bytes.

        Raises:
            ValueError: there is no such block or slot.
        """
        pairs = list(zip(job.blocks, job.slots, strict=True))
        for block, slot in pairs:
            if not (0 <= block < self._num_blocks and 0 <= slot < self._slots):
                raise ValueError(f"block {block} or slot {slot} is out of range")
        total = 0
        for device, host in zip(self._device, self._host, strict=True):
            size = device.stride_bytes
            for block, slot in pairs:
                there, here = device.address + block * size, host.address + slot * size
                if job.request is None:
                    ctypes.memmove(here, there, size)
                else:
                    ctypes.memmove(there, here, size)
            total += len(pairs) * size
        return total
