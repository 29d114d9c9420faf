"""Lines that nobody meant to send: no crash and no hang, and every line is accounted for."""

from __future__ import annotations

import gzip
import json
import logging
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.databases import derived_tables
from tests.support.records import HOSTILE, random_struct
from tests.support.scenes import scene_lines
from tidegate.errors import TidegateError
from tidegate.ingest.intake import Intake
from tidegate.ingest.recording import Piece, Report, is_recording, load, read_recording
from tidegate.runs.folding import folded
from tidegate.runs.reading import Ended
from tidegate.store import NewRun, open_store
from tidegate.store.reindex import reindex
from tidegate_collectors import records
from tidegate_collectors.link import Stamper
from tidegate_collectors.records import RecordError

SCENE = scene_lines(sessions=2, ticks=6)
TYPES = tuple(records.TYPES.values())
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
FUZZ = settings(max_examples=150, deadline=5000)

# Numbers at the edges of what JSON, C and SQLite hold, and values of the wrong kind.
ODD: list[Any] = [
    0, -1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 1e308, -0.0, 1.5, True, None, [], {}, "",
    "x" * 3000, [[[[]]]], {"a": {"b": [1]}}, *HOSTILE,
]  # fmt: skip


@st.composite
def odd_record(draw: st.DrawFn) -> bytes:
    """A record of any type with some of its fields replaced, left out or added."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    fields: dict[str, Any] = json.loads(records.encode(random_struct(rng.choice(TYPES), rng)))
    for _ in range(rng.randrange(4)):
        match rng.randrange(3):
            case 0:
                fields[rng.choice(list(fields))] = rng.choice(ODD)
            case 1:
                fields.pop(rng.choice(list(fields)), None)
                fields.setdefault("x", 1)
            case _:
                fields[rng.choice(["extra", "type", "v", "seq", "src", "t", "session", "call"])] = rng.choice(ODD)
    return json.dumps(fields, ensure_ascii=rng.random() < 0.5).replace("\n", " ").encode("utf-8", "surrogatepass")


@st.composite
def cut_line(draw: st.DrawFn) -> bytes:
    """A good line with some of its bytes changed, taken out or put in twice."""
    line = bytearray(draw(st.sampled_from(SCENE)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(line) - 1))
        match draw(st.integers(0, 2)):
            case 0:
                line[at] = draw(st.integers(0, 255))
            case 1:
                del line[at : at + draw(st.integers(1, 20))]
            case _:
                line[at:at] = line[at : at + draw(st.integers(1, 20))]
        line = line or bytearray(b"{")
    return bytes(line).replace(b"\n", b" ")


LINES = st.lists(
    st.sampled_from(SCENE) | odd_record() | cut_line() | st.binary(max_size=60).map(lambda b: b.replace(b"\n", b"")),
    max_size=30,
)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of broken lines are meant."""
    log = logging.getLogger("tidegate.ingest.intake")
    level = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(level)


@FUZZ
@given(odd_record() | cut_line() | st.binary(max_size=200))
@example(b"")
@example(b"[" * 100_000)
@example(b'{"a":' * 50_000)
@example(b'{"type":"note","v":1,"seq":0,"src":"x","t":' + b"9" * 100_000 + b"}")
@example(b'{"type":"note","v":1,"seq":0,"src":"x","t":1,"text":"' + b"\\u0000" * 1000 + b'"}')
def test_a_decoder_gives_a_record_or_says_why_not(line: bytes) -> None:
    try:
        record = records.decode(line)
    except RecordError as error:
        assert str(error)
        assert error.column is None or 1 <= error.column <= len(line) + 1
        return
    assert isinstance(record.t, int)
    msgspec.json.encode(record.src)


@FUZZ
@given(LINES, st.booleans())
@example([SCENE[0].replace(b'"title"', b'"\x80itle"')], False)  # a name that the decoder skips, and is no text
def test_an_intake_accounts_for_every_line(lines: list[bytes], known: bool) -> None:
    intake = Intake(Stamper("own-1", "box"), where="import")
    batch = intake.new_batch()
    expect = intake.source("kernel-1") if known else None
    intake.feed(batch, lines, source="f", first_line=1, expect=expect)
    counts = intake.counts
    assert counts.records + counts.broken + counts.duplicates == sum(1 for line in lines if line)
    assert len(batch.records) == len(batch.lines)
    own = sum(b'"src":"own-1"' in line for line in batch.lines)
    assert len(batch) == counts.records + own
    for record, line in zip(batch.records, batch.lines, strict=True):
        assert records.decode(line).t == record.t


@FUZZ
@given(LINES, st.sampled_from(["plain", "gzip", "zstd"]), st.integers(0, 40))
def test_a_file_is_read_to_its_end_or_refused_in_words(lines: list[bytes], packing: str, cut: int) -> None:
    data = b"\n".join([SCENE[0], *lines])
    packed = PACKERS[packing](data)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "r.jsonl"
        path.write_bytes(packed[: len(packed) - cut] if cut < len(packed) else packed)
        is_recording(path)
        try:
            items = list(read_recording(path))
        except TidegateError as error:
            assert str(error).startswith(str(path))
            return
        assert isinstance(items[0], NewRun)
        assert isinstance(items[-1], Report)
        # what is read can be folded, whatever it is
        pieces = (Ended({}, True) if isinstance(item, Report) else item for item in items)
        for item in folded(pieces):
            assert item is not None
        read = sum(len(item.batch) for item in items if isinstance(item, Piece))
        assert read >= items[-1].records


@settings(max_examples=25, deadline=10_000)
@given(LINES)
async def test_what_is_read_is_stored_and_its_tables_can_be_rebuilt(lines: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "r.jsonl"
        path.write_bytes(b"\n".join([SCENE[0], *lines, b""]))
        store = await open_store(Path(directory) / "t.db")
        try:
            run, report = await load(path, store)
            stored = [line async for line in store.reads.raw_lines(run.id)]
            assert len(stored) >= report.records
            before = derived_tables(store.path)
            await reindex(store, run)
            assert derived_tables(store.path) == before
        finally:
            await store.close()
