"""Folding what is read, and taking it to another process: the reader of an import folds while the writer writes.

Both take about as long, so with two CPUs an import takes half the time; and what reads other people's files touches no
database.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from tidegate import errors
from tidegate.errors import StoreError, TidegateError
from tidegate.fold import State, apply
from tidegate.ingest.recording import Piece
from tidegate.runs.messages import Failed
from tidegate.runs.reading import Ended, Item
from tidegate.store import AnyLine, Batch, NewRun
from tidegate.store.rows import decode_stored
from tidegate.store.snapshots import SnapshotRows, SnapshotWriter
from tidegate_collectors.records import AnyRecord

_SLICE: Final = 512
_LENGTH: Final = struct.Struct("<Q")
_PIPE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Folded:
    """A piece of a run, and the snapshots that became due in it; they are of run number 0."""

    piece: Piece
    snapshots: list[SnapshotRows] = field(default_factory=list)


FoldedItem: TypeAlias = NewRun | Folded | Ended


def folded(items: Iterator[Item]) -> Iterator[FoldedItem]:
    """The same with snapshots; the last one is of the end."""
    state, writer = State(track=False), SnapshotWriter(0)
    for item in items:
        if isinstance(item, Piece):
            yield Folded(item, list(_fold(state, writer, item)))
        elif isinstance(item, Ended):
            if state.ord:
                yield Folded(Piece(Batch(), 0), [writer.take(state)])
            yield item
        else:
            yield item


def _fold(state: State, writer: SnapshotWriter, piece: Piece) -> Iterator[SnapshotRows]:
    records = piece.batch.records
    for start in range(0, len(records), _SLICE):
        for ordinal, record in enumerate(records[start : start + _SLICE], state.ord + 1):
            apply(state, ordinal, record)
        if writer.due(state):
            yield writer.take(state)


# --- to another process ----------------------------------------------------------------------------------------------


class _Begin(Struct, tag="begin"):
    format: str
    unpacked: bool


class _Run(Struct, tag="run"):
    new: NewRun


class _Lines(Struct, tag="lines"):
    lines: bytes
    bytes_done: int
    snapshots: list[tuple[int, int, bytes, list[tuple[str, bytes]]]]


class _End(Struct, tag="end"):
    report: dict[str, Any]
    clean: bool


_Frame: TypeAlias = _Begin | _Run | _Lines | _End | Failed
_encode: Final = msgspec.msgpack.Encoder().encode
_known: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(AnyRecord)
_decode: Final = msgspec.msgpack.Decoder(_Frame).decode


class Sender:
    """Writes items into a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def begin(self, format_name: str, *, unpacked: bool) -> None:
        """Say what is being read."""
        self._send(_Begin(format_name, unpacked))

    def items(self, items: Iterator[FoldedItem]) -> None:
        """Write them all. Raises what reading them raises."""
        for item in items:
            if isinstance(item, Folded):
                lines = b"\n".join(item.piece.batch.lines)
                rows = [(rows.ord, rows.t, rows.root, rows.parts) for rows in item.snapshots]
                self._send(_Lines(lines, item.piece.bytes_done, rows))
            elif isinstance(item, Ended):
                self._send(_End(item.report, item.clean))
            else:
                self._send(_Run(item))

    def failed(self, error: str, kind: str) -> None:
        """Say why there is no more."""
        self._send(Failed(error=error, kind=kind))

    def _send(self, frame: _Frame) -> None:
        data = _encode(frame)
        for part in (_LENGTH.pack(len(data)), data):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(self._fd, rest) :]


def _batch(block: bytes) -> Batch:
    """The records of lines that the other process has judged: each is a record of this version, or of a later type."""
    lines = block.split(b"\n") if block else []
    try:
        known: list[AnyLine] = _known.decode_lines(block)
    except (msgspec.MsgspecError, RecursionError):
        known = []
    if len(known) == len(lines):
        return Batch(known, lines)
    return Batch([decode_stored(line) for line in lines], lines)


class Receiver:
    """Reads from a pipe what a :class:`Sender` wrote."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def begin(self) -> tuple[str, bool]:
        """Name of the format, and whether the file had to be unpacked. Raises as :meth:`items`."""
        frame = self._next()
        if not isinstance(frame, _Begin):
            raise StoreError("the process that reads the file failed; the log has the details")
        return frame.format, frame.unpacked

    def items(self) -> Iterator[FoldedItem]:
        """All items, in order.

        Raises:
            TidegateError: what reading the file raised in the other process, or that this ended without a word.
        """
        while True:
            frame = self._next()
            if isinstance(frame, _Lines):
                batch = _batch(frame.lines)
                yield Folded(Piece(batch, frame.bytes_done), [SnapshotRows(0, *rows) for rows in frame.snapshots])
            elif isinstance(frame, _Run):
                yield frame.new
            elif isinstance(frame, _End):
                yield Ended(frame.report, frame.clean)
                return

    def _next(self) -> _Frame:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        frame = _decode(self._read(length))
        if isinstance(frame, Failed):
            raise error_of(frame)
        return frame

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            block = os.read(self._fd, min(length - len(data), _PIPE_BYTES))
            if not block:
                raise StoreError("the process that reads the file ended; the log has the details")
            data += block
        return bytes(data)


def error_of(failed: Failed) -> TidegateError:
    """The error that a process told of."""
    kind = getattr(errors, failed.kind, StoreError)
    found: TidegateError = kind(failed.error)
    return found
