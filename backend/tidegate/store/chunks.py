"""The raw log: lines as they came, many to a compressed chunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import zstandard

CODEC: Final = "zstd"
TAIL_BYTES: Final = 128 * 1024
"""A chunk smaller than this is still open: the next batch is written into the same row again."""

_MAX_CHUNK_BYTES: Final = 1 << 30
_compressor: Final = zstandard.ZstdCompressor(level=1)
_decompressor: Final = zstandard.ZstdDecompressor()


@dataclass(slots=True)
class Tail:
    """The last chunk of a run while it is still small.

    In a quiet hour a batch is three lines, and a row for each would neither compress nor read well. So the last chunk
    is written anew until it has a decent size; the transaction makes that as safe as appending.
    """

    no: int = 0
    first_ord: int = 1
    lines: list[bytes] = field(default_factory=list)
    raw_bytes: int = 0
    first_t: int = 0
    last_t: int = 0

    def extended(self, first_ord: int, lines: Sequence[bytes], first_t: int, last_t: int) -> Tail:
        """The chunk that holds these lines too: this one with them, or a new one. ``self`` stays as it is."""
        size = sum(map(len, lines)) + len(lines)
        if self.lines and self.raw_bytes < TAIL_BYTES:
            return Tail(
                self.no, self.first_ord, [*self.lines, *lines], self.raw_bytes + size,
                min(self.first_t, first_t), max(self.last_t, last_t),
            )  # fmt: skip
        return Tail(self.no + 1, first_ord, list(lines), size, first_t, last_t)


def pack(lines: Sequence[bytes]) -> bytes:
    """Compress lines, each with its newline."""
    return _compressor.compress(b"\n".join([*lines, b""]))


def unpack(codec: str, data: bytes) -> list[bytes]:
    """The lines of a chunk, without newlines. Raises ``ValueError`` when the chunk is damaged."""
    if codec != CODEC:
        raise ValueError(f"chunk codec {codec!r}; this Tidegate reads {CODEC!r}")
    try:
        raw = _decompressor.decompress(data, max_output_size=_MAX_CHUNK_BYTES)
    except zstandard.ZstdError as error:
        raise ValueError(f"a damaged chunk: {error}") from None
    return raw.split(b"\n")[:-1]


def lines_of_session(lines: Iterable[bytes], session: str) -> list[bytes]:
    """Those lines whose ``session`` is this one."""
    # A cheap test first: decoding is the dear part, and most lines of a run belong to others. An id with a character
    # that JSON may write in two ways is looked for by decoding each line.
    plain = session.isascii() and session.isprintable() and not set(session) & set('"\\/<>&')
    needle = session.encode("utf-8", "replace")
    return [line for line in lines if (not plain or needle in line) and _session_of(line) == session]


class _Session(msgspec.Struct):
    session: str | None = None


_session_decoder: Final[msgspec.json.Decoder[_Session]] = msgspec.json.Decoder(_Session)


def _session_of(line: bytes) -> str | None:
    try:
        return _session_decoder.decode(line).session
    except msgspec.MsgspecError:
        return None
