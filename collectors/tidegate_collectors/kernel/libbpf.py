"""libbpf.so.1 by ctypes: open, load and attach programs; maps with typed keys and values; the ring buffer.

Only what Tidegate needs. Everything that fails raises :class:`BpfError` with the errno and what libbpf or the
verifier had to say.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from tidegate_collectors.kernel.libbpf_error import BpfError
from tidegate_collectors.kernel.libbpf_maps import SAMPLE, BpfMap, BpfRing

__all__ = ["BpfError", "BpfMap", "BpfObject", "BpfRing"]

_LOG_BYTES = 1 << 16
_KEPT_LOG_CHARS = 6000
_PRINT = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)
_RUN_TIME_OFFSET = 192  # of run_time_ns, run_cnt, recursion_misses in struct bpf_prog_info (uapi)
_INFO_BYTES = 224


class _TestRun(ctypes.Structure):
    _fields_ = [
        ("sz", c_size_t),
        ("data_in", c_void_p),
        ("data_out", c_void_p),
        ("data_size_in", c_uint32),
        ("data_size_out", c_uint32),
        ("ctx_in", c_void_p),
        ("ctx_out", c_void_p),
        ("ctx_size_in", c_uint32),
        ("ctx_size_out", c_uint32),
        ("retval", c_uint32),
        ("repeat", c_int),
        ("duration", c_uint32),
        ("flags", c_uint32),
        ("cpu", c_uint32),
        ("batch_size", c_uint32),
    ]


_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "libbpf_set_print": (c_void_p, (_PRINT,)),
    "libbpf_num_possible_cpus": (c_int, ()),
    "bpf_object__open_file": (c_void_p, (c_char_p, c_void_p)),
    "bpf_object__load": (c_int, (c_void_p,)),
    "bpf_object__close": (None, (c_void_p,)),
    "bpf_object__next_program": (c_void_p, (c_void_p, c_void_p)),
    "bpf_object__find_map_by_name": (c_void_p, (c_void_p, c_char_p)),
    "bpf_program__name": (c_char_p, (c_void_p,)),
    "bpf_program__fd": (c_int, (c_void_p,)),
    "bpf_program__set_autoload": (c_int, (c_void_p, c_bool)),
    "bpf_program__attach": (c_void_p, (c_void_p,)),
    "bpf_link__destroy": (c_int, (c_void_p,)),
    "bpf_map__fd": (c_int, (c_void_p,)),
    "bpf_map__key_size": (c_uint32, (c_void_p,)),
    "bpf_map__value_size": (c_uint32, (c_void_p,)),
    "bpf_map__set_max_entries": (c_int, (c_void_p, c_uint32)),
    "bpf_map_lookup_elem": (c_int, (c_int, c_void_p, c_void_p)),
    "bpf_map_update_elem": (c_int, (c_int, c_void_p, c_void_p, c_uint64)),
    "bpf_map_delete_elem": (c_int, (c_int, c_void_p)),
    "bpf_map_get_next_key": (c_int, (c_int, c_void_p, c_void_p)),
    "bpf_prog_test_run_opts": (c_int, (c_int, c_void_p)),
    "bpf_obj_get_info_by_fd": (c_int, (c_int, c_void_p, c_void_p)),
    "ring_buffer__new": (c_void_p, (c_int, SAMPLE, c_void_p, c_void_p)),
    "ring_buffer__consume": (c_int, (c_void_p,)),
    "ring_buffer__epoll_fd": (c_int, (c_void_p,)),
    "ring_buffer__free": (None, (c_void_p,)),
}


class _Library:
    """The shared library, opened at the first use, so that hosts without it can still import this module."""

    def __init__(self) -> None:
        try:
            self.handle = ctypes.CDLL("libbpf.so.1", use_errno=True)
        except OSError as error:
            raise BpfError(f"libbpf.so.1 cannot be opened ({error}): apt-get install libbpf1") from error
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self.handle, name)
            function.restype, function.argtypes = result, arguments
        self.messages: list[str] = []
        vsnprintf = ctypes.CDLL(None).vsnprintf
        vsnprintf.argtypes = (c_void_p, c_size_t, c_char_p, c_void_p)

        def collect(level: int, text: bytes, arguments: int) -> int:
            if level == 0:  # warnings; the verifier's log comes as one
                buffer = ctypes.create_string_buffer(_LOG_BYTES)
                vsnprintf(buffer, _LOG_BYTES, text, arguments)
                self.messages.append(buffer.value.decode(errors="replace"))
            return 0

        self._print = _PRINT(collect)  # kept: C holds only the address
        self.handle.libbpf_set_print(self._print)

    def take_log(self) -> str:
        log = "".join(self.messages)
        self.messages.clear()
        return log[-_KEPT_LOG_CHARS:]


_library: _Library | None = None


def _lib() -> _Library:
    global _library
    if _library is None:
        _library = _Library()
    return _library


class BpfObject:
    """One object file. Not thread-safe.

    Raises:
        BpfError: the file is no BPF object.
    """

    def __init__(self, path: Path) -> None:
        self._lib = _lib()
        self._c = self._lib.handle
        self._lib.take_log()
        self._links: dict[str, int] = {}
        self._loaded = False
        self._object: int | None = self._c.bpf_object__open_file(os.fsencode(path), None)
        if not self._object:
            raise BpfError(f"{path.name} cannot be opened", ctypes.get_errno(), self._lib.take_log())
        self._programs: dict[str, int] = {}
        program = self._c.bpf_object__next_program(self._object, None)
        while program:
            self._programs[self._c.bpf_program__name(program).decode()] = program
            program = self._c.bpf_object__next_program(self._object, program)

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of all programs in the object."""
        return tuple(self._programs)

    @property
    def attached(self) -> tuple[str, ...]:
        """Names of the programs that are attached."""
        return tuple(self._links)

    def set_autoload(self, name: str, load: bool) -> None:
        """Whether :meth:`load` loads this program; to be called before it."""
        self._check(self._c.bpf_program__set_autoload(self._programs[name], load), f"choosing {name}")

    def set_max_entries(self, map_name: str, entries: int) -> None:
        """Size of a map (bytes, for a ring buffer); before :meth:`load`."""
        self._check(self._c.bpf_map__set_max_entries(self._find_map(map_name), entries), f"sizing {map_name}")

    def load(self) -> None:
        """Create the maps and load the programs.

        Raises:
            BpfError: with the verifier's log.
        """
        self._check(self._c.bpf_object__load(self._object), "loading the BPF programs")
        self._loaded = True

    def attach(self, name: str) -> None:
        """Attach one loaded program to what its section names."""
        link = self._c.bpf_program__attach(self._programs[name])
        if not link:
            raise BpfError(f"attaching {name}", ctypes.get_errno(), self._lib.take_log())
        self._links[name] = link

    def map(self, name: str, key: str, value: str, *, per_cpu: bool = False) -> BpfMap:
        """A map, its key and value as :mod:`struct` formats.

        Raises:
            BpfError: there is no such map, or a size is not the kernel's: the layouts differ.
        """
        found = self._find_map(name)
        sizes = self._c.bpf_map__key_size(found), self._c.bpf_map__value_size(found)
        ours = struct.calcsize(key), struct.calcsize(value)
        if sizes != ours:
            raise BpfError(f"map {name} has key and value of {sizes} bytes, expected {ours}", errno.EINVAL)
        cpus = self._c.libbpf_num_possible_cpus() if per_cpu else 1
        return BpfMap(self._c, name, self._c.bpf_map__fd(found), struct.Struct(key), struct.Struct(value), cpus)

    def ring(self, name: str, sample: Callable[[bytes], bool]) -> BpfRing:
        """The ring buffer map ``name``; ``sample`` gets each record and says whether to go on."""
        return BpfRing(self._c, self._c.bpf_map__fd(self._find_map(name)), sample)

    def run(self, name: str, context: bytes) -> bytes:
        """Run a ``syscall`` program once; its context as it left it."""
        buffer = ctypes.create_string_buffer(context, len(context))
        options = _TestRun(sz=ctypes.sizeof(_TestRun), ctx_size_in=len(context))
        options.ctx_in = ctypes.cast(buffer, c_void_p)
        fd = self._c.bpf_program__fd(self._programs[name])
        self._check(self._c.bpf_prog_test_run_opts(fd, ctypes.byref(options)), f"running {name}")
        return buffer.raw

    def run_stats(self, name: str) -> tuple[int, int, int]:
        """Nanoseconds run, times run (both 0 unless statistics are on), and times skipped as nested."""
        info = ctypes.create_string_buffer(_INFO_BYTES)
        size = c_uint32(_INFO_BYTES)
        fd = self._c.bpf_program__fd(self._programs[name])
        self._check(self._c.bpf_obj_get_info_by_fd(fd, info, ctypes.byref(size)), f"reading about {name}")
        run_ns, runs, skipped = struct.unpack_from("=QQQ", info, _RUN_TIME_OFFSET)
        return run_ns, runs, skipped

    def close(self) -> None:
        """Detach and free everything; again is harmless."""
        for link in self._links.values():
            self._c.bpf_link__destroy(link)
        self._links.clear()
        if self._object:
            self._c.bpf_object__close(self._object)
            self._object = None

    def _find_map(self, name: str) -> int:
        found: int | None = self._c.bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise BpfError(f"no map {name} in the object", errno.ENOENT)
        return found

    def _check(self, result: int, what: str) -> None:
        if result < 0:
            raise BpfError(what, -result, self._lib.take_log())
