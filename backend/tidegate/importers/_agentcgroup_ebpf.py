"""ebpf_trace.jsonl of an AgentCgroup run: which processes there were, and which tool call each belonged to.

The tracer's time is CLOCK_MONOTONIC; its CLOCK_SYNC lines tie it to the wall clock. Its ``exit_code`` is ``>> 8``, so
that a process which a signal ended says 0: of a 0 nothing is believed. Its ``cgroup_*`` counters are those of a cgroup
far above the container's and are not used.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tidegate_collectors.records import ProcExec, ProcExit, Record

from ._build import SHELLS, exit_code, printable
from ._files import MAX_T_US, decoded, lines
from ._skipped import Skipped

EARLY_US: Final = 20_000
"""A call's first process may seem to begin so much before the call: the transcript's times are milliseconds."""

_LATE_US: Final = 5_000
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "dash", "ksh", "fish"})
_AGENTS: Final = ("claude", "node", "codex", "gemini")
_MAX_PID: Final = 1 << 31
_MAX_NS: Final = 1 << 63
_COMM_CHARS: Final = 15
_OF_NO_USE: Final[dict[str, str]] = {
    "FILE_OPEN": "a run has no place for opened files",
    "SUMMARY": "a run has no place for summaries of writes, signals and connections",
    "RESOURCE_DETAIL": "resident sets count shared pages once for each process; memory is taken from resources.json",
    "RESOURCE_SAMPLE": "its sums count shared pages several times and its cgroup_ counters are those of an ancestor "
    "of the container; memory is taken from resources.json",
    "BASH_READLINE": "what is typed is not kept",
}


class _Line(Struct):
    timestamp: int
    event: str
    pid: int = 0
    ppid: int = 0
    comm: str = ""
    filename: str = ""
    exit_code: int | None = None
    vm_hwm_kb: int | None = None
    mono_ns: int | None = None
    wall_time_ns: int | None = None


_decoder: Final[msgspec.json.Decoder[_Line]] = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class _Event:
    """An EXEC or EXIT on the wall clock; ``call`` is filled in later."""

    t_us: int
    line: _Line
    call: str | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """What is known of a tool call: its id, tool and times in microseconds."""

    id: str
    tool: str
    started_us: int
    ended_us: int


@dataclass(frozen=True, slots=True)
class Root:
    """The shell that a call ran in: ``exit_code`` None where it is unknown; ``ended_us`` None where it was not seen."""

    pid: int
    started_us: int
    ended_us: int | None
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Processes:
    """The process records of a session, and the shells of its calls by call id."""

    records: list[Record]
    roots: dict[str, Root]


def read_processes(path: Path, place: str, session: str, calls: Iterable[Interval], skipped: Skipped) -> Processes:
    """The processes of a run; those below a call's shell carry the call's id.

    Raises:
        NotFoundError, BadInputError: the file cannot be opened.
    """
    events = _events(path, place, skipped)
    wanted = sorted((call for call in calls if call.tool in SHELLS), key=lambda call: call.started_us)
    roots = _match(events, wanted)
    missing = len(wanted) - len(roots)
    if wanted and missing:
        skipped.add(place, None, f"{missing} of {len(wanted)} shell calls have no process of theirs in it")
    by_start = {(root.pid, root.started_us): call for call, root in roots.items()}
    _attribute(events, by_start)
    return Processes([_record(session, event) for event in events], roots)


def _events(path: Path, place: str, skipped: Skipped) -> list[_Event]:
    marks: list[tuple[int, int]] = []
    kept: list[_Line] = []
    of_no_use: Counter[str] = Counter()
    for number, raw in lines(path, place, skipped):
        line = decoded(_decoder, raw)
        if isinstance(line, str):
            skipped.add(place, number, line)
        elif line.event == "CLOCK_SYNC":
            if line.mono_ns is None or line.wall_time_ns is None:
                skipped.add(place, number, "a CLOCK_SYNC without its two clocks")
            else:
                marks.append((line.mono_ns, line.wall_time_ns - line.mono_ns))
        elif line.event not in ("EXEC", "EXIT"):
            of_no_use[printable(line.event, 40)] += 1
        elif not 0 < line.pid < _MAX_PID or not 0 <= line.ppid < _MAX_PID:
            skipped.add(place, number, "its pid is out of range")
        else:
            kept.append(line)
    for name, times in sorted(of_no_use.items()):
        skipped.add(place, None, f"{name} ({times} events): {_OF_NO_USE.get(name, 'not known')}")
    if not marks:
        skipped.add(place, None, f"{len(kept)} events without a CLOCK_SYNC line: their time is not known")
        return []
    return _on_the_wall_clock(kept, sorted(marks), place, skipped)


def _on_the_wall_clock(kept: list[_Line], marks: list[tuple[int, int]], place: str, skipped: Skipped) -> list[_Event]:
    events: list[_Event] = []
    out_of_range = 0
    for line in kept:
        t_us = (line.timestamp + _offset_ns(marks, line.timestamp)) // 1000
        if 0 < t_us < MAX_T_US:
            events.append(_Event(t_us, line))
        else:
            out_of_range += 1
    if out_of_range:
        skipped.add(place, None, f"{out_of_range} events whose time is out of range")
    return sorted(events, key=lambda event: event.t_us)


def _offset_ns(marks: list[tuple[int, int]], mono_ns: int) -> int:
    """The wall clock less the monotonic one, between two marks in proportion."""
    after = bisect_left(marks, (mono_ns, -_MAX_NS))
    if after == 0 or after == len(marks):
        return marks[max(after - 1, 0)][1]
    (from_ns, from_offset), (to_ns, to_offset) = marks[after - 1], marks[after]
    return from_offset + (to_offset - from_offset) * (mono_ns - from_ns) // max(to_ns - from_ns, 1)


def _match(events: list[_Event], calls: list[Interval]) -> dict[str, Root]:
    """Each shell call and the shell that the agent started for it: the one that began nearest after the call."""
    free = _shells_of_agent(events)
    starts = [root.started_us for root in free]
    following = list(range(len(free) + 1))  # of each shell the next one that may still be free
    roots: dict[str, Root] = {}
    for call in calls:
        first = bisect_left(starts, call.started_us - EARLY_US)
        last = bisect_right(starts, call.ended_us + _LATE_US)
        index = first
        while following[index] != index:
            following[index] = index = following[following[index]]
        if index < last:
            roots[call.id] = free[index]
            following[index] = index + 1
    return roots


def _shells_of_agent(events: list[_Event]) -> list[Root]:
    agents: set[int] = set()
    running: dict[int, int] = {}
    started: list[tuple[int, int]] = []
    ends: dict[int, tuple[int, int | None]] = {}
    for event in events:
        line = event.line
        if line.event == "EXIT":
            agents.discard(line.pid)
            index = running.pop(line.pid, None)
            if index is not None:
                ends[index] = (event.t_us, line.exit_code or None)
        elif line.comm.startswith(_AGENTS) or any(f"/{name}" in line.filename for name in _AGENTS):
            agents.add(line.pid)
        elif line.comm in _SHELLS and line.ppid in agents and line.pid not in running:
            running[line.pid] = len(started)
            started.append((line.pid, event.t_us))
    roots = []
    for index, (pid, t_us) in enumerate(started):
        ended_us, code = ends.get(index, (None, None))
        roots.append(Root(pid, t_us, ended_us, code))
    return roots


def _attribute(events: list[_Event], by_start: dict[tuple[int, int], str]) -> None:
    """Give each process the call of its parent, from the calls' shells down."""
    call_of: dict[int, str] = {}
    for event in events:
        line = event.line
        own = by_start.get((line.pid, event.t_us)) if line.event == "EXEC" else None
        event.call = own or call_of.get(line.pid) or call_of.get(line.ppid)
        if line.event == "EXIT":
            call_of.pop(line.pid, None)
        elif event.call is not None:
            call_of[line.pid] = event.call


def _record(session: str, event: _Event) -> Record:
    line = event.line
    if line.event == "EXEC":
        comm = printable(line.comm, _COMM_CHARS)
        return ProcExec(t=event.t_us, session=session, call=event.call, pid=line.pid, ppid=line.ppid, comm=comm)
    hiwater = line.vm_hwm_kb
    return ProcExit(
        t=event.t_us, session=session, call=event.call, pid=line.pid,
        exit_code=exit_code(line.exit_code) or None,
        hiwater_bytes=hiwater * 1024 if hiwater is not None and 0 <= hiwater < 1 << 42 else None,
    )  # fmt: skip
