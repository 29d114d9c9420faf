"""Reading a file of any format: which one it is, and its records one way for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias

from tidegate.errors import BadInputError, NotFoundError
from tidegate.importers import FORMATS, Format, Skipped, detect, format_named
from tidegate.importers.archive import is_archive, unpack
from tidegate.ingest.intake import MAX_T
from tidegate.ingest.lines import Bounds, is_packed, unpack_file
from tidegate.ingest.recording import Piece, Report, is_recording, new_run, read_recording, seems
from tidegate.runs.messages import TIDEGATE
from tidegate.store import Batch, NewRun
from tidegate_collectors.link import Stamper
from tidegate_collectors.records import MAX_LINE_BYTES, Record, RunEnd, RunMeta

_BATCH: Final = 4096
_HEAD_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Found:
    """What is to be read: a file or folder, its format (None: our own) and what it is called in messages."""

    path: Path
    format: Format | None
    name: str

    @property
    def format_name(self) -> str:
        """Name of the format."""
        return TIDEGATE if self.format is None else self.format.name


def find(source: Path, name: str, scratch: Path, *, wanted: str | None, folder: bool, skipped: Skipped) -> Found:
    """Find out what a file is; an archive, and a packed file of a foreign format, is unpacked into ``scratch``.

    Args:
        wanted: name of the format; None: any.
        folder: whether ``source`` may be a folder.
        skipped: is told what of an archive was left out.

    Raises:
        NotFoundError: there is no such file.
        BadInputError: it is of no format that can be read, says what it seems to be; or its archive is hostile.
        UsageError: there is no format of that name.
    """
    if wanted is not None and wanted != TIDEGATE:
        format_named(wanted)
    if not source.exists():
        raise NotFoundError(f"{name} does not exist")
    if source.is_dir():
        if not folder:
            raise BadInputError("it is a directory", source=name)
    elif wanted == TIDEGATE or (wanted is None and is_recording(source)):
        return Found(source, None, name)
    elif is_archive(source):
        source = _unpacked_archive(source, scratch, skipped)
        inside = _only_file(source)
        if inside is not None and wanted is None and is_recording(inside):
            return Found(inside, None, f"{name}/{inside.name}")
    elif is_packed(source):
        scratch.mkdir(mode=0o700)
        target = scratch / (source.name.removesuffix(".gz").removesuffix(".zst") or "file")
        unpack_file(source, target, name=name, bounds=Bounds())
        source = target
    known = format_named(wanted) if wanted is not None else detect(source)
    if known is None:
        raise _unknown(source, name)
    return Found(source, known, name)


def _unpacked_archive(source: Path, scratch: Path, skipped: Skipped) -> Path:
    stem = source.name
    for ending in (".gz", ".zst", ".tar", ".tgz", ".zip"):
        stem = stem.removesuffix(ending)
    target = scratch / (stem or "archive")
    target.mkdir(mode=0o700, parents=True)
    return unpack(source, target, skipped)


def _only_file(root: Path) -> Path | None:
    entries = list(root.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_file() and not entries[0].is_symlink() else None


def _unknown(path: Path, name: str) -> BadInputError:
    known = ", ".join(["a recording of Tidegate", *(known.title for known in FORMATS)])
    if path.is_dir():
        return BadInputError(f"nothing in it is of a format that can be read: {known}", source=name)
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    first = next((line for line in head.split(b"\n") if line.strip()), b"")
    if not first:
        return BadInputError("the file is empty; expected one record a line", source=name)
    return BadInputError(f"this seems to be {seems(first)}; what can be read is {known}", source=name, line=1)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of what was read: what was found wrong, and whether the run itself had an end.

    ``report`` is as :meth:`tidegate.ingest.recording.Report.to_dict`, with ``reasons``.
    """

    report: dict[str, Any]
    clean: bool


Item: TypeAlias = NewRun | Piece | Ended
"""What a file is read as: first the run, then its records, at last the end."""


def read(found: Found, skipped: Skipped) -> Iterator[Item]:
    """Read it, piece by piece.

    Args:
        found: the file and its format.
        skipped: what was left out so far, of its archive; it goes on here.

    Raises:
        BadInputError: it cannot be read.
    """
    if found.format is not None:
        yield from _Foreign(found, found.format, skipped).read()
        return
    for item in read_recording(found.path, name=found.name):
        yield Ended(_with_skipped(item.to_dict(), skipped), item.ended_clean) if isinstance(item, Report) else item


def _with_skipped(report: dict[str, Any], skipped: Skipped) -> dict[str, Any]:
    return report | {
        "errors": [*report["errors"], *map(str, skipped.kept)],
        "errors_total": report["errors_total"] + skipped.total,
        "reasons": dict(skipped.reasons.most_common()),
    }


class _Foreign:
    """Stamps the records of an importer as a collector would."""

    def __init__(self, found: Found, known: Format, skipped: Skipped) -> None:
        self._found = found
        self._known = known
        self._skipped = skipped
        self._clean = True
        self._count = 0

    def read(self) -> Iterator[Item]:
        name = self._found.name
        stream = self._records()
        meta = next(stream, None)
        if not isinstance(meta, RunMeta):
            raise BadInputError("nothing in it could be used", source=name)
        new = new_run(meta, PurePath(name).name)
        yield new
        stamper = Stamper(f"import-{self._known.name}", new.host)
        batch = Batch()
        self._add(batch, stamper, meta)
        for record in stream:
            if len(batch) >= _BATCH:
                yield Piece(batch, 0)
                batch = Batch()
            self._add(batch, stamper, record)
        yield Piece(batch, 0)
        report = Report(name, records=self._count, ended_clean=self._clean)
        yield Ended(_with_skipped(report.to_dict(), self._skipped), self._clean)

    def _records(self) -> Iterator[Record]:
        try:
            yield from self._known.read(self._found.path, self._skipped)
        except BadInputError as error:
            raise BadInputError(_named(str(error), self._found)) from None

    def _add(self, batch: Batch, stamper: Stamper, record: Record) -> None:
        if not 0 <= record.t < MAX_T:
            self._skipped.add(self._found.name, None, f"a time that is none: {record.t}")
            return
        seq = stamper.next_seq
        line = stamper.stamp(record)
        if len(line) > MAX_LINE_BYTES:
            stamper.next_seq = seq
            self._skipped.add(self._found.name, None, f"a {record.__struct_config__.tag} of {len(line)} bytes")
            return
        if isinstance(record, RunEnd):
            self._clean = record.clean
        self._count += 1
        batch.add(record, line)  # type: ignore[arg-type]


def _named(text: str, found: Found) -> str:
    """A message without the path where an upload happens to lie."""
    return text.replace(str(found.path), found.name)
