"""Packing what is exported, block by block, with gzip or zstd."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Final, Literal, Protocol

import zstandard

Packing = Literal["none", "gz", "zst"]

ENDINGS: Final[dict[Packing, str]] = {"none": "", "gz": ".gz", "zst": ".zst"}
"""What a file's name ends with."""

_GZIP_WINDOW: Final = 31
_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 9


class _Packer(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def packing_of(name: str) -> Packing:
    """How a file of that name is packed."""
    return "gz" if name.endswith(".gz") else "zst" if name.endswith(".zst") else "none"


async def packed(chunks: AsyncIterator[bytes], packing: Packing) -> AsyncIterator[bytes]:
    """The chunks as one gzip or zstd stream; as they are for ``none``."""
    if packing == "none":
        async for chunk in chunks:
            yield chunk
        return
    packer: _Packer = (
        zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        if packing == "gz"
        else zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()
    )
    async for chunk in chunks:
        # In a thread: a large run would hold the event loop up, and both libraries let others run meanwhile.
        block = await asyncio.to_thread(packer.compress, chunk)
        if block:
            yield block
    yield packer.flush()
