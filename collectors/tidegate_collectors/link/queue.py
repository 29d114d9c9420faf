"""Stamping records, and keeping their lines until the backend has committed them."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from tidegate_collectors import records
from tidegate_collectors.records import SAMPLE_TYPES, Record


class Stamper:
    """Fills the envelope: version, gap-free ``seq`` from 0, ``src``, and ``host`` where it is empty."""

    def __init__(self, src: str, host: str) -> None:
        self.src: Final = src
        self.host: Final = host
        self.next_seq = 0

    def stamp(self, record: Record) -> bytes:
        """Stamp the record in place and return its line, without the newline."""
        record.v = records.VERSION
        record.seq = self.next_seq
        record.src = self.src
        if not record.host:
            record.host = self.host
        line = records.encode(record)
        self.next_seq += 1
        return line


class Unacked:
    """Lines by ``seq`` that the backend has not yet committed, bounded in number and in bytes.

    When it is full, the oldest sample goes first, because the next sample says the same later; only when no sample is
    left the oldest record goes. The hole in ``seq`` tells the backend what is missing.
    Not thread-safe: :class:`LinkClient` holds a lock around it.
    """

    def __init__(self, max_records: int, max_bytes: int) -> None:
        if max_records < 1 or max_bytes < 1:
            raise ValueError("the queue must hold at least one record")
        self._max_records = max_records
        self._max_bytes = max_bytes
        # An OrderedDict and not a dict: taking the first key of a dict whose front was deleted is linear.
        self._lines: OrderedDict[int, bytes] = OrderedDict()
        self._samples: deque[int] = deque()
        self._bytes = 0
        self._unsent = 0  # the lowest seq that was not sent on the present connection
        self.dropped_samples = 0
        self.dropped_records = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def has_unsent(self) -> bool:
        """Whether a line waits to be sent."""
        return bool(self._lines) and next(reversed(self._lines)) >= self._unsent

    def add(self, seq: int, line: bytes, *, sample: bool) -> None:
        """Keep a line; may drop others, or this one when it alone is too large."""
        self._lines[seq] = line
        self._bytes += len(line)
        if sample:
            self._samples.append(seq)
        while len(self._lines) > self._max_records or self._bytes > self._max_bytes:
            self._drop_one()

    def ack(self, seq: int) -> None:
        """Forget every line up to and including ``seq``."""
        while self._lines:
            first = next(iter(self._lines))
            if first > seq:
                break
            self._bytes -= len(self._lines.pop(first))
        while self._samples and self._samples[0] <= seq:
            self._samples.popleft()

    def rewind(self, acked_seq: int) -> None:
        """A new connection: everything after ``acked_seq`` is to be sent again."""
        self.ack(acked_seq)
        self._unsent = acked_seq + 1

    def take(self, max_bytes: int) -> bytes:
        """The next unsent lines with newlines, about ``max_bytes`` of them; empty when there is none."""
        if not self.has_unsent:
            return b""
        last = next(reversed(self._lines))
        seq = max(self._unsent, next(iter(self._lines)))
        parts: list[bytes] = []
        size = 0
        while seq <= last and size < max_bytes:
            line = self._lines.get(seq)
            if line is not None:
                parts.append(line)
                size += len(line) + 1
            seq += 1
        self._unsent = seq
        parts.append(b"")
        return b"\n".join(parts)

    def _drop_one(self) -> None:
        while self._samples:
            seq = self._samples.popleft()
            line = self._lines.pop(seq, None)
            if line is not None:
                self._bytes -= len(line)
                self.dropped_samples += 1
                return
        _, line = self._lines.popitem(last=False)
        self._bytes -= len(line)
        self.dropped_records += 1


def is_sample(record: Record) -> bool:
    """Whether a full queue may give this record up first."""
    return isinstance(record, SAMPLE_TYPES)
