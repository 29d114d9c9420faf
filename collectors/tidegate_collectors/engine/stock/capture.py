"""KV events as JSON lines: what ``--kv-capture`` writes and the importer of the backend reads. No token ids.

A line has ``seq`` and ``ts`` (Unix seconds) of its batch, ``type``, and what is known of the event's blocks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import msgspec

from tidegate_collectors.engine.stock.events import Batch, Cleared, Event, Hash, Removed


class Capture:
    """A file that is appended to.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._file: IO[bytes] = os.fdopen(fd, "ab")
        self._encoder = msgspec.json.Encoder()

    def write(self, seq: int, batch: Batch) -> None:
        """Write a batch's events."""
        for event in batch.events:
            line = {"seq": seq, "ts": batch.ts_s, "dp": batch.rank, **_fields(event)}
            self._file.write(self._encoder.encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _fields(event: Event) -> dict[str, Any]:
    if isinstance(event, Cleared):
        return {"type": "AllBlocksCleared"}
    hashes = [_plain(item) for item in event.hashes]
    if isinstance(event, Removed):
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": event.medium, "group_idx": event.group}
    return {
        "type": "BlockStored", "block_hashes": hashes, "block_size": event.block_tokens, "medium": event.medium,
        "group_idx": event.group, "session_id": event.session,
    }  # fmt: skip


def _plain(item: Hash) -> int | str:
    return item.hex() if isinstance(item, bytes) else item
