"""Reads the kernel's own description of its types (BTF): where fields lie, values of enums, ids of types.

Only what our programs need to be compiled for the running kernel. One pass over all types takes about 0.2 s and some
10 MB, so it is done in a process of its own (:mod:`.bcc_child`).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = 0xEB9F
_PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FUNC, _ENUM64 = 2, 3, 4, 5, 6, 12, 19
_MODIFIERS = frozenset({8, 9, 10, 11, 18})  # typedef, volatile, const, restrict, type tag
_EXTRA_BYTES = {1: 4, _ARRAY: 12, 14: 4, 17: 4}  # int, array, var, decl tag
_MEMBER_BYTES = {_STRUCT: 12, _UNION: 12, _ENUM: 8, 13: 8, 15: 12, _ENUM64: 12}  # func proto, data section
_KINDS = range(1, 20)
_MAX_DEPTH = 32  # of modifiers and of anonymous members; a file that is no BTF may be circular


class BtfError(Exception):
    """This is no BTF, or it has not what was asked for; the message says what."""


@dataclass(frozen=True, slots=True)
class Field:
    """Where a field lies in its struct. ``element_bytes``: of one element, when it is an array."""

    offset: int
    bytes: int
    element_bytes: int | None


class Btf:
    """The types in the bytes of a BTF file.

    Raises:
        BtfError: no BTF, or of a kind that is not known.
    """

    def __init__(self, data: bytes) -> None:
        try:
            magic, _version, _flags, header, type_off, type_len, str_off, str_len = struct.unpack_from(
                "=HBBIIIII", data
            )
        except struct.error:
            raise BtfError("it is too short to be BTF") from None
        if magic != _MAGIC:
            raise BtfError("it does not begin as BTF does")
        self._types = data[header + type_off : header + type_off + type_len]
        self._strings = data[header + str_off : header + str_off + str_len]
        self._at = array("I", [0])  # byte offset of each type, by id; 0 is void
        self._by_name: dict[int, list[int]] = {}
        self._index()

    def _index(self) -> None:
        unpack, types, by_name, at = struct.Struct("=III").unpack_from, self._types, self._by_name, 0
        try:
            while at < len(types):
                name, info, _ = unpack(types, at)
                kind = info >> 24 & 31
                if kind not in _KINDS:
                    raise BtfError(f"it has a kind of type ({kind}) that Tidegate does not know")
                if name:
                    by_name.setdefault(name, []).append(len(self._at))
                self._at.append(at)
                at += 12 + _EXTRA_BYTES.get(kind, 0) + _MEMBER_BYTES.get(kind, 0) * (info & 0xFFFF)
        except struct.error:
            raise BtfError("it is cut off") from None

    def id_of(self, name: str, *kinds: int) -> int | None:
        """Id of the first type of this name, of one of these kinds if there are any."""
        return next((i for i in self._ids(name) if not kinds or self._kind(i) in kinds), None)

    def function(self, name: str) -> int | None:
        """Id of a function of the kernel."""
        return self.id_of(name, _FUNC)

    def struct_bytes(self, name: str) -> int:
        """Size of a struct."""
        return self._third(self._struct(name))

    def field(self, struct_name: str, field: str) -> Field:
        """A field of a struct, also when it lies in an anonymous part of it.

        Raises:
            BtfError: there is none, or it is a bit field.
        """
        found = self._find(self._struct(struct_name), field, 0, 0)
        if found is None:
            raise BtfError(f"this kernel's struct {struct_name} has no field {field}")
        bits, type_id = found
        if bits % 8:
            raise BtfError(f"this kernel's {struct_name}.{field} is a bit field")
        resolved = self._resolve(type_id)
        element = self._array(resolved)[0] if self._kind(resolved) == _ARRAY else None
        return Field(bits // 8, self._bytes(resolved), None if element is None else self._bytes(element))

    def enum_value(self, enum: str, name: str) -> int:
        """Value of one constant.

        Raises:
            BtfError: there is none of this name.
        """
        for type_id in self._ids(enum):
            if self._kind(type_id) != _ENUM:
                continue
            for at in self._member_offsets(type_id, 8):
                name_off, value = struct.unpack_from("=Ii", self._types, at)
                if self._text(name_off) == name:
                    return int(value)
        raise BtfError(f"this kernel's enum {enum} has no {name}")

    # --- types by id -------------------------------------------------------------------------------------------------

    def _ids(self, name: str) -> Iterator[int]:
        needle, at = b"\0" + name.encode() + b"\0", -1
        while (at := self._strings.find(needle, at + 1)) >= 0:
            yield from self._by_name.get(at + 1, ())

    def _struct(self, name: str) -> int:
        found = self.id_of(name, _STRUCT)
        if found is None:
            raise BtfError(f"this kernel has no struct {name}")
        return found

    def _kind(self, type_id: int) -> int:
        return self._info(type_id) >> 24 & 31

    def _info(self, type_id: int) -> int:
        return int(struct.unpack_from("=I", self._types, self._offset(type_id) + 4)[0])

    def _third(self, type_id: int) -> int:
        """Size of a type, or what it refers to."""
        return int(struct.unpack_from("=I", self._types, self._offset(type_id) + 8)[0])

    def _offset(self, type_id: int) -> int:
        if not 0 < type_id < len(self._at):
            raise BtfError(f"it refers to a type {type_id} that is not there")
        return self._at[type_id]

    def _text(self, at: int) -> str:
        return self._strings[at : self._strings.index(b"\0", at)].decode(errors="replace")

    def _member_offsets(self, type_id: int, size: int) -> range:
        start = self._offset(type_id) + 12
        return range(start, start + size * (self._info(type_id) & 0xFFFF), size)

    def _resolve(self, type_id: int) -> int:
        for _ in range(_MAX_DEPTH):
            if self._kind(type_id) not in _MODIFIERS:
                return type_id
            type_id = self._third(type_id)
        raise BtfError("its types are circular")

    def _array(self, type_id: int) -> tuple[int, int]:
        element, _index, count = struct.unpack_from("=III", self._types, self._offset(type_id) + 12)
        return self._resolve(element), count

    def _bytes(self, type_id: int) -> int:
        kind = self._kind(type_id)
        if kind == _PTR:
            return struct.calcsize("P")
        if kind == _ARRAY:
            element, count = self._array(type_id)
            return self._bytes(element) * count
        return self._third(type_id)

    def _find(self, type_id: int, field: str, base_bits: int, depth: int) -> tuple[int, int] | None:
        """Offset in bits and type of a field; looks into anonymous members."""
        if depth > _MAX_DEPTH:
            raise BtfError("its types are circular")
        has_bit_fields = self._info(type_id) >> 31
        for at in self._member_offsets(type_id, 12):
            name, member, offset = struct.unpack_from("=III", self._types, at)
            bits = base_bits + (offset & 0xFFFFFF if has_bit_fields else offset)
            if not name:
                inner = self._resolve(member)
                if self._kind(inner) in (_STRUCT, _UNION) and (found := self._find(inner, field, bits, depth + 1)):
                    return found
            elif self._text(name) == field:
                if has_bit_fields and offset >> 24:
                    raise BtfError(f"this kernel's {field} is a bit field")
                return bits, member
        return None
