"""Has BCC compile the programs for the running kernel, in a process of its own, and keeps the result.

Compiling takes a second and a half, so the instructions are kept (:func:`~.paths.programs_dir`) in a file named by
everything that they depend on: the sources, the kernel's BTF, BCC. A start after that costs what one with libbpf does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tidegate_collectors import paths
from tidegate_collectors.kernel import bcc_child, bcc_headers, btf
from tidegate_collectors.kernel.bcc_find import Bcc, BccMissingError, find_bcc
from tidegate_collectors.kernel.build import SOURCE_DIR, BuildError

BTF = Path("/sys/kernel/btf/vmlinux")
_TIMEOUT_S = 120.0
_KEPT = 3
"""Results that are kept; a kernel that is not booted any more needs none."""


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions; the tracepoint and its id in this kernel (``None``: it has none), or neither for a syscall one."""

    code: bytes
    tracepoint: str | None
    btf_id: int | None


@dataclass(frozen=True, slots=True)
class MapFacts:
    """What a map is; ``number`` stands for it in the instructions."""

    number: int
    kind: int
    entries: int
    key_bytes: int
    value_bytes: int
    flags: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the kernel: what stands for it in the instructions, and its id (``None``: there is none)."""

    number: int
    btf_id: int | None


@dataclass(frozen=True, slots=True)
class Compiled:
    """All programs, maps and kernel functions, by name."""

    programs: Mapping[str, Program]
    maps: Mapping[str, MapFacts]
    kfuncs: Mapping[str, Function]


@dataclass(frozen=True, slots=True)
class _Answer:
    """Of the child: one of both, or neither when it does not compile (BCC has told why on stderr)."""

    error: str = ""
    compiled: Compiled | None = None


def compiled(
    *,
    directories: Sequence[str | Path] | None = None,
    btf_path: Path = BTF,
    sources: Path = SOURCE_DIR,
    layout: str | None = None,
) -> Compiled:
    """The programs, compiled now unless that was done before.

    Args:
        directories: where to look for BCC, instead of the usual places.
        layout: another kernel layout than that of the BTF, for trials of what a wrong one does; nothing is kept.

    Raises:
        BuildError: there is no BCC or no BTF, or it does not compile; the message says what to do.
    """
    try:
        bcc = find_bcc(directories)
        kernel = btf_path.read_bytes()
    except BccMissingError as error:
        raise BuildError(str(error)) from None
    except OSError as error:
        raise BuildError(f"{btf_path}: {error.strerror}; the kernel needs CONFIG_DEBUG_INFO_BTF") from None
    place = _place()
    request = {
        "sources": str(sources),
        "btf": str(btf_path),
        "bcc": str(bcc.path),
        "layout": layout,
        "scratch": place and str(place),
    }
    if place is None or layout is not None:
        return _ask(request)
    try:
        kept = place / f"bcc-{_hash(bcc, kernel, sources)}.json"
    except OSError as error:
        raise BuildError(f"the source of the BPF programs is missing: {error.filename}") from error
    if before := _read(kept):
        return before
    now = _ask(request)
    _keep(kept, now)
    return now


def _ask(request: dict[str, Any]) -> Compiled:
    # It sees the standard library and what lies beside this package, and of the system's packages none.
    package = Path(__file__).parents[2]
    code = f"import sys; sys.path.append({str(package)!r}); from {bcc_child.__name__} import main; sys.exit(main())"
    environ = {name: value for name in ("PATH", "TMPDIR", "HOME") if (value := os.environ.get(name))}
    command = [sys.executable, "-I", "-S", "-c", code]
    asked, environ = msgspec.json.encode(request), environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(command, input=asked, env=environ, capture_output=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BuildError(f"BCC did not end within {_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise BuildError(f"the process that compiles with BCC cannot be run: {error}") from error
    told = done.stderr.decode(errors="replace").strip()[-4000:]
    try:
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except msgspec.DecodeError:
        raise BuildError(f"the process that compiles with BCC ended with {done.returncode}:\n{told}") from None
    if answer.compiled is not None:
        return answer.compiled
    if not answer.error:
        raise BuildError(f"the BPF programs do not compile with BCC:\n{told}")
    raise BuildError(f"the BPF programs were not compiled with BCC: {answer.error}")


# --- keeping ---------------------------------------------------------------------------------------------------------


def _hash(bcc: Bcc, kernel: bytes, sources: Path) -> str:
    digest = hashlib.sha256(kernel)
    digest.update(f"{bcc.path} {bcc.version} {bcc.path.stat().st_mtime_ns}".encode())
    ours = (Path(module.__file__ or "") for module in (bcc_child, bcc_headers, btf))
    for path in (sources / "collector.bpf.c", *sorted(sources.glob("*.h")), *ours):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def _place() -> Path | None:
    """A directory that only we can write to, or exchange: the kernel loads what lies in it. ``None``: there is none."""
    try:
        return paths.own_dir(paths.programs_dir())
    except (OSError, RuntimeError):  # a user without a home is a RuntimeError
        return None


def _read(path: Path) -> Compiled | None:
    """What was kept, unless others could have written it."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                return None
            return msgspec.json.decode(file.read(), type=Compiled)
    except (OSError, msgspec.DecodeError):
        return None


def _keep(path: Path, programs: Compiled) -> None:
    with contextlib.suppress(OSError):  # it is compiled again next time
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(programs))
            os.replace(temporary, path)  # noqa: PTH105 - atomic
        finally:
            Path(temporary).unlink(missing_ok=True)
        old = sorted(path.parent.glob("bcc-*.json"), key=lambda found: found.stat().st_mtime_ns, reverse=True)
        for found in old[_KEPT:]:
            found.unlink(missing_ok=True)
