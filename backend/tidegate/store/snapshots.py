"""Where snapshots of the folded state are kept: parts as deltas to an earlier version of the same part.

Of most parts little changes from one snapshot to the next, but a little everywhere: every session has some new points.
So a part is compressed with an earlier version of itself as the dictionary, until that no longer pays.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import zstandard
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.fold import State, snapshot
from tidegate.store.model import Run
from tidegate.store.store import Store

log = logging.getLogger(__name__)

EVERY: Final = 4096
"""Records from one snapshot to the next: what a seek folds at most."""

_LEVEL: Final = 1
_HEADER: Final = struct.Struct("<Iq")
"""Checksum of all that follows, and the ordinal of the snapshot whose part is the dictionary, 0: none."""

_MIN_DELTA: Final = 4096
"""Parts that are smaller are written in full."""
_KEPT_BASES: Final = 32
"""A part that did not change for so many snapshots is written in full the next time, rather than held in memory."""
_MAX_PART_BYTES: Final = 1 << 30

_NEWEST: Final = "SELECT ord, data FROM snapshots WHERE run = ? AND ord <= ? ORDER BY ord DESC LIMIT 1"
_PARTS: Final = (
    "SELECT p.ord, p.name, p.data FROM json_each(?) AS wanted CROSS JOIN parts AS p "
    "ON p.run = ? AND p.ord = json_extract(wanted.value, '$[1]') AND p.name = json_extract(wanted.value, '$[0]')"
)

PartKey = tuple[str, int]
"""Name of a part, and the ordinal of the snapshot that it was written with."""


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """A snapshot as rows, compressed. It can be sent to another process."""

    run: int
    ord: int
    t: int
    root: bytes
    parts: list[tuple[str, bytes]]

    @property
    def bytes(self) -> int:
        """Size of what is written."""
        return len(self.root) + sum(len(data) for _, data in self.parts)


@dataclass(slots=True)
class _Base:
    """The version of a part that later ones are deltas to."""

    ord: int
    data: bytes
    size: int  # compressed
    spent: int  # size of all deltas to it
    used: int  # number of the snapshot


class SnapshotWriter:
    """Makes the snapshots of one run, one after the other. No I/O; :func:`save` writes what it gives.

    Args:
        run: the run's number.
        every: records from one snapshot to the next.
    """

    def __init__(self, run: int, every: int = EVERY) -> None:
        self._run = run
        self._every = every
        self._last = 0
        self._count = 0
        self._bases: dict[str, _Base] = {}

    def due(self, state: State) -> bool:
        """Whether it is time for the next one."""
        return state.ord - max(self._last, state.saved.ord) >= self._every

    def take(self, state: State) -> SnapshotRows:
        """A snapshot of the state as it is now."""
        return self.pack(self.dump(state))

    def dump(self, state: State) -> snapshot.Dump:
        """The first half of :meth:`take`, which needs the state; it is quick."""
        self._last = state.ord
        return snapshot.dump(state)

    def pack(self, dump: snapshot.Dump) -> SnapshotRows:
        """The second half, which may be done in another thread. Dumps are packed in the order they were made."""
        self._count += 1
        parts = [(name, self._pack(name, dump.ord, data)) for name, data in dump.parts.items()]
        oldest = self._count - _KEPT_BASES
        self._bases = {name: base for name, base in self._bases.items() if base.used >= oldest}
        return SnapshotRows(self._run, dump.ord, dump.t_us, _compress(dump.root), parts)

    def failed(self, state: State) -> None:
        """What was taken could not be saved: the next snapshot holds everything."""
        self._bases.clear()
        snapshot.forget(state)

    def _pack(self, name: str, ord_: int, data: bytes) -> bytes:
        base = self._bases.get(name)
        if base is not None and base.ord != ord_ and base.spent < base.size:
            packed = _compress(data, base.data)
            base.spent += len(packed)
            base.used = self._count
            if len(packed) < base.size:
                return _sealed(base.ord, packed)
        packed = _compress(data)
        if len(data) >= _MIN_DELTA:
            self._bases[name] = _Base(ord_, data, len(packed), 0, self._count)
        return _sealed(0, packed)


def _sealed(base: int, packed: bytes) -> bytes:
    row = _HEADER.pack(0, base) + packed
    return _HEADER.pack(zlib.crc32(memoryview(row)[4:]), base) + packed


def _base_of(name: str, row: bytes) -> int:
    """The snapshot whose part is the dictionary. Raises ValueError: this is not what was written."""
    if len(row) < _HEADER.size:
        raise ValueError(f"part {name} of a snapshot is damaged")
    checksum, base = _HEADER.unpack_from(row)
    if zlib.crc32(memoryview(row)[4:]) != checksum:
        raise ValueError(f"part {name} of a snapshot is damaged")
    return int(base)


def _compress(data: bytes, base: bytes | None = None) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, source_size=len(data), dict_size=0 if base is None else len(base), write_content_size=1
    )
    return zstandard.ZstdCompressor(dict_data=_dictionary(base), compression_params=parameters).compress(data)


def _dictionary(base: bytes | None) -> zstandard.ZstdCompressionDict | None:
    return None if base is None else zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _decompress(data: bytes, base: bytes | None = None) -> bytes:
    try:
        return zstandard.ZstdDecompressor(dict_data=_dictionary(base)).decompress(data, max_output_size=_MAX_PART_BYTES)
    except zstandard.ZstdError as error:
        raise ValueError(f"a damaged snapshot: {error}") from None


async def save(target: Store | AsyncConnection, rows: SnapshotRows) -> None:
    """Write a snapshot, in a transaction of its own where a store is given.

    Raises:
        StoreError: the database cannot be written; then nothing of it is there.
    """
    if isinstance(target, Store):
        async with target.begin() as connection:
            await save(connection, rows)
        return
    await target.exec_driver_sql(
        "INSERT OR REPLACE INTO parts (run, ord, name, data) VALUES (?, ?, ?, ?)",
        [(rows.run, rows.ord, name, data) for name, data in rows.parts],
    )
    await target.exec_driver_sql(
        "INSERT OR REPLACE INTO snapshots (run, ord, t, data) VALUES (?, ?, ?, ?)",
        (rows.run, rows.ord, rows.t, rows.root),
    )


async def drop(target: Store | AsyncConnection, run: int) -> None:
    """Delete all snapshots of a run. Raises StoreError."""
    if isinstance(target, Store):
        async with target.begin() as connection:
            await drop(connection, run)
        return
    for table in ("snapshots", "parts"):
        await target.exec_driver_sql(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608 - a name of our own


async def load(store: Store, run: Run, state: State, *, to_ord: int | None = None) -> bool:
    """Bring an empty state to the newest snapshot, or to the newest that holds no record after ``to_ord``.

    Returns:
        whether there is one that this version can go on from; else the state stays empty.

    Raises:
        StoreError: the database cannot be read.
    """
    reads = store.reads
    no = await reads.number_of(run.id)
    newest = await reads.driver_all(_NEWEST, (no, run.last_ord if to_ord is None else to_ord))
    if not newest:
        return False
    try:
        root = snapshot.read_root(_decompress(newest[0][1]), state.limits)
        if root is None:
            return False
        parts = _Parts(store, no)
        await parts.fetch(root.parts())
        fresh, later = snapshot.restore(root, state.limits, parts)
        parts.release()
        await parts.fetch(later)
    except ValueError as error:
        # The records are still there.
        log.info("%s: run %s is folded from the start: %s", store.path, run.id, error)
        return False
    state.become(fresh)
    return True


class _Parts:
    """Parts that were fetched, by name and ordinal; one is decompressed when it is asked for.

    That may be long after :func:`load`, where nobody could go back to the records, so all are checked when fetched.
    """

    def __init__(self, store: Store, run: int) -> None:
        self._store = store
        self._run = run
        self._data: dict[PartKey, bytes] = {}

    def __call__(self, name: str, ord_: int) -> bytes:
        data = self._data[name, ord_]
        _, base = _HEADER.unpack_from(data)
        return _decompress(data[_HEADER.size :], self(name, base) if base else None)

    async def fetch(self, keys: Iterable[PartKey]) -> None:
        """Fetch parts, and those that they are deltas to.

        Raises:
            ValueError: one is missing, or is not as it was written.
        """
        wanted = [key for key in keys if key not in self._data]
        while wanted:
            rows = await self._store.reads.driver_all(_PARTS, (msgspec.json.encode(wanted).decode(), self._run))
            if len(rows) < len(wanted):
                raise ValueError(f"{len(wanted) - len(rows)} parts of a snapshot are missing")
            self._data |= {(name, ord_): data for ord_, name, data in rows}
            bases = {(name, _base_of(name, data)) for _, name, data in rows}
            wanted = [key for key in bases if key[1] and key not in self._data]

    def release(self) -> None:
        """Drop what has been read."""
        self._data.clear()
