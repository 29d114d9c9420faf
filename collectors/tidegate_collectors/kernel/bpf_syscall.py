"""The system call bpf(2) by ctypes: maps, programs, tracepoints, without any library.

For programs that BCC compiled (:mod:`.bcc_object`). The methods of :class:`BpfCalls` that :class:`~.libbpf_maps.BpfMap`
uses have the names and results of libbpf's functions: 0 or a descriptor, or a negative errno.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path
from typing import Any

from tidegate_collectors.kernel.libbpf_error import BpfError

_NUMBERS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _NEXT_KEY, _PROG_LOAD = 0, 1, 2, 3, 4, 5
_TEST_RUN, _INFO_BY_FD, _RAW_TRACEPOINT_OPEN, _BTF_LOAD, _ENABLE_STATS = 10, 15, 17, 18, 32
_LOG_BYTES = 1 << 20

# A BTF of two integers, for the key and the value of task storage, which the kernel wants to know the types of.
_INT_TYPES = struct.pack("=IIII", 1, 1 << 24, 4, 1 << 24 | 32) + struct.pack("=IIII", 5, 1 << 24, 8, 64)
_INT_NAMES = b"\0int\0u64\0"
_INTS = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(_INT_TYPES), len(_INT_TYPES), len(_INT_NAMES))
TASK_STORAGE_BTF = _INTS + _INT_TYPES + _INT_NAMES
KEY_TYPE, VALUE_TYPE = 1, 2


class BpfCalls:
    """bpf(2) of this machine.

    Raises:
        BpfError: the number of the system call is not known for its architecture.
    """

    def __init__(self) -> None:
        machine = platform.machine()
        if machine not in _NUMBERS:
            raise BpfError(f"bpf(2) is not known for the architecture {machine}", errno.ENOSYS, explained=True)
        self._number = ctypes.c_long(_NUMBERS[machine])
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long

    def bpf_map_lookup_elem(self, fd: int, key: Any, value: Any) -> int:
        return self._call(_LOOKUP, struct.pack("=IxxxxQQQ", fd, _address(key), _address(value), 0))

    def bpf_map_update_elem(self, fd: int, key: Any, value: Any, flags: int) -> int:
        return self._call(_UPDATE, struct.pack("=IxxxxQQQ", fd, _address(key), _address(value), flags))

    def bpf_map_delete_elem(self, fd: int, key: Any) -> int:
        return self._call(_DELETE, struct.pack("=IxxxxQQQ", fd, _address(key), 0, 0))

    def bpf_map_get_next_key(self, fd: int, key: Any | None, following: Any) -> int:
        previous = 0 if key is None else _address(key)
        return self._call(_NEXT_KEY, struct.pack("=IxxxxQQQ", fd, previous, _address(following), 0))

    def create_map(self, name: str, kind: int, key_bytes: int, value_bytes: int, entries: int, flags: int,
                   btf_fd: int | None = None) -> int:  # fmt: skip
        """A descriptor of a new map."""
        types = (0, 0, 0) if btf_fd is None else (btf_fd, KEY_TYPE, VALUE_TYPE)
        attributes = struct.pack("=IIIIIII16sIIII", kind, key_bytes, value_bytes, entries, flags, 0, 0,
                                 _object_name(name), 0, *types)  # fmt: skip
        return self._checked(_MAP_CREATE, attributes, f"creating map {name}")

    def load_btf(self, data: bytes) -> int:
        """A descriptor of types."""
        buffer = ctypes.create_string_buffer(data, len(data))
        attributes = struct.pack("=QQIII", _address(buffer), 0, len(data), 0, 0)
        return self._checked(_BTF_LOAD, attributes, "loading the types of a map")

    def load_program(self, name: str, kind: int, code: bytes, licence: bytes, *, flags: int = 0, attach_type: int = 0,
                     btf_id: int = 0) -> int:  # fmt: skip
        """A descriptor of a program that the verifier let pass.

        Raises:
            BpfError: with its log.
        """
        instructions = ctypes.create_string_buffer(code, len(code))
        text = ctypes.create_string_buffer(licence)
        refused = 0
        for log_bytes in (0, _LOG_BYTES):  # the log costs time, so only for a program that was refused
            log = ctypes.create_string_buffer(max(log_bytes, 1))
            attributes = struct.pack(
                "=IIQQIIQII16sIIIIQIIQII", kind, len(code) // 8, _address(instructions), _address(text),
                1 if log_bytes else 0, log_bytes, _address(log) if log_bytes else 0, 0, flags, _object_name(name),
                0, attach_type, 0, 0, 0, 0, 0, 0, 0, btf_id,
            )  # fmt: skip
            result = self._call(_PROG_LOAD, attributes)
            if result >= 0:
                return result
            refused = refused or result  # not that the log was too long, which older kernels say instead
        messages = log.value.decode(errors="replace")
        raise BpfError("loading the BPF programs", -refused, f"prog '{name}': refused\n{messages}")

    def open_tracepoint(self, program_fd: int) -> int:
        """Attach a program to the tracepoint that it was loaded for, as long as the descriptor is open."""
        return self._call(_RAW_TRACEPOINT_OPEN, struct.pack("=QIxxxx", 0, program_fd))

    def test_run(self, program_fd: int, context: Any, size: int) -> int:
        """Run a program once on a buffer."""
        return self._call(
            _TEST_RUN,
            struct.pack("=IIIIQQIIIIQQIII", program_fd, 0, 0, 0, 0, 0, 0, 0, size, 0, _address(context), 0, 0, 0, 0),
        )

    def info(self, fd: int, buffer: Any, size: int) -> int:
        """Fill the kernel's description of a program or map."""
        return self._call(_INFO_BY_FD, struct.pack("=IIQ", fd, size, _address(buffer)))

    def enable_stats(self) -> int:
        """Have the kernel time programs, as long as the returned descriptor is open.

        Raises:
            BpfError: EPERM without CAP_SYS_ADMIN.
        """
        what = "turning on the run time statistics of BPF programs"
        return self._checked(_ENABLE_STATS, struct.pack("=I", 0), what)

    def _call(self, command: int, attributes: bytes) -> int:
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        result = int(self._syscall(self._number, ctypes.c_int(command), buffer, ctypes.c_uint(len(attributes))))
        return -ctypes.get_errno() if result < 0 else result

    def _checked(self, command: int, attributes: bytes, what: str) -> int:
        result = self._call(command, attributes)
        if result < 0:
            raise BpfError(what, -result)
        return result


def possible_cpus(path: Path = Path("/sys/devices/system/cpu/possible")) -> int:
    """For how many CPUs a per-CPU map has values."""
    return int(path.read_text().strip().rpartition(",")[2].rpartition("-")[2]) + 1


def close_all(descriptors: list[int]) -> None:
    """Close and forget them."""
    while descriptors:
        os.close(descriptors.pop())


def _address(buffer: Any) -> int:
    return ctypes.addressof(buffer)


def _object_name(name: str) -> bytes:
    return name.encode()[:15]
