"""Reading a recording: a file of records, one a line, plain or compressed with gzip or zstd."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec
import zstandard

from tidegate.errors import BadInputError, NotFoundError
from tidegate.ingest.intake import Intake, LineError
from tidegate.store import NewRun, Run, Store
from tidegate_collectors import records
from tidegate_collectors.link import Stamper, new_src
from tidegate_collectors.records import MAX_LINE_BYTES, RecordError, RunEnd, RunMeta

log = logging.getLogger(__name__)

MAX_ERRORS: Final = 100
"""So many broken lines are named in the report; all are counted."""

_BLOCK_BYTES: Final = 1 << 20
_BATCH: Final = 8192
_KINDS: Final = (
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x7fELF", "a program"),
    (b"PK\x03\x04", "a zip archive"),
    (b"BZh", "a bzip2 file"),
    (b"\xfd7zXZ", "an xz file"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
    (b"\xef\xbb\xbf", "text with a byte order mark"),
    (b"PAR1", "a Parquet file"),
)


@dataclass(slots=True)
class Report:
    """What was found in a recording."""

    path: str
    lines: int = 0
    records: int = 0
    errors: list[LineError] = field(default_factory=list)
    errors_total: int = 0
    cut_last_line: bool = False
    extract_of_session: str | None = None
    unknown_types: Counter[str] = field(default_factory=Counter)
    unknown_fields: Counter[str] = field(default_factory=Counter)
    gaps: int = 0
    lost: int = 0
    duplicates: int = 0
    clock_back: int = 0
    ended_clean: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON for the page; errors as texts ``file:line:column: what was expected``."""
        return {
            "path": self.path,
            "lines": self.lines,
            "records": self.records,
            "errors": [str(error) for error in self.errors],
            "errors_total": self.errors_total,
            "cut_last_line": self.cut_last_line,
            "extract_of_session": self.extract_of_session,
            "unknown_types": dict(self.unknown_types),
            "unknown_fields": dict(self.unknown_fields),
            "gaps": self.gaps,
            "lost": self.lost,
            "duplicates": self.duplicates,
            "clock_back": self.clock_back,
            "ended_clean": self.ended_clean,
        }


class _Extract(msgspec.Struct):
    session: str


class _ExtractMark(msgspec.Struct):
    extract: _Extract | None = None


class RecordingFile:
    """The lines of a file, block by block.

    After the iteration ``cut`` tells whether the last line had no newline, and ``damage`` why the file could not be
    read to its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.cut = False
        self.damage = ""

    def blocks(self) -> Iterator[list[bytes]]:
        """Lines without newlines, in order. A line longer than a record may be is cut there.

        Raises:
            NotFoundError: there is no such file.
            BadInputError: it cannot be opened.
        """
        try:
            with self._path.open("rb") as raw, self._plain(raw) as file:
                yield from self._split(file)
        except FileNotFoundError:
            raise NotFoundError(f"{self._path} does not exist") from None
        except OSError as error:
            raise BadInputError(error.strerror or str(error), source=str(self._path)) from None

    def _plain(self, raw: BinaryIO) -> contextlib.AbstractContextManager[BinaryIO]:
        magic = raw.read(4)
        raw.seek(0)
        if magic[:2] == b"\x1f\x8b":
            return cast("contextlib.AbstractContextManager[BinaryIO]", gzip.GzipFile(fileobj=raw))
        if magic == b"\x28\xb5\x2f\xfd":
            reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=False)
            return cast("contextlib.AbstractContextManager[BinaryIO]", reader)
        return contextlib.nullcontext(raw)

    def _split(self, file: BinaryIO) -> Iterator[list[bytes]]:
        rest = b""
        skipping = False
        while True:
            try:
                block = file.read(_BLOCK_BYTES)
            except (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
                self.damage = f"the compressed file is damaged or cut: {error}"
                break
            if not block:
                break
            if skipping:
                _, newline, block = block.partition(b"\n")
                if not newline:
                    continue
                skipping = False
            *lines, rest = (rest + block).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                lines.append(rest[: MAX_LINE_BYTES + 1])
                rest, skipping = b"", True
            yield lines
        if rest:
            self.cut = True
            yield [rest]


async def load(
    path: Path, store: Store, *, run_id: str | None = None, on_progress: Callable[[int], None] | None = None
) -> tuple[Run, Report]:
    """Read a recording into a new run of the store.

    ``on_progress`` is called now and then with the number of records read so far.

    Broken lines do not end it: they are counted, the first ones named, and each leaves a loss in the run. A last line
    that is cut is tolerated in the same way.

    Raises:
        NotFoundError: there is no such file.
        BadInputError: the first line is no record of ours, or of another version; says what the file seems to be.
        StoreError: the store cannot be written.
    """
    report = Report(str(path))
    file = RecordingFile(path)
    run: Run | None = None
    intake: Intake | None = None
    number = 1
    for lines in file.blocks():
        if run is None or intake is None:
            first = next((i for i, line in enumerate(lines) if line.strip()), None)
            if first is None:
                number += len(lines)
                continue
            new = _first_record(path, lines[first], number + first, report, run_id)
            run = await store.create_run(new)
            intake = Intake(
                Stamper(new_src("import"), new.host),
                where="import",
                sparse=report.extract_of_session is not None,
                on_error=lambda error: _add_error(report, error),
            )
        for start in range(0, len(lines), _BATCH):
            batch = intake.new_batch()
            intake.feed(batch, lines[start : start + _BATCH], source=str(path), first_line=number + start)
            await store.commit(run, batch)
            if on_progress is not None:
                on_progress(run.last_ord)
            for record in batch.records:
                if isinstance(record, RunEnd):
                    report.ended_clean = record.clean
        number += len(lines)
    if run is None or intake is None:
        raise BadInputError(file.damage or "the file is empty; expected one record a line", source=str(path))
    _finish(report, intake, file, number - 1)
    await store.end_run(run, run.last_t or run.started_us, clean=report.ended_clean)
    return run, report


def _add_error(report: Report, error: LineError) -> None:
    report.errors_total += 1
    if len(report.errors) < MAX_ERRORS:
        report.errors.append(error)


def _finish(report: Report, intake: Intake, file: RecordingFile, lines: int) -> None:
    counts = intake.counts
    report.lines = lines
    report.records = counts.records
    report.unknown_types = counts.unknown_types
    report.unknown_fields = counts.unknown_fields
    report.gaps, report.lost = counts.gaps, counts.lost
    report.duplicates, report.clock_back = counts.duplicates, counts.clock_back
    if file.cut and report.errors_total and (not report.errors or report.errors[-1].line == lines):
        report.cut_last_line = True
    if file.damage:
        report.cut_last_line = True
        _add_error(report, LineError(report.path, lines, None, file.damage))


def _first_record(path: Path, line: bytes, number: int, report: Report, run_id: str | None) -> NewRun:
    try:
        record = records.decode(line)
    except RecordError as error:
        message = f"{error}; this seems to be {_seems(line)}, not a recording of Tidegate"
        if "version" in str(error) and line.lstrip().startswith(b"{"):
            message = str(error)
        raise BadInputError(message, source=str(path), line=number, column=error.column) from None
    name = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".jsonl")
    if not isinstance(record, RunMeta):
        host = getattr(record, "host", "")
        return NewRun(id=run_id or name, started_us=record.t, title=name, source="recorded", host=host)
    report.extract_of_session = _extract_of(line)
    return NewRun(
        id=run_id or record.run or name,
        started_us=record.t,
        title=record.title or name,
        source="recorded" if record.source == "live" else record.source,
        host=record.host,
        boot_id=record.machine.boot_id if record.machine else "",
    )


def _extract_of(line: bytes) -> str | None:
    try:
        mark = msgspec.json.decode(line, type=_ExtractMark).extract
    except msgspec.MsgspecError:
        return None
    return mark.session if mark else None


def _seems(line: bytes) -> str:
    for magic, kind in _KINDS:
        if line.startswith(magic):
            return kind
    if b"\0" in line:
        return "a binary file"
    text = line.strip()
    if text.startswith(b"["):
        return "a JSON array"
    if text.startswith(b"{"):
        try:
            value = json.loads(text)
        except ValueError:
            return "the beginning of a JSON document over several lines, or a damaged line"
        if "traceEvents" in value:
            return "a Chrome trace"
        return "JSON lines of another program"
    if text.startswith(b"<"):
        return "HTML or XML"
    if text.count(b",") >= 2:
        return "CSV"
    return "text"
