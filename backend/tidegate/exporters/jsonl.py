"""A run as JSON lines: the bytes that came in, out of the raw log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from tidegate.errors import NotFoundError
from tidegate.store import Reads
from tidegate_collectors.records import MAX_LINE_BYTES

_ALWAYS: Final = frozenset({"run.meta", "capability"})
_IN_ITS_TIME: Final = frozenset({"host.sample", "mem.sample", "psi.sample", "sched.sample", "loss", "note"})
"""Types that concern every session when they name none."""


class _Head(msgspec.Struct):
    type: str = ""
    t: int = 0
    session: str | None = None


_head: Final[msgspec.json.Decoder[_Head]] = msgspec.json.Decoder(_Head)


async def export_lines(reads: Reads, run: str, *, session: str | None = None) -> AsyncIterator[bytes]:
    """Lines with their newlines, a chunk at a time.

    A whole run is byte for byte what came in. The extract of a session has the run's meta line, marked with
    ``"extract"`` so that a reader takes the holes in ``seq`` as meant, the capabilities, every record of that session,
    and while it ran the samples of the host and the losses.

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
    async for _, lines in reads.chunks(run_id):
        chosen: list[bytes] = []
        for line in lines:
            head = _read_head(line)
            if head.session == session:
                chosen.append(line)
            elif head.session is None:
                if head.type == "run.meta":
                    chosen.append(_marked(line, session))
                elif head.type in _ALWAYS or (
                    head.type in _IN_ITS_TIME and from_us <= head.t and (to_us is None or head.t <= to_us)
                ):
                    chosen.append(line)
        if chosen:
            yield b"\n".join([*chosen, b""])


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
