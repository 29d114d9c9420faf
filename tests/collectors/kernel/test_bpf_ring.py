"""The ring buffer's reader, on a file that is laid out as the kernel lays a ring out."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegate_collectors.kernel.bpf_ring import PlainRing

PAGE = mmap.PAGESIZE
BUSY, DISCARDED = 1 << 31, 1 << 30


class Written:
    """What the kernel does: records in a ring of one page, which lies in the file twice in a row."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(4 * PAGE))
        self.file = path.open("r+b", buffering=0)
        self.position = 0

    def put(self, data: bytes, flags: int = 0) -> int:
        """Append a record; where its head is."""
        at = self.position % PAGE
        record = struct.pack("=II", len(data) | flags, 0) + data
        for index, byte in enumerate(record):
            for copy in (0, PAGE):
                self.file.seek(2 * PAGE + copy + (at + index) % PAGE)
                self.file.write(bytes([byte]))
        self.position += -(-len(record) // 8) * 8
        self.file.seek(PAGE)
        self.file.write(struct.pack("=Q", self.position))
        return at

    def commit(self, at: int, size: int) -> None:
        """The record there is no longer being written."""
        for copy in (0, PAGE):
            self.file.seek(2 * PAGE + copy + at)
            self.file.write(struct.pack("=I", size))

    def read_position(self) -> int:
        """How far the reader says it is."""
        self.file.seek(0)
        return int(struct.unpack("=Q", self.file.read(8))[0])


def into(seen: list[bytes], at_once: int = 1000) -> Callable[[bytes], bool]:
    """Takes records, and has enough after each ``at_once`` of them."""

    def take(record: bytes) -> bool:
        seen.append(record)
        return len(seen) % at_once != 0

    return take


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path / "ring")
    yield made
    made.file.close()


def test_records_come_in_order_also_around_the_end(written: Written) -> None:
    seen: list[bytes] = []
    ring = PlainRing(written.file.fileno(), PAGE, into(seen))
    sent = []
    for number in range(300):  # four times around
        sent.append(bytes([number % 256]) * (number % 61 + 1))
        written.put(sent[-1])
        if number % 7 == 0:
            ring.consume()
    ring.consume()
    assert seen == sent
    assert written.read_position() == written.position
    ring.consume()
    assert len(seen) == 300
    ring.close()
    ring.close()


def test_one_that_is_being_written_is_waited_for_and_discarded_ones_are_skipped(written: Written) -> None:
    seen: list[bytes] = []
    ring = PlainRing(written.file.fileno(), PAGE, into(seen))
    written.put(b"first")
    at = written.put(b"second", BUSY)
    written.put(b"third")
    ring.consume()
    assert seen == [b"first"]
    assert written.read_position() == 16
    written.commit(at, 6)
    written.put(b"none", DISCARDED)
    ring.consume()
    assert seen == [b"first", b"second", b"third"]
    assert written.read_position() == written.position
    written.put(b"none", DISCARDED)
    written.put(b"last")
    ring.consume()
    assert seen[-1] == b"last"
    ring.close()


def test_the_reader_stops_when_it_is_told_to(written: Written) -> None:
    seen: list[bytes] = []
    ring = PlainRing(written.file.fileno(), PAGE, into(seen, at_once=2))
    for number in range(5):
        written.put(bytes([number]))
    ring.consume()
    assert seen == [b"\0", b"\1"]
    ring.consume()
    assert seen == [b"\0", b"\1", b"\2", b"\3"]
    ring.consume()
    assert len(seen) == 5
    ring.close()
