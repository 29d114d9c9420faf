"""The headers that BCC compiles our programs with, made from the running kernel's BTF.

BCC wants a tree of kernel headers. Those of a distribution's package may belong to another kernel, and wrong layouts
give wrong figures without an error. So it gets a tree of our own, in which ``bpf/kernel_types.h`` finds the same few
types with every field where this kernel has it.
"""

from __future__ import annotations

import re
from pathlib import Path

from tidegate_collectors.kernel.btf import Btf, BtfError

_STRUCT = re.compile(r"^struct (\w+) \{\n((?:\t.*;\n)+)\};\n", re.MULTILINE)
_FIELD = re.compile(r"^\t(?P<type>[\w ]+?) ?(?P<stars>\**)(?P<name>\w+)(?P<array>\[\d+\])?;\n", re.MULTILINE)
_ENUM = re.compile(r"^enum (\w+) \{ (.*) \};\n", re.MULTILINE)
_BLOCK = re.compile(r"^#else\n(?P<body>.*?)^#endif /\* TG_BCC \*/\n", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)

# BCC puts its own headers before ours: of bpf.h, helpers.h and proto.h nothing is wanted but the licence's section.
_KCONFIG = """\
#define __LINUX_BPF_H__
#define _UAPI__LINUX_BPF_H__
#define __BPF_HELPERS_H
#define __BCC_PROTO_H
#define BPF_NO_PRESERVE_ACCESS_INDEX 1
#define BCC_SEC(name) __attribute__((section(name), used))
"""


def kernel_layout(kernel_types: str, btf: Btf) -> str:
    """The types that ``kernel_types`` declares, as C, with the offsets and sizes of the kernel that ``btf`` is of.

    Raises:
        BtfError: the kernel has no such type or field.
    """
    block = _BLOCK.search(kernel_types)
    if block is None:
        raise BtfError("kernel_types.h has no types for BCC to replace")
    text = _COMMENT.sub("", block["body"])
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#pragma")) + "\n"
    text = _ENUM.sub(lambda found: _enum(btf, found[1], found[2]), text)
    return _STRUCT.sub(lambda found: _struct(btf, found[1], found[2]), text)


def write_tree(directory: Path, layout: str) -> None:
    """Write the headers: ``directory`` becomes the kernel's source tree for BCC, and a place for ``#include``."""
    linux = directory / "include" / "linux"
    linux.mkdir(parents=True)
    (linux / "kconfig.h").write_text(_KCONFIG)
    (directory / "kernel_layout.h").write_text(layout)


def _enum(btf: Btf, name: str, constants: str) -> str:
    names = re.findall(r"(\w+) = ", constants)
    values = ", ".join(f"{constant} = {btf.enum_value(name, constant)}" for constant in names)
    return f"enum {name} {{ {values} }};\n"


def _struct(btf: Btf, name: str, body: str) -> str:
    """Each field in a struct of its own, after as many bytes as lie before it; all of them in one union."""
    fields, checks = [], [f'_Static_assert(sizeof(struct {name}) == {btf.struct_bytes(name)}, "size of {name}");\n']
    matches = list(_FIELD.finditer(body))
    if len(matches) != body.count("\n"):
        raise BtfError(f"struct {name} in kernel_types.h has a line that is no plain field")
    for found in matches:
        field = btf.field(name, found["name"])
        array = found["array"] and (found["array"] if field.bytes else "[0]")  # one of no fixed length takes no room
        declaration = f"{found['type']} {found['stars']}{found['name']}{array or ''}"
        fields.append(f"\t\tstruct {{ char tg_before_{found['name']}[{field.offset}]; {declaration}; }};\n")
        place = f"((struct {name} *)0)->{found['name']}"
        size = field.bytes
        if found["array"]:
            place, size = f"{place}[0]", field.element_bytes or 0
        checks.append(f'_Static_assert(sizeof({place}) == {size}, "size of {name}.{found["name"]}");\n')
        offset = f"__builtin_offsetof(struct {name}, {found['name']})"
        checks.append(f'_Static_assert({offset} == {field.offset}, "place of {name}.{found["name"]}");\n')
    size_of_all = f"\t\tchar tg_bytes[{btf.struct_bytes(name)}];\n"
    return f"struct {name} {{\n\tunion {{\n{''.join(fields)}{size_of_all}\t}};\n}};\n{''.join(checks)}"
