"""How a part of a snapshot is encoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

Part = Callable[[str, int], bytes]
"""Gives the part of that name, as it was written with the snapshot of that ordinal. Raises ValueError: damaged."""

MSGPACK: Final = b"m"
JSON: Final = b"j"
_decoders: dict[Any, tuple[msgspec.msgpack.Decoder[Any], msgspec.json.Decoder[Any]]] = {}


class Beside:
    """Something that stands beside the struct that refers to it, in parts of its own; the struct holds an empty one."""

    __slots__ = ()


def _hook_out(value: Any) -> None:
    if not isinstance(value, Beside):
        raise NotImplementedError(f"a snapshot holds no {type(value).__name__}")


def _hook_in(kind: type, _value: Any) -> Beside:
    if not issubclass(kind, Beside):
        raise NotImplementedError(f"a snapshot holds no {kind.__name__}")
    return kind()


_msgpack: Final = msgspec.msgpack.Encoder(enc_hook=_hook_out)
_json: Final = msgspec.json.Encoder(enc_hook=_hook_out)


def pack(value: Any) -> bytes:
    """A part: MessagePack, or JSON where an integer is too large for it (no machine has such, but lines may)."""
    try:
        return pack_small(value)
    except OverflowError:
        return JSON + _json.encode(value)


def pack_small(value: Any) -> bytes:
    """A part in MessagePack. Raises OverflowError when an integer is too large for it."""
    return MSGPACK + _msgpack.encode(value)


def unpack(data: bytes, kind: Any) -> Any:
    """What :func:`pack` was given. Raises ``ValueError`` when it is something else."""
    decoders = _decoders.get(kind)
    if decoders is None:
        decoders = _decoders[kind] = (
            msgspec.msgpack.Decoder(kind, dec_hook=_hook_in),
            msgspec.json.Decoder(kind, dec_hook=_hook_in),
        )
    return decoders[data[:1] == JSON].decode(memoryview(data)[1:])
