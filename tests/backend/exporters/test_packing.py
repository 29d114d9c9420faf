from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import pytest
import zstandard

from tidegate.exporters.packing import Packing, packed, packing_of

CHUNKS = [b"a" * 100_000, b"", b"b" * 10, bytes(range(256)) * 1000]


async def chunks() -> AsyncIterator[bytes]:
    for chunk in CHUNKS:
        yield chunk


@pytest.mark.parametrize("packing", ["none", "gz", "zst"])
async def test_what_is_packed_unpacks_to_the_same(packing: Packing) -> None:
    data = b"".join([block async for block in packed(chunks(), packing)])
    if packing == "gz":
        data = gzip.decompress(data)
    elif packing == "zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    assert data == b"".join(CHUNKS)


def test_the_ending_of_a_name_says_how() -> None:
    assert [packing_of(name) for name in ("x.jsonl", "x.jsonl.gz", "x.zst", "gz")] == ["none", "gz", "zst", "none"]
