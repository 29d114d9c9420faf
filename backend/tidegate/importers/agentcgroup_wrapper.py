"""The log of AgentCgroup's bash wrapper: one JSON object a line for each ``bash -c``, written with printf.

``{"ts": ns of the start, "pid", "cgroup", "cmd", "exit", "duration_ms", "peak_mem": "bytes", "current_mem": "bytes",
"hint"}``, in its local variant ``mem_high`` too. An exit code above 128 may stand for a signal or for itself; it is
kept as it is, and whether the kernel's OOM killer was it is not known. The command is put between quotes with its
quotes and backslashes removed and its newlines kept, so that a command of several lines is several broken lines: those
are put together again where they are the pieces of one object, and told where they are not.

The wrapper knows nothing of the agent: a session here is a folder of calls (``session_high`` in
``.../session_high/tool_1_2``), which begins with its first call and ends with its last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError, NotFoundError
from tidegate_collectors import hints
from tidegate_collectors.records import CallEnd, CallStart, Record, RunEnd, RunMeta, SessionEnd, SessionStart

from ._build import count, exit_code, identifier, in_order, named_call, printable
from ._files import MAX_T_US, decoded, head, lines
from ._skipped import Skipped

_MARKS: Final = (b'"ts":', b'"cgroup":', b'"cmd":', b'"duration_ms":')
_BEGIN: Final = b'{"ts":'
_MAX_PIECES: Final = 256
"""A command is cut at 200 bytes, so it has no more lines than that."""

_MAX_OBJECT_BYTES: Final = 1 << 16

_LOCAL: Final = "peak_mem of the local variant is the shell's own resident set, not the call's memory: left out"
_CURRENT: Final = "current_mem has page cache in it, so it is not what a call keeps: left out"


class _Line(Struct):
    ts: int
    duration_ms: int
    pid: int = 0
    cgroup: str = ""
    cmd: str = ""
    exit: int | None = None
    peak_mem: Any = None
    mem_high: Any = None
    hint: str = ""


_decoder: Final[msgspec.json.Decoder[_Line]] = msgspec.json.Decoder(_Line)


def detect(path: Path) -> bool:
    """Whether the beginning has the keys of the wrapper's lines."""
    content = head(path, 1 << 13)
    return content.lstrip().startswith(_BEGIN) and all(mark in content for mark in _MARKS)


def read(path: Path, skipped: Skipped) -> Iterator[Record]:
    """The records of a wrapper log in order of time.

    Raises:
        NotFoundError: there is no such file.
        BadInputError: it cannot be opened, or no line of it is of the wrapper.
    """
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    calls: dict[str, list[Record]] = {}
    reasons = {_CURRENT}
    for number, line in _parsed(path, skipped):
        start_us, duration_us = line.ts // 1000, line.duration_ms * 1000
        if not 0 < start_us < MAX_T_US or not 0 <= duration_us < MAX_T_US - start_us:
            skipped.add(path.name, number, "its time is out of range")
            continue
        if line.mem_high is not None:
            reasons.add(_LOCAL)
        session = _session_of(line.cgroup)
        calls.setdefault(session, []).extend(_call(session, number, line, start_us, duration_us))
    if not calls:
        raise BadInputError("no line of AgentCgroup's wrapper in it", source=str(path))
    for reason in sorted(reasons):
        skipped.add(path.name, None, reason)
    records: list[Record] = []
    for session, of_session in calls.items():
        first_us = min(record.t for record in of_session)
        last_us = max(record.t for record in of_session)
        records.append(SessionStart(t=first_us, session=session, title=session, agent=""))
        records += of_session
        records.append(SessionEnd(t=last_us, session=session, lost=True))
    name = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".jsonl")
    start_us = min(record.t for record in records)
    yield RunMeta(t=start_us, run=identifier(name), title=printable(name, 80), source="imported")
    yield from in_order(records)
    yield RunEnd(t=max(record.t for record in records), clean=True)


def _parsed(path: Path, skipped: Skipped) -> Iterator[tuple[int, _Line]]:
    pieces: list[tuple[int, bytes]] = []
    size = 0
    for number, raw in lines(path, path.name, skipped):
        size += len(raw)
        if raw.lstrip().startswith(_BEGIN) or len(pieces) >= _MAX_PIECES or size > _MAX_OBJECT_BYTES:
            yield from _finished(path.name, pieces, skipped)
            pieces, size = [], len(raw)
        pieces.append((number, raw.rstrip(b"\r\n")))
    yield from _finished(path.name, pieces, skipped)


def _finished(place: str, pieces: list[tuple[int, bytes]], skipped: Skipped) -> Iterator[tuple[int, _Line]]:
    """One object, of one line or of several that printf broke at the newlines of the command."""
    if not pieces:
        return
    found = decoded(_decoder, b"\\n".join(raw for _, raw in pieces))
    (first, raw), rest = pieces[0], pieces[1:]
    if isinstance(found, str) and rest:
        found = decoded(_decoder, raw)
    else:
        rest = []
    if isinstance(found, str):
        skipped.add(place, first, f"broken: {found}; the wrapper does not escape commands")
    else:
        yield first, found
    for number, _ in rest:
        skipped.add(place, number, "the rest of a broken line; the wrapper does not escape commands")


def _call(session: str, number: int, line: _Line, start_us: int, duration_us: int) -> tuple[Record, Record]:
    tool, category, command = named_call("Bash", {"command": line.cmd})
    call = identifier(line.cgroup.rstrip("/").rpartition("/")[2], f"tool_{line.pid}") + f"-{number}"
    hint = hints.parse(line.hint) if line.hint else None
    pid = line.pid if 0 < line.pid < 1 << 31 else None
    begin = CallStart(
        t=start_us, session=session, call=call, tool=tool, category=category, command=command,
        hint=hint.text if hint else None, hint_bytes=hint.bytes if hint else None, boundary="wrapper", pid=pid,
    )  # fmt: skip
    end = CallEnd(
        t=start_us + duration_us, session=session, call=call, duration_us=duration_us, exit_code=exit_code(line.exit),
        charged_peak_bytes=_bytes(line.peak_mem) if line.mem_high is None else None,
    )  # fmt: skip
    return begin, end


def _session_of(cgroup: str) -> str:
    parts = [part for part in cgroup.split("/") if part]
    return identifier(parts[-2] if len(parts) > 1 else "", "wrapper")


def _bytes(value: object) -> int | None:
    """Bytes written as text; None for "unknown"."""
    if isinstance(value, str):
        return count(int(value)) if value.isascii() and value.isdigit() and len(value) < 20 else None
    return count(value)
