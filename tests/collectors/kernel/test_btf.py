"""The reader of BTF, on types made by hand, and the headers that are made from them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tidegate_collectors.kernel.bcc_headers import kernel_layout
from tidegate_collectors.kernel.btf import Btf, BtfError
from tidegate_collectors.kernel.build import SOURCE_DIR

INT, PTR, ARRAY, STRUCT, UNION, ENUM, TYPEDEF, FUNC = 1, 2, 3, 4, 5, 6, 8, 12


class Types:
    """Builds the bytes of a BTF file. Types get the ids 1, 2, and so on."""

    def __init__(self) -> None:
        self._strings = b"\0"
        self._types: list[bytes] = []

    def name(self, text: str) -> int:
        if not text:
            return 0
        at = len(self._strings)
        self._strings += text.encode() + b"\0"
        return at

    def add(self, kind: int, name: str, third: int, extra: bytes = b"", count: int = 0, flag: bool = False) -> int:
        info = kind << 24 | count | flag << 31
        self._types.append(struct.pack("=III", self.name(name), info, third) + extra)
        return len(self._types)

    def record(
        self, name: str, size: int, *members: tuple[str, int, int], kind: int = STRUCT, flag: bool = False
    ) -> int:
        """Members: name, type, offset in bits."""
        extra = b"".join(struct.pack("=III", self.name(member), of, offset) for member, of, offset in members)
        return self.add(kind, name, size, extra, len(members), flag)

    def data(self) -> bytes:
        types = b"".join(self._types)
        return struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(self._strings)) + (
            types + self._strings
        )


def test_fields_are_found_where_they_lie_also_in_anonymous_parts() -> None:
    t = Types()
    integer = t.add(INT, "int", 4, struct.pack("=I", 32))
    alias = t.add(TYPEDEF, "pid_t", integer)
    pointer = t.add(PTR, "", 0)
    array = t.add(ARRAY, "", 0, struct.pack("=III", alias, integer, 4))
    inner = t.record("", 8, ("seventh", alias, 0), ("eighth", integer, 32))
    union = t.record("", 8, ("other", pointer, 0), ("", inner, 0), kind=UNION)
    t.record("thing", 64, ("first", alias, 0), ("list", array, 64), ("", union, 256), ("last", pointer, 448))
    btf = Btf(t.data())
    assert btf.struct_bytes("thing") == 64
    places = {name: btf.field("thing", name) for name in ("first", "list", "other", "eighth", "last")}
    assert {name: (it.offset, it.bytes, it.element_bytes) for name, it in places.items()} == {
        "first": (0, 4, None),
        "list": (8, 16, 4),
        "other": (32, 8, None),
        "eighth": (36, 4, None),
        "last": (56, 8, None),
    }


def test_what_is_not_there_or_no_whole_byte_is_refused() -> None:
    t = Types()
    integer = t.add(INT, "int", 4, struct.pack("=I", 32))
    t.record("thing", 8, ("plain", integer, 0), ("bits", integer, 3 << 24 | 32), flag=True)
    btf = Btf(t.data())
    assert btf.field("thing", "plain").offset == 0
    with pytest.raises(BtfError, match="has no field nothing"):
        btf.field("thing", "nothing")
    with pytest.raises(BtfError, match="bits is a bit field"):
        btf.field("thing", "bits")
    with pytest.raises(BtfError, match="no struct nothing"):
        btf.field("nothing", "x")


def test_functions_tracepoints_and_enums_have_their_own_names() -> None:
    t = Types()
    t.record("same", 8)
    function = t.add(FUNC, "same", 0)
    values = struct.pack("=IiIi", t.name("ZERO"), 0, t.name("MINUS"), -5)
    t.add(ENUM, "kinds", 4, values, 2)
    btf = Btf(t.data())
    assert btf.function("same") == function
    assert btf.function("sam") is None
    assert btf.id_of("same") == 1
    assert btf.enum_value("kinds", "MINUS") == -5
    with pytest.raises(BtfError, match="enum kinds has no ONE"):
        btf.enum_value("kinds", "ONE")


def test_what_is_no_btf_is_refused() -> None:
    circular = Types()
    circular.add(TYPEDEF, "a", 2)
    circular.add(TYPEDEF, "b", 1)
    circular.record("thing", 8, ("x", 1, 0))
    for data, words in (
        (b"", "too short"),
        (b"\x7fELF" + bytes(60), "does not begin"),
        (struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, 5, 5, 1) + bytes(6), "cut off"),
        (
            struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, 12, 12, 1) + struct.pack("=III", 0, 31 << 24, 0),
            "kind of type",
        ),
    ):
        with pytest.raises(BtfError, match=words):
            Btf(data)
    with pytest.raises(BtfError, match="circular"):
        Btf(circular.data()).field("thing", "x")


@pytest.mark.skipif(not Path("/sys/kernel/btf/vmlinux").exists(), reason="this kernel has no BTF")
def test_the_running_kernels_layout_holds_all_our_types() -> None:
    btf = Btf(Path("/sys/kernel/btf/vmlinux").read_bytes())
    types = (SOURCE_DIR / "kernel_types.h").read_text()
    layout = kernel_layout(types, btf)
    for name in ("task_struct", "mm_struct", "percpu_counter", "signal_struct", "css_set", "kernfs_node", "bpf_array"):
        assert f"struct {name} {{" in layout
        assert f'_Static_assert(sizeof(struct {name}) == {btf.struct_bytes(name)}, "size of {name}");' in layout
    assert btf.field("task_struct", "comm").bytes == 16
    assert btf.struct_bytes("percpu_counter") > 16, "the array that is indexed by a variable has its true stride"


def test_a_header_that_cannot_be_replaced_is_refused() -> None:
    t = Types()
    t.record("thing", 8, ("x", 1, 0))
    btf = Btf(t.data())
    with pytest.raises(BtfError, match="has no types for BCC"):
        kernel_layout("struct thing {\n\tint x;\n};\n", btf)
    with pytest.raises(BtfError, match="no plain field"):
        kernel_layout("#else\nstruct thing {\n\tint x, y;\n};\n#endif /* TG_BCC */\n", btf)
