"""vLLM's KV events off the wire. Pure.

A batch is a msgpack array ``[ts, events, data_parallel_rank]``. An event is a map with the key ``type`` (vLLM 0.24 and
later) or an array with its name first (0.22 and earlier); fields that a later version adds are passed over. Token ids
are skipped where they lie and never become objects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

MAX_BATCH_BYTES: Final = 64 << 20
MAX_SESSION_CHARS: Final = 128
_MAX_HASH_BYTES: Final = 64
_MAX_EVENTS: Final = 1 << 20

Hash: TypeAlias = int | bytes | str


class EventError(ValueError):
    """It is no batch of KV events; the message says what was found."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks are in the cache of ``medium`` now. ``session``: whose request stored them, not an owner."""

    hashes: tuple[Hash, ...]
    block_tokens: int
    medium: str
    group: int
    session: str | None


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks are gone from ``medium``."""

    hashes: tuple[Hash, ...]
    medium: str
    group: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole cache of the device is empty."""


Event: TypeAlias = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one step of the engine. ``ts_s``: its clock, Unix seconds. ``unknown``: events of no kind we know."""

    ts_s: float
    events: tuple[Event, ...]
    rank: int | None = None
    unknown: int = 0


class _MapStored(Struct, tag="BlockStored"):
    block_hashes: list[Any]
    block_size: int
    medium: str | None = None
    group_idx: int | None = None
    session_id: str | None = None


class _MapRemoved(Struct, tag="BlockRemoved"):
    block_hashes: list[Any]
    medium: str | None = None
    group_idx: int | None = None


class _MapCleared(Struct, tag="AllBlocksCleared"):
    pass


class _ArrayStored(Struct, tag="BlockStored", array_like=True):
    block_hashes: list[Any]
    parent_block_hash: Raw
    token_ids: Raw
    block_size: int
    lora_id: Raw = Raw()
    medium: str | None = None
    lora_name: Raw = Raw()
    extra_keys: Raw = Raw()
    group_idx: int | None = None


class _ArrayRemoved(Struct, tag="BlockRemoved", array_like=True):
    block_hashes: list[Any]
    medium: str | None = None
    group_idx: int | None = None


class _ArrayCleared(Struct, tag="AllBlocksCleared", array_like=True):
    pass


class _Batch(Struct, array_like=True):
    ts: float
    events: list[Raw]
    data_parallel_rank: int | None = None


_batch: Final = msgspec.msgpack.Decoder(_Batch)
_map: Final = msgspec.msgpack.Decoder(_MapStored | _MapRemoved | _MapCleared)
_array: Final = msgspec.msgpack.Decoder(_ArrayStored | _ArrayRemoved | _ArrayCleared)


def decode(payload: bytes) -> Batch:
    """Read one batch.

    Raises:
        EventError: it is none.
    """
    if len(payload) > MAX_BATCH_BYTES:
        raise EventError(f"a batch of {len(payload)} bytes; at most {MAX_BATCH_BYTES} are read")
    try:
        batch = _batch.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EventError(f"no batch of KV events: {_short(error)}") from None
    if not math.isfinite(batch.ts) or len(batch.events) > _MAX_EVENTS:
        raise EventError("no batch of KV events: its time or its length is out of bounds")
    found: list[Event] = []
    unknown = 0
    for raw in batch.events:
        event = _event(bytes(raw))
        if event is None:
            unknown += 1
        else:
            found.append(event)
    return Batch(batch.ts, tuple(found), batch.data_parallel_rank, unknown)


def _event(raw: bytes) -> Event | None:
    decoder: Any = _array if raw and _is_array(raw[0]) else _map
    try:
        event = decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return known(event)


def known(event: object) -> Event | None:
    """The event where its values are within bounds; None where they are not."""
    if isinstance(event, _MapCleared | _ArrayCleared):
        return Cleared()
    if not isinstance(event, _MapStored | _MapRemoved | _ArrayStored | _ArrayRemoved):
        return None
    hashes = tuple(event.block_hashes)
    if not all(_is_hash(item) for item in hashes):
        return None
    medium = (event.medium or "GPU")[:16]
    group = event.group_idx or 0
    if not 0 <= group < 1024:
        return None
    if isinstance(event, _MapRemoved | _ArrayRemoved):
        return Removed(hashes, medium, group)
    if not 0 < event.block_size <= 1 << 20:
        return None
    session = event.session_id if isinstance(event, _MapStored) else None
    return Stored(hashes, event.block_size, medium, group, session[:MAX_SESSION_CHARS] if session else None)


_json: Final = msgspec.json.Decoder(_MapStored | _MapRemoved | _MapCleared)


def decode_json(line: bytes) -> Event | None:
    """One event that somebody wrote down as a JSON object; None for one that is of no known kind.

    Raises:
        msgspec.MsgspecError: it is no JSON.
    """
    try:
        return known(_json.decode(line))
    except msgspec.ValidationError:
        return None


def sequence_of(frames: list[bytes]) -> tuple[int, bytes]:
    """Number and payload of a message: topic (or not), number in 8 bytes, payload. The number -1 ends a replay.

    Raises:
        EventError: it is no such message.
    """
    if len(frames) < 2 or len(frames) > 5 or len(frames[-2]) != 8:
        raise EventError(f"no message of KV events: {len(frames)} parts")
    return int.from_bytes(frames[-2], "big", signed=True), frames[-1]


def _is_hash(item: object) -> bool:
    if isinstance(item, bytes | str):
        return 0 < len(item) <= 2 * _MAX_HASH_BYTES  # a text has two digits a byte
    return isinstance(item, int) and not isinstance(item, bool)


def _is_array(first: int) -> bool:
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)


def _short(error: BaseException) -> str:
    return "".join(char if char.isprintable() else "?" for char in str(error)[:120])
