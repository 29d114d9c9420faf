"""The process in which BCC compiles: a request of JSON on its standard input, the programs on its standard output.

BCC brings libclang and libLLVM, 120 MB that a process never gives back, so this one ends when it has answered. It
needs no rights, loads nothing into the kernel, and sees of the system's Python packages BCC alone. See
:mod:`.bcc_compile` for both ends of the talk.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from tidegate_collectors import paths
from tidegate_collectors.kernel.bcc_headers import kernel_layout, write_tree
from tidegate_collectors.kernel.btf import Btf, BtfError

_PROGRAM = re.compile(r"^TG_PROGRAM\((\w+), (\w+),", re.MULTILINE)
_SYSCALL = re.compile(r"^TG_SYSCALL\((\w+),", re.MULTILINE)
_MAP = re.compile(r"^TG_(?:MAP|TASK_STORAGE|RING)\((\w+),", re.MULTILINE)
_KFUNC = re.compile(r"^TG_KFUNC\((\w+),", re.MULTILINE)
_FLAGS = ("-DTG_BCC", "-Wall", "-Wno-unused-function", "-Wno-unused-variable", "-Werror")
_MOVE = 0xB7  # a number into a register


class CompileError(Exception):
    """It cannot be compiled here; the message says why."""


def main() -> int:
    """Answer one request. What went wrong is ``error`` in the answer; BCC and clang write to standard error."""
    request = json.load(sys.stdin)
    # BCC prints what it likes: the answer gets the standard output to itself.
    answer_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        answer: dict[str, Any] = {"compiled": compile_all(request)}
    except BtfError as error:
        answer = {"error": f"the kernel's BTF ({request['btf']}): {error}"}
    except CompileError as error:
        answer = {"error": str(error)}
    except ImportError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": f"{error.filename or 'a file'}: {error.strerror}"}
    with answer_to:
        json.dump(answer, answer_to)
    return 0


def compile_all(request: dict[str, Any]) -> dict[str, Any] | None:
    """What :class:`~.bcc_compile.Compiled` holds; ``None`` when it does not compile, and BCC has told why on stderr."""
    sources = Path(request["sources"])
    btf = Btf(Path(request["btf"]).read_bytes())
    layout = request.get("layout") or kernel_layout((sources / "kernel_types.h").read_text(), btf)
    text = "\n".join(path.read_text() for path in (sources / "collector.bpf.c", *sorted(sources.glob("*.h"))))
    tracepoints: dict[str, str] = dict(_PROGRAM.findall(text))
    programs = [*tracepoints, *_SYSCALL.findall(text)]
    described = [*_MAP.findall(text), *(kfuncs := _KFUNC.findall(text))]
    with tempfile.TemporaryDirectory(prefix="tidegate-bcc-", dir=_scratch(request)) as name:  # for us alone: 0700
        write_tree(Path(name), layout)
        module = _compile(_bcc(Path(request["bcc"])), _main_file(programs, described), Path(name), sources)
        if module is None:
            return None
        code = {program: bytes(module.dump_func(program.encode())) for program in programs}
        facts = {thing: _described(module.dump_func(f"describe_{thing}".encode())) for thing in described}
    return {
        "programs": {
            program: {
                "code": base64.b64encode(code[program]).decode(),
                "tracepoint": tracepoints.get(program),
                "btf_id": btf.id_of(f"btf_trace_{tracepoints[program]}") if program in tracepoints else None,
            }
            for program in programs
        },
        "maps": {name: facts[name] for name in described if name not in kfuncs},
        "kfuncs": {name: {"number": facts[name]["number"], "btf_id": btf.function(name)} for name in kfuncs},
    }


def _scratch(request: dict[str, Any]) -> str:
    """Where nobody else can put other headers in the place of ours.

    Raises:
        CompileError: there is no such place.
    """
    try:
        return str(paths.settled_dir(Path(request.get("scratch") or tempfile.gettempdir())))
    except PermissionError as error:
        raise CompileError(f"{error}; or set TMPDIR to a directory of your own") from None


def _bcc(package: Path) -> Any:
    """BCC by its path, so that nothing beside it in its directory can be imported."""
    spec = importlib.util.spec_from_file_location(
        "bcc", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package at {package}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a library is missing, or this Python is too new for it
        raise ImportError(f"{package} cannot be imported: {error}") from error
    return module


def _main_file(programs: list[str], described: list[str]) -> str:
    """BCC compiles only functions of its main file into programs, and rewrites what is in there: so hardly anything."""
    lines = ['#include "collector.bpf.c"']
    lines += [f"int {name}(unsigned long long *c) {{ return tg_enter_{name}((void *)c); }}" for name in programs]
    lines += [f"int describe_{name}(void *c) {{ tg_describe_{name}(); return 0; }}" for name in described]
    return "\n".join(lines) + "\n"


def _compile(bcc: Any, text: str, tree: Path, sources: Path) -> Any | None:
    os.environ["BCC_KERNEL_SOURCE"] = str(tree)
    flags = [*_FLAGS, f"-I{tree}", f"-I{sources}"]
    try:
        return bcc.BPF(text=text.encode(), cflags=flags)
    except Exception as error:  # BCC raises nothing narrower
        print(f"BCC: {error}", file=sys.stderr)
        return None


def _described(code: bytes) -> dict[str, int]:
    """What a describing program would put into registers 0 to 5."""
    facts = {}
    for register, name in enumerate(("number", "kind", "entries", "key_bytes", "value_bytes", "flags")):
        operation, registers, _offset, value = struct.unpack_from("=BBhi", code, 8 * register)
        if (operation, registers) != (_MOVE, register):
            raise CompileError("BCC compiled the description of a map to something else")
        facts[name] = value
    return facts


if __name__ == "__main__":
    sys.exit(main())
