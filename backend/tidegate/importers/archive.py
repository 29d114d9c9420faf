"""Unpacking an archive that somebody uploaded. It is hostile: names that lead out, links, bombs.

Only plain files and folders are written, all below the folder given. The archive is read as a stream, once; what it
says of its own sizes is not believed.
"""

from __future__ import annotations

import contextlib
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, Self, cast

import zstandard

from tidegate.errors import BadInputError, NotFoundError, UnavailableError
from tidegate.ingest.lines import packing_of, unpacked

from ._skipped import Skipped

_BLOCK_BYTES: Final = 1 << 16
_MAX_DEPTH: Final = 16
_MAX_NAME_BYTES: Final = 255
_TAR_MAGIC: Final = b"ustar"
_TAR_MAGIC_AT: Final = 257
_HEAD_BYTES: Final = _TAR_MAGIC_AT + len(_TAR_MAGIC)
_LITTER: Final = frozenset({"__MACOSX", ".DS_Store", "Thumbs.db"})

_MAX_HEADER_BYTES: Final = 1 << 20
_IN_MEMORY: Final = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)

_BROKEN: Final = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, zstandard.ZstdError, EOFError, struct.error,
    RuntimeError, NotImplementedError, ValueError, OverflowError, IndexError, KeyError,
)  # fmt: skip
"""What the libraries raise on damaged, encrypted or unusual archives (UnicodeError is a ValueError)."""


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Beyond these an archive is refused.

    Attributes:
        members: files and folders in it.
        total_bytes: all files unpacked.
        ratio: unpacked bytes to one packed byte, looked at once ``free_bytes`` are unpacked.
        free_bytes: so much may come out of any archive, however well it is packed.
    """

    members: int = 20_000
    total_bytes: int = 4 << 30
    ratio: int = 200
    free_bytes: int = 64 << 20


def is_archive(path: Path) -> bool:
    """Whether the file is a zip or tar archive (plain, gzip, zstd), by its first bytes. Never raises."""
    return _kind(path) is not None


def unpack(source: Path, target: Path, skipped: Skipped | None = None, *, limits: ArchiveLimits | None = None) -> Path:
    """Unpack ``source`` into the folder ``target``, which exists and is empty.

    Links, devices and other things that are no file are left out and told in ``skipped``.

    Returns:
        the folder to look into: ``target``, or the only folder in it, which is how most archives are made.

    Raises:
        NotFoundError: there is no such file.
        BadInputError: it is no archive, damaged, over a limit, or has a name that leads out of the folder. What was
            unpacked until then is left in ``target``.
        UnavailableError: it cannot be written here.
    """
    kind = _kind(source)
    if kind is None:
        if not source.exists():
            raise NotFoundError(f"{source} does not exist")
        raise BadInputError("no archive; expected .zip, .tar, .tar.gz or .tar.zst", source=str(source))
    unpacking = _Unpacking(source, target, skipped or Skipped(), limits or ArchiveLimits())
    try:
        unpacking.run(kind)
    except _BROKEN as error:
        raise BadInputError(f"the archive is damaged: {error or type(error).__name__}", source=str(source)) from None
    except OSError as error:
        raise BadInputError(f"the archive cannot be read: {error}", source=str(source)) from None
    return only_folder(target)


def only_folder(root: Path) -> Path:
    """``root``, or the folder below it that holds everything. What file managers leave behind does not count."""
    for _ in range(_MAX_DEPTH):
        entries = [entry for entry in root.iterdir() if entry.name not in _LITTER]
        if len(entries) != 1 or entries[0].is_symlink() or not entries[0].is_dir():
            break
        root = entries[0]
    return root


def _kind(path: Path) -> str | None:
    try:
        with path.open("rb") as raw:
            head = raw.read(_HEAD_BYTES)
            if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                return "zip"
            if head[_TAR_MAGIC_AT:] == _TAR_MAGIC:
                return "tar"
            kind = packing_of(head)
            if kind is None:
                return None
            raw.seek(0)
            with unpacked(raw) as file:
                return kind if file.read(_HEAD_BYTES)[_TAR_MAGIC_AT:] == _TAR_MAGIC else None
    except (OSError, *_BROKEN):
        return None


class _Counted:
    """A stream that stops a bomb while it goes off: also what a tar's headers and padding unpack to counts."""

    def __init__(self, file: IO[bytes], unpacking: _Unpacking) -> None:
        self._file = file
        self._unpacking = unpacking
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size if 0 <= size <= _BLOCK_BYTES else _BLOCK_BYTES)
        self._read += len(block)
        self._unpacking.check_ratio(self._read)
        return block


class _Header(tarfile.TarInfo):
    """A header that is read into memory as a whole (long names, pax) has a size of its own saying."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _IN_MEMORY and header.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header


class _Unpacking:
    def __init__(self, source: Path, target: Path, skipped: Skipped, limits: ArchiveLimits) -> None:
        self._source = source
        self._target = target
        self._skipped = skipped
        self._limits = limits
        self._packed = max(source.stat().st_size, 1)
        self._members = 0
        self._bytes = 0

    def run(self, kind: str) -> None:
        if kind == "zip":
            self._run_zip()
            return
        with self._source.open("rb") as raw, contextlib.nullcontext(raw) if kind == "tar" else unpacked(raw) as file:
            counted = cast("IO[bytes]", _Counted(file, self))
            with tarfile.open(fileobj=counted, mode="r|", tarinfo=_Header) as tar:
                for member in tar:
                    self._count_member()
                    self._tar_member(tar, member)

    def _run_zip(self) -> None:
        with zipfile.ZipFile(self._source) as archive:
            for info in archive.infolist():
                self._count_member()
                mode = info.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    self._skipped.add(info.filename, None, "left out: a link or a device, not a file")
                elif info.is_dir():
                    self._folder(info.filename)
                else:
                    with archive.open(info) as content:
                        self._file(info.filename, content)

    def _tar_member(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        if member.isdir():
            self._folder(member.name)
        elif member.isreg() and not member.issparse():
            content = tar.extractfile(member)
            if content is not None:
                self._file(member.name, content)
        else:
            self._skipped.add(member.name, None, "left out: a link or a device, not a file")

    def _count_member(self) -> None:
        self._members += 1
        if self._members > self._limits.members:
            raise self._refusal(f"has more than {self._limits.members} members")

    def check_ratio(self, unpacked: int) -> None:
        """Refuse what grows beyond all measure."""
        if unpacked > self._limits.total_bytes:
            raise self._refusal(f"unpacks to more than {self._limits.total_bytes} bytes")
        if unpacked > self._limits.free_bytes and unpacked > self._limits.ratio * self._packed:
            raise self._refusal(f"unpacks to more than {self._limits.ratio} times its size")

    def _folder(self, name: str) -> None:
        path = self._path(name)
        with self._writing(name):
            path.mkdir(parents=True, exist_ok=True)

    def _file(self, name: str, content: IO[bytes]) -> None:
        path = self._path(name)
        if path == self._target:
            raise self._refusal(f"has a file without a name: {name!a}")
        with self._writing(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
        with file:
            for block in iter(lambda: content.read(_BLOCK_BYTES), b""):
                self._bytes += len(block)
                self.check_ratio(self._bytes)
                with self._writing(name):
                    file.write(block)

    def _path(self, name: str) -> Path:
        """Where a member goes. Refuses names that could lead out of the folder."""
        plain = name.replace("\\", "/")
        parts = [part for part in PurePosixPath(plain).parts if part != "."]
        if plain.startswith("/") or plain[1:3] == ":/" or ".." in parts:
            raise self._refusal(f"has a name that leads out of its folder: {name[:200]!a}")
        if len(parts) > _MAX_DEPTH or any(_bad(part) for part in parts):
            raise self._refusal(f"has a name that is no file name: {name[:200]!a}")
        return self._target.joinpath(*parts)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise self._refusal(f"has two members of the same name: {name[:200]!a}") from None
        except OSError as error:
            raise UnavailableError(f"the archive cannot be unpacked into {self._target}: {error.strerror}") from None

    def _refusal(self, what: str) -> BadInputError:
        return BadInputError(f"the archive {what}", source=str(self._source))


def _bad(part: str) -> bool:
    printable = part.isprintable()  # no NUL, no control character, no lone surrogate
    return not printable or len(part.encode("utf-8", "replace")) > _MAX_NAME_BYTES
