"""A BPF ring buffer read without a library: two mappings of its map, and the positions in them.

The first page is ours: how far we have read. The next is the kernel's: how far it has written. Then come the records,
mapped twice in a row, so that one that wraps is in one piece.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable

from tidegate_collectors.kernel.libbpf_error import BpfError

_BUSY, _DISCARDED = 1 << 31, 1 << 30
_HEAD_BYTES = 8
_MEMBARRIER = {"aarch64": 283, "riscv64": 283, "s390x": 356, "ppc64le": 365}
_REGISTER, _BARRIER = 1 << 4, 1 << 3  # MEMBARRIER_CMD_(REGISTER_)PRIVATE_EXPEDITED


class PlainRing:
    """Reader of one ring buffer, like :class:`~.libbpf_maps.BpfRing`. Does not own the descriptor of the map."""

    def __init__(self, map_fd: int, ring_bytes: int, sample: Callable[[bytes], bool]) -> None:
        page = mmap.PAGESIZE
        self._fd, self._mask, self._sample = map_fd, ring_bytes - 1, sample
        try:
            self._ours = mmap.mmap(map_fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            self._theirs = mmap.mmap(map_fd, page + 2 * ring_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        except OSError as error:
            raise BpfError("opening the ring buffer", error.errno or 0) from error
        # Views of whole words: one load or store each.
        self._read = memoryview(self._ours)[:8].cast("Q")
        self._written = memoryview(self._theirs)[:8].cast("Q")
        self._heads = memoryview(self._theirs)[page:].cast("I")
        self._data = page
        self._fence = _fence()

    def fileno(self) -> int:
        """Polls readable when there are records."""
        return self._fd

    def consume(self) -> None:
        """Hand over what is there, without waiting."""
        position = self._read[0]
        while position < (end := self._written[0]):
            self._fence()  # the records after how far they go
            found, after = self._complete(position, end)
            if after == position:
                return  # the next one is being written
            self._fence()  # what is in them after their heads
            for at, size, position in found:
                record = self._theirs[at : at + size]
                self._release(position)
                if not self._sample(record):
                    return
            position = after  # beyond discarded ones at the end
            self._release(position)

    def close(self) -> None:
        """Unmap it; again is harmless."""
        for view in (self._read, self._written, self._heads):
            view.release()
        self._ours.close()
        self._theirs.close()

    def _complete(self, position: int, end: int) -> tuple[list[tuple[int, int, int]], int]:
        """Place, size and following position of the records that are written, and the position after the last."""
        found = []
        while position < end:
            at = position & self._mask
            head = self._heads[at // 4]
            if head & _BUSY:
                break
            size = head & ~_DISCARDED
            position += (size + _HEAD_BYTES + 7) & ~7
            if not head & _DISCARDED:
                found.append((self._data + at + _HEAD_BYTES, size, position))
        return found, position

    def _release(self, position: int) -> None:
        self._fence()  # nothing of it is read after the kernel may write there again
        self._read[0] = position


def _fence() -> Callable[[], object]:
    """What keeps loads and stores in their order; x86 does of itself."""
    machine = platform.machine()
    if machine not in _MEMBARRIER:
        return lambda: None
    syscall, number = ctypes.CDLL(None, use_errno=True).syscall, _MEMBARRIER[machine]
    if syscall(number, _REGISTER, 0, 0) < 0:
        raise BpfError("membarrier(2) for reading the ring buffer", ctypes.get_errno())
    return lambda: syscall(number, _BARRIER, 0, 0)
