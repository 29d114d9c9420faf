"""Compiles the BPF programs, when their source changed; ``python -m tidegate_collectors.kernel.build`` does it by hand.

An object holds the hash of what it was built from, so neither time stamps nor a second file decide whether it is
current; the wheel ships objects, and a host without clang uses those. Objects lie beside their source, or in
:func:`~.paths.programs_dir` when that is not writable.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidegate_collectors import paths

SOURCE_DIR = Path(__file__).parent / "bpf"
PROGRAMS = ("collector", "probe_fentry", "probe_lsm")
"""Objects that are built, each from ``<name>.bpf.c``."""

_ARCHITECTURES = {"x86_64": "x86", "aarch64": "arm64", "s390x": "s390", "riscv64": "riscv", "ppc64le": "powerpc"}
_MARK = b"tidegate-bpf-source:"
_COMPILE_TIMEOUT_S = 120.0


class BuildError(Exception):
    """The programs cannot be compiled here; the message says what to install or what the compiler said."""


def flags() -> list[str]:
    """Compiler options for this machine.

    Raises:
        BuildError: no BPF tracing is known for its architecture.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise BuildError(f"no BPF programs for the architecture {machine}; known: {', '.join(_ARCHITECTURES)}")
    # v3 has the atomic operations that return a value (kernel 5.12).
    warnings = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-sign-compare", "-Werror")
    return ["-g", "-O2", "-target", "bpf", "-mcpu=v3", *warnings, f"-D__TARGET_ARCH_{_ARCHITECTURES[machine]}"]


def source_hash(name: str, source_dir: Path = SOURCE_DIR) -> str:
    """Hex SHA-256 over the program, all headers and the compiler options.

    Raises:
        BuildError: there is no such source.
    """
    digest = hashlib.sha256(" ".join(flags()).encode())
    try:
        for path in (source_dir / f"{name}.bpf.c", *sorted(source_dir.glob("*.h"))):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    except FileNotFoundError as error:
        raise BuildError(f"the source of the BPF programs is missing: {error.filename}") from error
    return digest.hexdigest()


def is_current(object_path: Path, wanted_hash: str) -> bool:
    """Whether the object exists and was built from this source."""
    try:
        return _MARK + wanted_hash.encode() in object_path.read_bytes()
    except OSError:
        return False


def ensure(name: str = "collector", *, source_dir: Path = SOURCE_DIR, environ: Mapping[str, str] = os.environ) -> Path:
    """Path of a current object, compiled now if need be.

    Raises:
        BuildError: it has to be compiled and cannot be.
    """
    wanted = source_hash(name, source_dir)
    beside = source_dir / f"{name}.bpf.o"
    if is_current(beside, wanted):
        return beside
    target = beside
    if not os.access(source_dir, os.W_OK):
        try:
            directory = paths.own_dir(paths.programs_dir())
        except (OSError, RuntimeError) as error:  # a user without a home is a RuntimeError
            raise BuildError(f"no place for the compiled BPF programs: {error}") from error
        target = directory / f"{name}.bpf.o"
        if is_current(target, wanted):
            return target
    _compile(source_dir / f"{name}.bpf.c", target, wanted, environ)
    return target


def _compile(source: Path, target: Path, wanted: str, environ: Mapping[str, str]) -> None:
    clang = environ.get("CLANG") or shutil.which("clang", path=environ.get("PATH"))
    if not clang:
        raise BuildError("clang is missing, it compiles the BPF programs: apt-get install clang libbpf-dev")
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    mark = f'-DTG_SOURCE_MARK="{_MARK.decode()}{wanted}"'
    command = [clang, *flags(), mark, "-I", str(source.parent), "-c", str(source), "-o", temporary]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_COMPILE_TIMEOUT_S, env=dict(environ)
        )
        if done.returncode:
            raise BuildError(_explain(source, done.stderr))
        _strip(temporary, environ)
        Path(temporary).chmod(0o644)
        os.replace(temporary, target)  # noqa: PTH105 - atomic, so that two builders cannot mix
    except OSError as error:
        raise BuildError(f"{clang} cannot be run: {error}") from error
    except subprocess.TimeoutExpired:
        raise BuildError(f"{clang} did not end within {_COMPILE_TIMEOUT_S:.0f} s on {source.name}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def _explain(source: Path, messages: str) -> str:
    if "bpf/bpf_helpers.h" in messages and "not found" in messages:
        return "the headers of libbpf are missing (bpf/bpf_helpers.h): apt-get install libbpf-dev"
    if "No available targets" in messages or "unknown target triple" in messages:
        return "this clang cannot make BPF code: apt-get install clang"
    return f"{source.name} does not compile:\n{messages.strip()[-4000:]}"


def _strip(path: str, environ: Mapping[str, str]) -> None:
    """Drop DWARF, which nothing reads; BTF stays. Without llvm-strip the object is only larger."""
    for tool in ("llvm-strip", "llvm-strip-14", "llvm-strip-19"):
        if found := shutil.which(tool, path=environ.get("PATH")):
            subprocess.run([found, "-g", path], capture_output=True, timeout=_COMPILE_TIMEOUT_S, check=False)
            return


def main() -> int:
    """Build all objects; 0 when they are current. What went wrong is the last line on stderr."""
    try:
        for name in PROGRAMS:
            print(ensure(name))
    except BuildError as error:
        print(f"BPF programs were not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
