"""vLLM's KV events that somebody wrote down: a ``.jsonl`` file with an event, or a batch as it was on the wire, a line.

A line is an event as JSON (``type``, ``block_hashes``, ..., with ``seq`` and ``ts`` of its batch: what ``tidegate
collect --kv-capture`` writes), or ``{"seq": N, "payload": "BASE64"}`` with the msgpack of a whole batch. Token ids are
passed over. Numbers that are missing are told as lost; numbers that begin again are a restart of the engine.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate_collectors.engine.stock.events import Event, EventError, Stored, decode, decode_json
from tidegate_collectors.engine.stock.residency import Change, Residency
from tidegate_collectors.engine.stock.sequence import Sequence
from tidegate_collectors.records import (
    Capability,
    EngineEnd,
    EngineSample,
    EngineStart,
    KvTransition,
    Loss,
    Note,
    Record,
    RunEnd,
    RunMeta,
    SessionEnd,
    SessionStart,
)

from ._build import identifier, micros, printable
from ._files import decoded, head, lines
from ._skipped import Skipped
from .weka import BEGIN_US

ENGINE: Final = "vllm"
_SAMPLE_US: Final = 1_000_000
_BATCH_US: Final = 1000
_MAX_SESSIONS: Final = 100_000
_TYPES: Final = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})
_NOTE: Final = (
    "KV events say which blocks were stored and removed, and whose request stored them; not which were in use or "
    "pinned, nor who took the space of those that were removed."
)


class _Line(Struct):
    seq: int | None = None
    ts: float | None = None
    type: str = ""
    payload: str | None = None
    gap: object = None


_decoder: Final[msgspec.json.Decoder[_Line]] = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class _Batch:
    number: int  # of its first line
    seq: int | None
    ts_s: float | None
    events: list[Event] = field(default_factory=list)


def detect(path: Path) -> bool:
    """Whether the first line is an event, or a batch of them."""
    first = decoded(_decoder, head(path, 1 << 20).partition(b"\n")[0])
    if isinstance(first, str):
        return False
    return first.type in _TYPES or (first.payload is not None and first.seq is not None and not first.type)


def read(path: Path, skipped: Skipped) -> Iterator[Record]:
    """The records in order of time.

    Raises:
        NotFoundError, BadInputError: there is no such file, it cannot be read, or has no event.
    """
    batches = _batches(path, skipped)
    first = next(batches, None)
    if first is None:
        raise BadInputError("no KV event in it", source=str(path))
    name = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".jsonl")
    run = _Run(path.name, skipped, first)
    yield from run.begin(identifier(name), printable(name, 80))
    yield from run.take(first)
    for batch in batches:
        yield from run.take(batch)
    yield from run.end()


def _batches(path: Path, skipped: Skipped) -> Iterator[_Batch]:
    """Lines of one number and time are one batch: their events happened at once."""
    batch: _Batch | None = None
    for number, line in lines(path, path.name, skipped):
        found = decoded(_decoder, line)
        if isinstance(found, str):
            skipped.add(path.name, number, found)
            continue
        if found.gap is not None and not found.type:
            continue  # whoever wrote it noted a gap, which the numbers show too
        got = _of(found, line)
        if isinstance(got, str):
            skipped.add(path.name, number, got)
            continue
        events, ts_s = got
        if batch is not None and found.seq is not None and (batch.seq, batch.ts_s) == (found.seq, ts_s):
            batch.events += events
            continue
        if batch is not None:
            yield batch
        batch = _Batch(number, found.seq, ts_s, events)
    if batch is not None:
        yield batch


def _of(found: _Line, line: bytes) -> tuple[list[Event], float | None] | str:
    """Events and time of a line; a text that says what was wrong where there are none."""
    if found.payload is None:
        try:
            event = decode_json(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            return str(error)
        return "no KV event of a known kind" if event is None else ([event], found.ts)
    try:
        batch = decode(base64.b64decode(found.payload, validate=True))
    except (EventError, binascii.Error, ValueError) as error:
        return f"its payload is none: {error}"
    return list(batch.events), batch.ts_s


class _Run:
    """The records of one file."""

    def __init__(self, place: str, skipped: Skipped, first: _Batch) -> None:
        self._place, self._skipped = place, skipped
        self._timed = micros(first.ts_s) is not None
        self._t_us = micros(first.ts_s) or BEGIN_US
        self._start_us = self._t_us
        self._newest_s = 0.0
        self._sampled_us = 0
        self._sequence = Sequence()
        self._residency = Residency()
        self._block_tokens = next((event.block_tokens for event in first.events if isinstance(event, Stored)), None)
        self._names: dict[str, str] = {}  # session -> its id in the run
        self._ids: set[str] = set()

    def begin(self, run: str, title: str) -> Iterator[Record]:
        """What is known of the whole."""
        t = self._t_us
        yield RunMeta(t=t, run=run, title=title, source="imported", block_tokens=self._block_tokens)
        untimed = "" if self._timed else " The file has no times: a millisecond for each batch is assumed."
        yield Note(t=t, text=_NOTE + untimed, by="import")
        yield Capability(t=t, name="memory", available=False, reason="KV events have no host in them")
        yield Capability(t=t, plane="engine", name="engine.residency", available=True, reason=_NOTE)
        yield self._introduced()

    def take(self, batch: _Batch) -> Iterator[Record]:
        """A batch's records."""
        self._tick(batch)
        if batch.seq is not None and batch.seq >= 0:
            ts_s = batch.ts_s if batch.ts_s is not None else self._newest_s
            verdict = self._sequence.judge(batch.seq, ts_s)
            if verdict == "old":
                self._skipped.add(self._place, batch.number, f"batch {batch.seq} came late or twice")
                return
            if verdict == "restart":
                yield EngineEnd(t=self._t_us, engine=ENGINE, clean=False)
                self._residency.clear()
                self._sequence.reset()
                self._block_tokens = None
                yield self._introduced()
            elif verdict == "gap":
                missing = self._sequence.skip_to(batch.seq)
                yield Loss(t=self._t_us, where="zmq", count=missing, of="batches of KV events")
                yield from self._told(self._residency.forget())
            self._sequence.took(batch.seq, ts_s)
        yield from self._told(self._residency.apply(tuple(batch.events)))
        if self._t_us - self._sampled_us >= _SAMPLE_US:
            yield self._sample()

    def end(self) -> Iterator[Record]:
        """The end of the file: nobody knows how long the engine went on."""
        yield self._sample()
        for name in self._names.values():
            yield SessionEnd(t=self._t_us, session=name, reason="finished", lost=True)
        yield EngineEnd(t=self._t_us, engine=ENGINE)
        yield RunEnd(t=self._t_us, clean=True)

    def _tick(self, batch: _Batch) -> None:
        t_us = micros(batch.ts_s) if self._timed else self._t_us + _BATCH_US
        if t_us is None or t_us < self._t_us:
            reason = "its time is none" if t_us is None else "its time lies before that of the batch before it"
            self._skipped.add(self._place, batch.number, f"{reason}; that one's is taken")
            t_us = self._t_us
        self._t_us = t_us
        if batch.ts_s is not None:
            self._newest_s = max(self._newest_s, batch.ts_s)

    def _introduced(self) -> Record:
        return EngineStart(t=self._t_us, engine=ENGINE, name="vllm", plugin=False, block_tokens=self._block_tokens)

    def _told(self, changes: list[Change]) -> Iterator[Record]:
        tokens = self._residency.block_tokens
        for change in changes:
            name = self._names.get(change.session)
            if name is None:
                if len(self._names) >= _MAX_SESSIONS:
                    self._skipped.add(self._place, None, f"a session after the first {_MAX_SESSIONS}")
                    continue
                name = self._id(change.session)
                yield SessionStart(t=self._t_us, session=name, title=printable(change.session, 80))
            yield KvTransition(
                t=self._t_us, session=name, engine=ENGINE, from_=change.from_, to=change.to, blocks=change.blocks,
                cause=change.cause,  # type: ignore[arg-type]
                tokens=change.blocks * tokens if tokens else None, residency=self._residency.of(change.session),
            )  # fmt: skip

    def _id(self, session: str) -> str:
        name = identifier(session, "session")
        if name in self._ids:  # of another one, with other letters that an id cannot have
            name = f"{name[:100]}-{len(self._ids) + 1}"
        self._ids.add(name)
        self._names[session] = name
        return name

    def _sample(self) -> Record:
        self._sampled_us = self._t_us
        return EngineSample(t=self._t_us, engine=ENGINE, sessions=len(self._residency.sessions))
