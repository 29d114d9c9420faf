"""What is said on the link besides records: one JSON object a line, each with exactly one key.

::

    up    {"hello": {...}}                         first line of a connection, then records
          {"bye": true}                            last line of a sender that ends because it is done
    down  {"welcome": {"protocol","run","acked_seq"}}   the answer to hello
          {"ack": seq}                             everything of this src up to seq is committed
          {"refuse": {"reason"}}                   the backend closes the connection after it
          {"policy": {...}}                        a PolicyDocument to obey
          {"command": {...}}                       one of a closed list of verbs
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from tidegate_collectors.policies import PolicyDocument

PROTOCOL: Final = 1
"""Version of the link's own messages; both sides must speak the same."""

MAX_HELLO_BYTES: Final = 256 * 1024
"""A longer first line is no hello of ours."""

Text = Annotated[str, Meta(max_length=256)]


class Hello(Struct, kw_only=True):
    """Who calls: the first line of a connection."""

    protocol: int = PROTOCOL
    role: Annotated[str, Meta(min_length=1, max_length=32)]
    version: Text = ""
    src: Annotated[str, Meta(min_length=1, max_length=128)]
    host: Text = ""
    boot_id: Text = ""
    pid: int = 0
    capabilities: Annotated[list[dict[str, Any]], Meta(max_length=512)] = []


class Welcome(Struct, kw_only=True):
    """The backend's answer: the run that is being written, and the last ``seq`` of this src that is committed.

    ``acked_seq`` is -1 when nothing of this src is known.
    """

    protocol: int = PROTOCOL
    run: str
    acked_seq: int = -1


class Refuse(Struct, kw_only=True):
    """Why the backend does not want this connection."""

    reason: str


class Up(Struct, kw_only=True, omit_defaults=True):
    """One line to the backend that is no record; exactly one field is set."""

    hello: Hello | None = None
    bye: bool = False


class Down(Struct, kw_only=True, omit_defaults=True):
    """One line from the backend; exactly one field is set."""

    welcome: Welcome | None = None
    ack: int | None = None
    refuse: Refuse | None = None
    policy: PolicyDocument | None = None
    command: dict[str, Any] | None = None


class LinkError(Exception):
    """The peer said something that is not of this protocol, or is not who it should be."""


_encoder: Final = msgspec.json.Encoder()
_up: Final[msgspec.json.Decoder[Up]] = msgspec.json.Decoder(Up)
_down: Final[msgspec.json.Decoder[Down]] = msgspec.json.Decoder(Down)


def encode_line(message: Up | Down) -> bytes:
    """The message with its newline."""
    return _encoder.encode(message) + b"\n"


BYE: Final = encode_line(Up(bye=True)).rstrip()
"""A sender that went without it was killed, or its host was."""


def decode_hello(line: bytes) -> Hello:
    """Read the first line of a connection. Raises :class:`LinkError` with what was expected."""
    if len(line) > MAX_HELLO_BYTES:
        raise LinkError(f"the first line has {len(line)} bytes; a hello has at most {MAX_HELLO_BYTES}")
    try:
        hello = _up.decode(line).hello
    except msgspec.MsgspecError as error:
        raise LinkError(f"the first line is no hello: {error}") from None
    if hello is None:
        raise LinkError("the first line is no hello: the key 'hello' is missing")
    if hello.protocol != PROTOCOL:
        raise LinkError(f"link protocol {hello.protocol}; this side speaks {PROTOCOL}")
    return hello


def decode_down(line: bytes) -> Down:
    """Read one line from the backend. Raises :class:`LinkError`."""
    try:
        return _down.decode(line)
    except msgspec.MsgspecError as error:
        raise LinkError(f"not a message of the link: {error}") from None


def new_src(role: str) -> str:
    """A name for one start of one sender, for example ``kernel-3f2a91c0``."""
    return f"{role}-{secrets.token_hex(4)}"
