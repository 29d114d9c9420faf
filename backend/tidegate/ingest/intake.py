"""From lines to a batch: validation, order, and the account of what is missing. Pure bookkeeping, no I/O.

Live records and recordings go through the same code, so a recording shows the same losses as the run it was made of.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from tidegate.ingest.account import Counts, LineError, SourceState
from tidegate.store import Batch
from tidegate_collectors import records
from tidegate_collectors.link import Stamper
from tidegate_collectors.records import (
    CallStart,
    Capability,
    Loss,
    Note,
    ProcExec,
    Record,
    RecordError,
    SessionStart,
    Unknown,
)

log = logging.getLogger(__name__)

MAX_T: Final = 2**53
"""Times above this (year 2255) are refused: JavaScript could not hold them exactly."""

CLOCK_TOLERANCE_US: Final = 1_000_000
"""Records of one sender may be this much out of order: a call's start is told when its first program runs."""

_LOOK_BACK: Final = (CallStart, ProcExec, SessionStart, Capability, Loss, Note)
"""Records whose time is by nature in the past, or that are told again to a new run, or are about another sender.

A tool call and the program it runs carry the time of the fork, and are told once the program is known: on a machine
that is busy that is more than a second later, and no clock went back.
"""

# Senders are few; a peer that invents names must not fill the memory.
_MAX_COUNTED_NAMES: Final = 1000


_decoder: Final = msgspec.json.Decoder(records.AnyRecord)


def _decoded(lines: Sequence[bytes]) -> list[records.AnyRecord] | None:
    """The records of lines that all are some, of whatever version; None otherwise, and then each is to be looked at."""
    if not lines or max(map(len, lines)) > records.MAX_LINE_BYTES:
        return None
    block = b"\n".join(lines)
    # No JSON value goes on over such a border, so with as many values as lines each line is one of them.
    if block.count(b"}\n{") != len(lines) - 1 or not block.startswith(b"{"):
        return None
    try:
        found: list[records.AnyRecord] = _decoder.decode_lines(block)
        if not block.isascii():
            block.decode()  # the decoder does not look into what it skips
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return found if len(found) == len(lines) else None


class Intake:
    """Judges lines and appends what is good to a batch, with records of its own about what is not.

    Args:
        stamper: stamps the intake's own records (losses, notes).
        where: what the losses are said to come from.
        sparse: holes in ``seq`` are meant: the lines are an extract.
        on_error: called with each line that cannot be read.
    """

    def __init__(
        self,
        stamper: Stamper,
        *,
        where: Literal["link", "import"],
        sparse: bool = False,
        on_error: Callable[[LineError], None] | None = None,
    ) -> None:
        self.counts: Final = Counts()
        self.sources: Final[dict[str, SourceState]] = {}
        self._stamper = stamper
        self._where: Final = where
        self._sparse: Final = sparse
        self._on_error = on_error
        self._near = SourceState("")  # of the last line, also of an earlier call
        self._own_t = 0  # of the last record of our own
        self._held: Counter[str] = Counter()  # broken lines before there was any time, by what they are of
        self._explained = 0  # broken lines of unknown senders, which will show as gaps of somebody
        self._sampled: set[tuple[str, type]] = set()
        self._plain: dict[str, set[type]] = {}

    def source(self, src: str) -> SourceState:
        """The state of a sender, made when it is new."""
        state = self.sources.get(src)
        if state is None:
            state = self.sources[src] = SourceState(src)
        return state

    def new_batch(self) -> Batch:
        """An empty batch; unknown fields are looked for anew in the first record of each type and sender."""
        self._sampled.clear()
        self._plain.clear()
        return Batch()

    def own(self, batch: Batch, record: Record) -> None:
        """Append a record of our own."""
        self._own_t = record.t
        batch.add(record, self._stamper.stamp(record))  # type: ignore[arg-type]

    def feed(
        self, batch: Batch, lines: Sequence[bytes], *, source: str, first_line: int, expect: SourceState | None = None
    ) -> None:
        """Judge lines in their order.

        Args:
            batch: gets the good ones.
            lines: without newlines; empty ones are passed over.
            source: file name or peer, for messages.
            first_line: number of the first line, from 1.
            expect: the only sender that these lines may be of; None: any.
        """
        add_record, add_line = batch.records.append, batch.lines.append
        decoded = _decoded(lines)
        state = expect if expect is not None else self._near
        src, last_seq, last_t, plain = state.src, state.last_seq, state.last_t, self._plain_of(state.src)
        accepted = 0
        for index, line in enumerate(lines):
            if decoded is not None:
                # Nearly all lines go this way: the next of their sender, of a type that was looked at in this batch.
                record = decoded[index]
                t, seq = record.t, record.seq
                if (
                    last_seq is not None
                    and seq == last_seq + 1
                    and last_t <= t < MAX_T
                    and record.src == src
                    and type(record) in plain
                    and record.v == records.VERSION
                ):
                    last_seq, last_t = seq, t
                    accepted += 1
                    add_record(record)
                    add_line(line)
                    continue
            state.last_seq, state.last_t = last_seq, last_t
            state.records += accepted
            self.counts.records += accepted
            accepted = 0
            state = self._judge(batch, line, state, expect, source, first_line + index)
            if state.src != src:
                src, plain = state.src, self._plain_of(state.src)
            last_seq, last_t = state.last_seq, state.last_t
        state.last_seq, state.last_t = last_seq, last_t
        self._near = state
        state.records += accepted
        self.counts.records += accepted

    def _plain_of(self, src: str) -> set[type]:
        """Types of that sender's records which are nothing special and were looked at in this batch."""
        plain = self._plain.get(src)
        if plain is None:
            plain = self._plain[src] = set()
        return plain

    def _judge(
        self, batch: Batch, line: bytes, state: SourceState, expect: SourceState | None, source: str, number: int
    ) -> SourceState:
        """Judge one line with everything that there may be about it; returns the state of its sender."""
        if not line:
            return state
        counts = self.counts
        try:
            record = records.decode(line)
            t = record.t
            if not 0 <= t < MAX_T:
                raise RecordError(f"t = {t}: expected microseconds since 1970, UTC")
            if record.src != state.src:
                if expect is not None:
                    raise RecordError(f"src {record.src[:64]!r}; this connection is of {expect.src!r}")
                state = self.source(record.src)
            seq = record.seq
            if expect is not None and seq < 0:
                raise RecordError("seq is missing")
        except RecordError as error:
            self._broken(batch, LineError(source, number, error.column, str(error)), expect, state)
            return state
        cls = type(record)
        if state.last_seq is None:
            state.last_seq = seq - 1
        if seq != state.last_seq + 1 and seq >= 0:
            if seq <= state.last_seq:
                state.duplicates += 1
                counts.duplicates += 1
                return state
            self._gap(batch, state, seq - state.last_seq - 1, t)
        if t < state.last_t:
            if t < state.last_t - CLOCK_TOLERANCE_US and cls not in _LOOK_BACK:
                self._clock_back(batch, state, t)
        else:
            state.last_t = t
        if seq >= 0:
            state.last_seq = seq
        if (state.src, cls) not in self._sampled:
            self._sampled.add((state.src, cls))
            self._sample_fields(record, line)
        if cls is Unknown:
            self._count(counts.unknown_types, record.type)  # type: ignore[union-attr]
        elif cls is Loss:
            self._explain(record)  # type: ignore[arg-type]
        else:
            self._plain_of(state.src).add(cls)
        state.records += 1
        counts.records += 1
        batch.add(record, line)
        if self._held and t:
            self._tell_held(batch, t)
        return state

    def _broken(self, batch: Batch, error: LineError, expect: SourceState | None, near: SourceState) -> None:
        self.counts.broken += 1
        if expect is not None:
            expect.broken += 1
            expect.lost += 1
            expect.explained += 1
        else:
            self._explained += 1
        self.counts.lost += 1
        log.warning("%s", error)
        if self._on_error is not None:
            self._on_error(error)
        of = expect.src if expect is not None else "lines"
        # When it was is not known; the last good record before it tells best.
        if t := near.last_t or self._near.last_t or self._own_t:
            self.own(batch, Loss(t=t, where=self._where, count=1, of=of, since_us=t))
        else:
            self._held[of] += 1

    def _tell_held(self, batch: Batch, t: int) -> None:
        """Tell of lines before the first good record, at its time: there was none before."""
        for of, count in self._held.items():
            self.own(batch, Loss(t=t, where=self._where, count=count, of=of))
        self._held.clear()

    def _gap(self, batch: Batch, state: SourceState, missing: int, t: int) -> None:
        if self._sparse:
            return
        told = min(missing, state.explained)
        state.explained -= told
        told_lines = min(missing - told, self._explained)
        self._explained -= told_lines
        missing -= told + told_lines
        if missing <= 0:
            return
        self.counts.gaps += 1
        self.counts.lost += missing
        state.lost += missing
        log.warning("%s: %d records are missing", state.src, missing)
        loss = Loss(t=t, where=self._where, count=missing, of=state.src, since_us=state.last_t or None)
        self.own(batch, loss)

    def _explain(self, loss: Loss) -> None:
        """A loss that is in the recording already: the gap that follows is told by it."""
        if loss.where not in ("link", "import"):
            return
        if loss.of == "lines":
            self._explained += loss.count
        elif loss.of in self.sources or self._where == "import":
            self.source(loss.of).explained += loss.count

    def _clock_back(self, batch: Batch, state: SourceState, t: int) -> None:
        state.clock_back += 1
        self.counts.clock_back += 1
        if state.clock_back > 1:
            return
        seconds = (state.last_t - t) / 1e6
        text = f"the clock of {state.src} went back by {seconds:.3f} s; its records are kept in the order they came"
        log.warning("%s", text)
        if self._where == "import":
            return  # the report says it; a note more at every import would change the recording
        self.own(batch, Note(t=state.last_t, text=text, by="tidegate"))

    def _sample_fields(self, record: Any, line: bytes) -> None:
        if type(record) is Unknown:
            return
        fields: dict[str, Any] = msgspec.json.decode(line)
        for name in fields.keys() - set(record.__struct_encode_fields__) - {"type"}:
            self._count(self.counts.unknown_fields, f"{fields['type']}.{name[:64]}")

    @staticmethod
    def _count(counter: Counter[str], name: str) -> None:
        if name in counter or len(counter) < _MAX_COUNTED_NAMES:
            counter[name] += 1
        else:
            counter["(others)"] += 1
