"""Programs that BCC compiled, loaded by the system call: the same face as :class:`~.libbpf.BpfObject`.

BCC compiled plain instructions. Here the maps are created, their numbers in the instructions become descriptors and
those of kernel functions the ids that this kernel calls them by, and the kernel is asked to load and attach.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable

from tidegate_collectors.kernel.bcc_compile import Compiled, Program
from tidegate_collectors.kernel.bpf_ring import PlainRing
from tidegate_collectors.kernel.bpf_syscall import TASK_STORAGE_BTF, BpfCalls, close_all, possible_cpus
from tidegate_collectors.kernel.libbpf_error import BpfError
from tidegate_collectors.kernel.libbpf_maps import BpfMap

_LICENCE = b"Dual BSD/GPL"
_TRACING, _SYSCALL = 26, 31  # types of programs
_RAW_TP = 23  # attach type
_SLEEPABLE = 1 << 4
_RINGBUF, _TASK_STORAGE = 27, 29
_LOAD_64, _CALL = 0x18, 0x85
_PSEUDO_MAP, _PSEUDO_KFUNC = 1, 2  # what the number in an instruction means
_INSTRUCTION = struct.Struct("=BBhi")
_RUN_TIME_OFFSET, _INFO_BYTES = 192, 224  # of run_time_ns and run_cnt in struct bpf_prog_info (uapi)


class BccObject:
    """The collector's programs as BCC compiled them. Not thread-safe."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._calls = BpfCalls()
        self._wanted = set(compiled.programs)
        self._entries: dict[str, int] = {}
        self._maps: dict[str, int] = {}
        self._programs: dict[str, int] = {}
        self._links: dict[str, int] = {}

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of all programs."""
        return tuple(self._compiled.programs)

    @property
    def attached(self) -> tuple[str, ...]:
        """Names of the programs that are attached."""
        return tuple(self._links)

    def set_autoload(self, name: str, load: bool) -> None:
        """Whether :meth:`load` loads this program; to be called before it."""
        (self._wanted.add if load else self._wanted.discard)(name)

    def set_max_entries(self, map_name: str, entries: int) -> None:
        """Size of a map (bytes, for a ring buffer); before :meth:`load`."""
        self._entries[map_name] = entries

    def load(self) -> None:
        """Create the maps and load the programs.

        Raises:
            BpfError: with the verifier's log.
        """
        for name in self._compiled.maps:
            self._maps[name] = self._create_map(name)
        for name, program in self._compiled.programs.items():
            if name in self._wanted:
                self._programs[name] = self._load_program(name, program)

    def attach(self, name: str) -> None:
        """Attach one loaded program to its tracepoint."""
        link = self._calls.open_tracepoint(self._programs[name])
        if link < 0:
            raise BpfError(f"attaching {name}", -link)
        self._links[name] = link

    def map(self, name: str, key: str, value: str, *, per_cpu: bool = False) -> BpfMap:
        """A map, its key and value as :mod:`struct` formats.

        Raises:
            BpfError: there is no such map, or a size is not that of the C source: the layouts differ.
        """
        fd = self._map_fd(name)
        made = self._compiled.maps[name]
        sizes, ours = (made.key_bytes, made.value_bytes), (struct.calcsize(key), struct.calcsize(value))
        if sizes != ours:
            raise BpfError(f"map {name} has key and value of {sizes} bytes, expected {ours}", errno.EINVAL)
        cpus = possible_cpus() if per_cpu else 1
        return BpfMap(self._calls, name, fd, struct.Struct(key), struct.Struct(value), cpus)

    def ring(self, name: str, sample: Callable[[bytes], bool]) -> PlainRing:
        """The ring buffer map ``name``; ``sample`` gets each record and says whether to go on."""
        return PlainRing(self._map_fd(name), self._entries_of(name), sample)

    def run(self, name: str, context: bytes) -> bytes:
        """Run a ``syscall`` program once; its context as it left it."""
        buffer = ctypes.create_string_buffer(context, len(context))
        result = self._calls.test_run(self._programs[name], buffer, len(context))
        if result < 0:
            raise BpfError(f"running {name}", -result)
        return buffer.raw

    def run_stats(self, name: str) -> tuple[int, int, int]:
        """Nanoseconds run, times run (both 0 unless statistics are on), and times skipped as nested."""
        info = ctypes.create_string_buffer(_INFO_BYTES)
        result = self._calls.info(self._programs[name], info, _INFO_BYTES)
        if result < 0:
            raise BpfError(f"reading about {name}", -result)
        run_ns, runs, skipped = struct.unpack_from("=QQQ", info, _RUN_TIME_OFFSET)
        return run_ns, runs, skipped

    def close(self) -> None:
        """Detach and free everything; again is harmless."""
        for table in (self._links, self._programs, self._maps):
            close_all(list(table.values()))
            table.clear()

    def _map_fd(self, name: str) -> int:
        if name not in self._maps:
            raise BpfError(f"no map {name} in the programs", errno.ENOENT)
        return self._maps[name]

    def _entries_of(self, name: str) -> int:
        return self._entries.get(name, self._compiled.maps[name].entries)

    def _create_map(self, name: str) -> int:
        made = self._compiled.maps[name]
        sizes = made.key_bytes, made.value_bytes
        if made.kind != _TASK_STORAGE:
            return self._calls.create_map(name, made.kind, *sizes, self._entries_of(name), made.flags)
        types = self._calls.load_btf(TASK_STORAGE_BTF)
        try:
            return self._calls.create_map(name, made.kind, *sizes, 0, made.flags, types)
        finally:
            os.close(types)

    def _load_program(self, name: str, program: Program) -> int:
        code = self._linked(name, program.code)
        if program.tracepoint is None:
            return self._calls.load_program(name, _SYSCALL, code, _LICENCE, flags=_SLEEPABLE)
        if program.btf_id is None:
            # In libbpf's words, which bpf_reasons.py knows.
            message = f"prog '{name}': failed to find kernel BTF type ID of '{program.tracepoint}': -3"
            raise BpfError("loading the BPF programs", errno.ESRCH, message)
        return self._calls.load_program(name, _TRACING, code, _LICENCE, attach_type=_RAW_TP, btf_id=program.btf_id)

    def _linked(self, name: str, code: bytes) -> bytes:
        """The instructions with descriptors of maps and ids of functions for the numbers that stand for them."""
        maps = {made.number: self._maps[map_name] for map_name, made in self._compiled.maps.items()}
        functions = {made.number: (function, made.btf_id) for function, made in self._compiled.kfuncs.items()}
        out = bytearray(code)
        at = 0
        while at < len(out):
            operation, registers, offset, number = _INSTRUCTION.unpack_from(out, at)
            if operation == _LOAD_64:
                if registers >> 4 == _PSEUDO_MAP:
                    _INSTRUCTION.pack_into(out, at, operation, registers, offset, maps[number])
                at += _INSTRUCTION.size  # it has two parts
            elif operation == _CALL and number in functions:
                function, btf_id = functions[number]
                if btf_id is None:
                    raise BpfError(
                        f"this kernel has no {function}, which {name} calls", errno.ESRCH, f"prog '{name}'",
                        explained=True,
                    )  # fmt: skip
                _INSTRUCTION.pack_into(out, at, operation, _PSEUDO_KFUNC << 4, offset, btf_id)
            at += _INSTRUCTION.size
        return bytes(out)
