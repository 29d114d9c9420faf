"""Reading a recording: a file of records, one a line, plain or compressed with gzip or zstd."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Final

import msgspec

from tidegate.errors import BadInputError, TidegateError
from tidegate.ingest.account import LineError
from tidegate.ingest.intake import MAX_T, Intake
from tidegate.ingest.lines import Bounds, LinesOfFile
from tidegate.store import Batch, NewRun, Run, Store
from tidegate_collectors import records
from tidegate_collectors.link import Stamper, new_src
from tidegate_collectors.records import RecordError, RunEnd, RunMeta

MAX_ERRORS: Final = 100
"""So many broken lines are named in the report; all are counted."""

_BATCH: Final = 8192
_MAX_TEXT: Final = 500
_MANY_ERRORS: Final = 10_000
"""With more broken lines than this, and more than good ones, a file is no recording whatever its first line is."""

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


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of a run that go into the store together; ``bytes_done`` of the file are read by then."""

    batch: Batch
    bytes_done: int


def read_recording(
    path: Path, *, name: str | None = None, bounds: Bounds | None = None
) -> Iterator[NewRun | Piece | Report]:
    """A recording, piece by piece: first the run, then its records, at last what was found.

    Broken lines do not end it: they are counted, the first ones named, and each leaves a loss in the run. A last line
    that is cut is tolerated in the same way.

    Args:
        path: the file, plain or packed with gzip or zstd.
        name: what the file is called in messages and, without its ending, as title; by default its own name.
        bounds: what it may unpack to.

    Raises:
        NotFoundError: there is no such file.
        BadInputError: the first line is no record of ours, or of another version, says what the file seems to be; or
            most lines are no records; or it unpacks to too much.
    """
    source = name or str(path)
    report = Report(source)
    file = LinesOfFile(path, name=source, bounds=bounds)
    intake: Intake | None = None
    number = 1
    for lines in file.blocks():
        if intake is None:
            first = next((i for i, line in enumerate(lines) if line.strip()), None)
            if first is None:
                number += len(lines)
                continue
            new = _first_record(lines[first], number + first, report)
            yield new
            intake = Intake(
                Stamper(new_src("import"), new.host),
                where="import",
                sparse=report.extract_of_session is not None,
                on_error=lambda error: _add_error(report, error),
            )
        for start in range(0, len(lines), _BATCH):
            batch = intake.new_batch()
            intake.feed(batch, lines[start : start + _BATCH], source=source, first_line=number + start)
            for record in batch.records:
                if isinstance(record, RunEnd):
                    report.ended_clean = record.clean
            yield Piece(batch, file.bytes_done)
        number += len(lines)
        if report.errors_total > max(_MANY_ERRORS, number // 2):
            raise BadInputError(f"most of its lines are no records; the first: {report.errors[0]}", source=source)
    if intake is None:
        raise BadInputError(file.damage or "the file is empty; expected one record a line", source=source)
    _finish(report, intake, file, number - 1)
    yield report


async def load(
    path: Path,
    store: Store,
    *,
    name: str | None = None,
    choose_id: Callable[[str], str] | None = None,
    bounds: Bounds | None = None,
) -> tuple[Run, Report]:
    """Read a recording into a new run of the store.

    Args:
        path: the file.
        store: open for writing.
        choose_id: makes the id of the run from the one that the recording gives it; by default that one is taken.
        name, bounds: see :func:`read_recording`.

    Raises:
        NotFoundError, BadInputError: see :func:`read_recording`.
        StoreError: the store cannot be written.
    """
    run: Run | None = None
    for item in read_recording(path, name=name, bounds=bounds):
        if isinstance(item, NewRun):
            run = await store.create_run(replace(item, id=(choose_id or str)(item.id)))
        elif run is not None and isinstance(item, Piece):
            await store.commit(run, item.batch)
        elif run is not None and isinstance(item, Report):
            await store.end_run(run, run.last_t or run.started_us, clean=item.ended_clean)
            return run, item
    raise AssertionError("a recording ends with its report")


def is_recording(path: Path) -> bool:
    """Whether the file begins with a record of ours, in a version that this Tidegate reads or not."""
    try:
        for lines in LinesOfFile(path).blocks():
            first = next((line for line in lines if line.strip()), None)
            if first is not None:
                return _is_record(first)
    except TidegateError:
        pass
    return False


def _is_record(line: bytes) -> bool:
    try:
        records.decode(line)
    except RecordError as error:
        return "version" in str(error) and line.lstrip().startswith(b"{")
    return True


def _add_error(report: Report, error: LineError) -> None:
    report.errors_total += 1
    if len(report.errors) < MAX_ERRORS:
        report.errors.append(error)


def _finish(report: Report, intake: Intake, file: LinesOfFile, lines: int) -> None:
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


def _first_record(line: bytes, number: int, report: Report) -> NewRun:
    try:
        record = records.decode(line)
    except RecordError as error:
        message = f"{error}; this seems to be {seems(line)}, not a recording of Tidegate"
        if "version" in str(error) and line.lstrip().startswith(b"{"):
            message = str(error)
        raise BadInputError(message, source=report.path, line=number, column=error.column) from None
    name = PurePath(report.path).name.removesuffix(".gz").removesuffix(".zst").removesuffix(".jsonl")
    if isinstance(record, RunMeta):
        report.extract_of_session = _extract_of(line)
        return new_run(record, name)
    started_us = min(max(record.t, 0), MAX_T)
    return NewRun(
        id=name, started_us=started_us, title=name, source="recorded", host=clean(getattr(record, "host", ""))
    )


def new_run(meta: RunMeta, name: str) -> NewRun:
    """The run that a record opens, whatever is written in it; ``name`` stands in for what it does not say."""
    return NewRun(
        id=clean(meta.run) or name,
        started_us=min(max(meta.t, 0), MAX_T),
        title=clean(meta.title) or name,
        source="recorded" if meta.source == "live" else meta.source,
        host=clean(meta.host),
        boot_id=clean(meta.machine.boot_id) if meta.machine else "",
    )


def clean(text: str) -> str:
    """Text of a recording, such that a database takes it: not endless, and no half of a surrogate pair."""
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode()


def _extract_of(line: bytes) -> str | None:
    try:
        mark = msgspec.json.decode(line, type=_ExtractMark).extract
    except msgspec.MsgspecError:
        return None
    return mark.session if mark else None


def seems(line: bytes) -> str:
    """What a file seems to be, by its first line, in words that follow "this seems to be"."""
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
