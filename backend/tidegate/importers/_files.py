"""Reading other people's files: lines with their numbers, elements of a JSON array with theirs; all bounded."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, TypeVar, cast

import msgspec

from tidegate.errors import BadInputError, NotFoundError
from tidegate.ingest.lines import DAMAGES, Bounds, unpacked

from ._skipped import Skipped

MAX_LINE_BYTES: Final = 32 << 20
"""A longer line is left out: transcripts hold whole files and pictures, but not more."""

MAX_DOCUMENT_BYTES: Final = 64 << 20
"""A JSON document is read as a whole; a larger one is refused."""

MAX_UNPACKED_BYTES: Final = 4 << 30
"""So much of a compressed file is read."""

MAX_T_US: Final = 1 << 53
"""Later times (after the year 2255) are no times; JavaScript could not hold them."""

_T = TypeVar("_T")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's content, unpacked where it is gzip or zstd.

    Raises:
        NotFoundError: there is no such file.
        BadInputError: it cannot be opened, or is no file.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise BadInputError("not a file", source=str(path))
        with path.open("rb") as raw, unpacked(raw) as file:
            # The reader of zstd knows no lines.
            yield file if isinstance(file, io.BufferedIOBase) else io.BufferedReader(cast("io.RawIOBase", file))
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist") from None
    except OSError as error:
        raise BadInputError(error.strerror or str(error), source=str(path)) from None


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a file's content; nothing of a folder or of what cannot be read. Never raises."""
    try:
        if not path.is_file():
            return b""
        with opened(path) as file:
            return file.read(size)
    except (NotFoundError, BadInputError, OSError, ValueError, *DAMAGES):
        return b""


def lines(path: Path, place: str, skipped: Skipped) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1.

    Raises:
        NotFoundError, BadInputError: see :func:`opened`.
    """
    number, total, bounds = 0, 0, Bounds()
    with opened(path) as file:
        # A packed file of a folder that is a bomb is read no further than any other would go.
        most = min(MAX_UNPACKED_BYTES, max(bounds.ratio_from_bytes, bounds.ratio * path.stat().st_size))
        while total < most:
            number += 1
            try:
                line = file.readline(MAX_LINE_BYTES + 1)
                size = len(line)
                if size > MAX_LINE_BYTES:
                    while line and not line.endswith(b"\n") and total + size < most:
                        line = file.readline(MAX_LINE_BYTES)
                        size += len(line)
                    skipped.add(place, number, f"a line of more than {MAX_LINE_BYTES} bytes")
                    line = b"\n"
            except DAMAGES as error:
                skipped.add(place, number, f"the compressed file is damaged or cut: {error}")
                return
            if not line:
                return
            total += size
            if line.strip():
                yield number, line
    skipped.add(place, number, f"only the first {most} bytes were read")


def document(path: Path) -> bytes:
    """The whole content of a file.

    Raises:
        NotFoundError: there is no such file.
        BadInputError: it cannot be read, or is larger than a document may be.
    """
    with opened(path) as file:
        try:
            content = file.read(MAX_DOCUMENT_BYTES + 1)
        except DAMAGES as error:
            raise BadInputError(f"the compressed file is damaged or cut: {error}", source=str(path)) from None
    if len(content) > MAX_DOCUMENT_BYTES:
        raise BadInputError(f"larger than {MAX_DOCUMENT_BYTES} bytes", source=str(path))
    return content


def decoded(decoder: msgspec.json.Decoder[_T], line: bytes) -> _T | str:
    """The line as the decoder's type; a text that says what was wrong where it is none."""
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        return str(error)
    except (msgspec.DecodeError, ValueError) as error:
        return f"not JSON: {error}"
    except RecursionError:
        return "nested too deeply"


def converted(value: object, type_: type[_T]) -> _T | str:
    """The JSON value as a struct; a text that says what was wrong where it is none."""
    try:
        return msgspec.convert(value, type_)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        return str(error)
    except RecursionError:
        return "nested too deeply"


_SPACE: Final = re.compile(r"[\s,]*")


def elements(content: bytes, key: str | None, place: str, skipped: Skipped) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON array, each with the number of its first line.

    One that is damaged, or the end of a file that was cut, ends it and is told; what came before it is used.

    Args:
        content: the document.
        key: name of the array within the document's object; None when the document is the array.
    """
    text = content.decode("utf-8", "replace").removeprefix("\ufeff")
    begin = re.compile(r"\s*\[" if key is None else rf'"{re.escape(key)}"\s*:\s*\[')
    found = begin.match(text) if key is None else begin.search(text)
    if found is None:
        skipped.add(place, None, "no JSON array" if key is None else f"has no array {key}")
        return
    decoder = json.JSONDecoder()
    position, line, counted = found.end(), 1, 0
    while True:
        space = _SPACE.match(text, position)
        position = space.end() if space else position
        line += text.count("\n", counted, position)
        counted = position
        if text.startswith("]", position):
            return
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            reason = "the file is cut off here" if position >= len(text) else f"not JSON from here on: {error}"
            skipped.add(place, line, reason)
            return
        yield line, value
        position = end
