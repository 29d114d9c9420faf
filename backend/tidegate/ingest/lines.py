"""The lines of a file that somebody else chose: plain, gzip or zstd, in blocks, with bounds on what it unpacks to."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, cast

import zstandard

from tidegate.errors import BadInputError, NotFoundError, UnavailableError
from tidegate_collectors.records import MAX_LINE_BYTES

BLOCK_BYTES: Final = 1 << 20
"""So much is read at once, unpacked."""

DAMAGES: Final = (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile)
"""What a packed file that is damaged or cut raises."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a packed file may unpack to; one that goes beyond is taken for a bomb.

    Records pack about 1:16, and 1:60 at the most; gzip can do 1:1000 and zstd 1:10000.
    """

    plain_bytes: int = 64 << 30
    ratio: int = 200
    ratio_from_bytes: int = 64 << 20
    """Below this many unpacked bytes the ratio is not looked at."""


class LinesOfFile:
    """The lines of a file, block by block.

    Attributes:
        bytes_done: bytes of the file, as it is packed, that were read so far.
        cut: after the iteration, whether the last line had no newline.
        damage: after the iteration, why the file could not be read to its end; empty when it could.

    Args:
        path: the file.
        name: what it is called in messages; the path by default.
    """

    def __init__(self, path: Path, *, name: str | None = None, bounds: Bounds | None = None) -> None:
        self._path = path
        self._name = name or str(path)
        self._bounds = bounds or Bounds()
        self.bytes_done = 0
        self.cut = False
        self.damage = ""

    def blocks(self) -> Iterator[list[bytes]]:
        """Lines without newlines, in order. A line longer than a record may be is cut there.

        Raises:
            NotFoundError: there is no such file.
            BadInputError: it cannot be opened, or unpacks to more than the bounds allow.
        """
        try:
            with self._path.open("rb") as raw, unpacked(raw) as file:
                yield from self._split(raw, file)
        except FileNotFoundError:
            raise NotFoundError(f"{self._name} does not exist") from None
        except OSError as error:
            raise BadInputError(error.strerror or str(error), source=self._name) from None

    def _split(self, raw: BinaryIO, file: BinaryIO) -> Iterator[list[bytes]]:
        rest = b""
        skipping = False
        plain_bytes = 0
        while True:
            try:
                block = file.read(BLOCK_BYTES)
            except DAMAGES as error:
                self.damage = f"the compressed file is damaged or cut: {error}"
                break
            if not block:
                break
            plain_bytes += len(block)
            self.bytes_done = raw.tell()
            if file is not raw:
                _check(self._bounds, self._name, plain_bytes, self.bytes_done)
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


def is_packed(path: Path) -> bool:
    """Whether the file is packed with gzip or zstd, by its first bytes. Never raises."""
    try:
        with path.open("rb") as raw:
            return packing_of(raw.read(4)) is not None
    except OSError:
        return False


def packing_of(head: bytes) -> Literal["gz", "zst"] | None:
    """What a file that begins with these four or more bytes is packed with."""
    return "gz" if head.startswith(_GZIP) else "zst" if head.startswith(_ZSTD) else None


def unpack_file(path: Path, target: Path, *, name: str | None = None, bounds: Bounds | None = None) -> None:
    """Write what a packed file holds to ``target``, which does not exist.

    Raises:
        BadInputError: it is damaged, or unpacks to more than the bounds allow.
        UnavailableError: it cannot be written.
    """
    source, known = name or str(path), bounds or Bounds()
    plain_bytes = 0
    with path.open("rb") as raw, unpacked(raw) as file, target.open("xb") as out:
        while True:
            try:
                block = file.read(BLOCK_BYTES)
            except DAMAGES as error:
                raise BadInputError(f"the compressed file is damaged or cut: {error}", source=source) from None
            if not block:
                return
            plain_bytes += len(block)
            _check(known, source, plain_bytes, raw.tell())
            try:
                out.write(block)
            except OSError as error:
                raise UnavailableError(f"{source} cannot be unpacked: {error.strerror}") from None


def _check(bounds: Bounds, name: str, plain_bytes: int, packed_bytes: int) -> None:
    if plain_bytes > bounds.plain_bytes:
        raise BadInputError(
            f"it unpacks to more than {bounds.plain_bytes / 1e9:.0f} GB, which is not read", source=name
        )
    if plain_bytes > bounds.ratio_from_bytes and plain_bytes > bounds.ratio * max(packed_bytes, 1):
        raise BadInputError(
            f"it unpacks to more than {bounds.ratio} times its size: this is no recording, and may be meant to fill "
            f"the disk; if it is yours, unpack it first",
            source=name,
        )


def unpacked(raw: BinaryIO) -> contextlib.AbstractContextManager[BinaryIO]:
    """What a file at its beginning holds, unpacked; the file itself where it is not packed.

    Reading it raises one of :data:`DAMAGES` where it is damaged or cut.
    """
    packing = packing_of(raw.read(4))
    raw.seek(0)
    if packing == "gz":
        return cast("contextlib.AbstractContextManager[BinaryIO]", gzip.GzipFile(fileobj=raw))
    if packing == "zst":
        reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=False)
        return cast("contextlib.AbstractContextManager[BinaryIO]", reader)
    return contextlib.nullcontext(raw)
