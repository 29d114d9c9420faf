"""A run as JSON lines: the bytes that came in, out of the raw log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from tidegate.errors import NotFoundError
from tidegate.store import Reads, engine_name
from tidegate_collectors.records import MAX_LINE_BYTES

_ALWAYS: Final = frozenset({"run.meta", "capability"})
_IN_ITS_TIME: Final = frozenset({"host.sample", "mem.sample", "psi.sample", "sched.sample", "loss", "note"})
"""Types that concern every session when they name none."""

_OF_ITS_ENGINE: Final = frozenset({"engine.start", "engine.end", "engine.mode", "kv.calibration"})
"""Types without which nobody could read what the session's engine did for it."""

_OF_ITS_ENGINE_IN_ITS_TIME: Final = frozenset({"engine.sample"})


class _Head(msgspec.Struct):
    type: str = ""
    t: int = 0
    session: str | None = None
    src: str = ""
    engine: Any = None


_head: Final[msgspec.json.Decoder[_Head]] = msgspec.json.Decoder(_Head)


async def export_lines(reads: Reads, run: str, *, session: str | None = None) -> AsyncIterator[bytes]:
    """Lines with their newlines, a chunk at a time.

    A whole run is byte for byte what came in. The extract of a session has the run's meta line, marked with
    ``"extract"`` so that a reader takes the holes in ``seq`` as meant, the capabilities, every record of that session,
    what there is of its engines, and while it ran the samples of the host and of its engines, and the losses.

    Args:
        reads: of an open store.
        run: its id, or ``live``.
        session: a session's id; None: the whole run.

    Raises:
        NotFoundError: no such run or session.
    """
    run_id = (await reads.run(run)).id
    if session is None:
        async for _, lines in reads.chunks(run_id):
            yield b"\n".join([*lines, b""])
        return
    rows = [row for row in await reads.sessions(run=run_id, limit=1 << 31) if row.id == session]
    if not rows:
        raise NotFoundError(f"no session {session!r} in run {run_id}")
    from_us = rows[0].started_us
    to_us = rows[0].ended_us
    engines = await reads.session_engines(run_id, session)
    async for _, lines in reads.chunks(run_id):
        chosen: list[bytes] = []
        for line in lines:
            head = _read_head(line)
            if head.session == session:
                chosen.append(line)
            elif head.session is None and head.type == "run.meta":
                chosen.append(_marked(line, session))
            elif head.session is None:
                in_its_time = from_us <= head.t and (to_us is None or head.t <= to_us)
                if _concerns(head, engines, in_its_time=in_its_time):
                    chosen.append(line)
        if chosen:
            yield b"\n".join([*chosen, b""])


def _concerns(head: _Head, engines: frozenset[str] | None, *, in_its_time: bool) -> bool:
    if head.type in _OF_ITS_ENGINE or head.type in _OF_ITS_ENGINE_IN_ITS_TIME:
        ours = engines is None or engine_name(head.engine, head.src) in engines
        return ours and (in_its_time or head.type in _OF_ITS_ENGINE)
    return head.type in _ALWAYS or (in_its_time and head.type in _IN_ITS_TIME)


def _read_head(line: bytes) -> _Head:
    try:
        return _head.decode(line)
    except msgspec.MsgspecError:
        return _Head()


def _marked(line: bytes, session: str) -> bytes:
    """The run's meta line with the mark of an extract; an extract of an extract has it already."""
    fields = msgspec.json.decode(line)
    if "extract" in fields:
        return line
    mark = b',"extract":' + msgspec.json.encode({"session": session}) + b"}"
    marked = line.rstrip().removesuffix(b"}") + mark
    return marked if len(marked) <= MAX_LINE_BYTES else line
