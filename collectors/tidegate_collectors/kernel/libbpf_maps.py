"""Maps with typed keys and values, and the ring buffer; made by :class:`~.libbpf.BpfObject`."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Callable, Iterator
from typing import Any

from tidegate_collectors.kernel.libbpf_error import BpfError

SAMPLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
"""Type of the function that libbpf calls with each record of a ring buffer."""


class BpfMap:
    """One map of a loaded object. A single-field key or value is that field, else a tuple."""

    def __init__(self, c: Any, name: str, fd: int, key: struct.Struct, value: struct.Struct, cpus: int) -> None:
        self._c, self._name, self._fd, self._key_struct, self._value_struct, self._cpus = c, name, fd, key, value, cpus
        # A per-CPU map answers with one value a possible CPU, each padded to 8 bytes.
        self._stride = -(-value.size // 8) * 8 if cpus > 1 else value.size
        self._key = ctypes.create_string_buffer(key.size)
        self._value = ctypes.create_string_buffer(max(self._stride, -(-value.size // 8) * 8) * cpus)

    def get(self, key: int | tuple[int, ...]) -> Any | None:
        """The value, or ``None``."""
        if not self._lookup(key):
            return None
        return _single(self._value_struct.unpack_from(self._value, 0))

    def get_per_cpu(self, key: int) -> list[Any]:
        """Values of all possible CPUs; empty when the key is not there."""
        if not self._lookup(key):
            return []
        unpack = self._value_struct.unpack_from
        return [_single(unpack(self._value, i * self._stride)) for i in range(self._cpus)]

    def set(self, key: int | tuple[int, ...], value: int | tuple[Any, ...], *, only_new: bool = False) -> None:
        """Insert or replace.

        Raises:
            BpfError: E2BIG when the map is full, EEXIST with ``only_new``.
        """
        self._pack_key(key)
        self._value_struct.pack_into(self._value, 0, *(value if isinstance(value, tuple) else (value,)))
        result = self._c.bpf_map_update_elem(self._fd, self._key, self._value, 1 if only_new else 0)
        if result < 0:
            raise BpfError(f"writing map {self._name}", -result)

    def delete(self, key: int | tuple[int, ...]) -> bool:
        """Whether it was there."""
        self._pack_key(key)
        return bool(self._c.bpf_map_delete_elem(self._fd, self._key) == 0)

    def keys(self) -> Iterator[Any]:
        """All keys, while the map may change."""
        previous = None
        while True:
            following = ctypes.create_string_buffer(self._key_struct.size)
            if self._c.bpf_map_get_next_key(self._fd, previous, following) < 0:
                return
            yield _single(self._key_struct.unpack(following.raw))
            previous = following

    def _lookup(self, key: int | tuple[int, ...]) -> bool:
        self._pack_key(key)
        result: int = self._c.bpf_map_lookup_elem(self._fd, self._key, self._value)
        if result < 0 and result != -errno.ENOENT:
            raise BpfError(f"reading map {self._name}", -result)
        return result == 0

    def _pack_key(self, key: int | tuple[int, ...]) -> None:
        self._key_struct.pack_into(self._key, 0, *(key if isinstance(key, tuple) else (key,)))


def _single(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


class BpfRing:
    """Reader of one ring buffer."""

    def __init__(self, c: Any, map_fd: int, sample: Callable[[bytes], bool]) -> None:
        self._c = c
        string_at = ctypes.string_at

        def take(_context: int, data: int, size: int) -> int:
            return 0 if sample(string_at(data, size)) else -1

        self._sample = SAMPLE(take)  # kept: C holds only the address
        self._ring: int | None = c.ring_buffer__new(map_fd, self._sample, None, None)
        if not self._ring:
            raise BpfError("opening the ring buffer", ctypes.get_errno())

    def fileno(self) -> int:
        """Polls readable when there are records."""
        return int(self._c.ring_buffer__epoll_fd(self._ring))

    def consume(self) -> None:
        """Hand over what is there, without waiting."""
        self._c.ring_buffer__consume(self._ring)

    def close(self) -> None:
        """Free it; again is harmless."""
        if self._ring:
            self._c.ring_buffer__free(self._ring)
            self._ring = None
