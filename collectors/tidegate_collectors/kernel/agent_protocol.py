"""What an agent's launcher may say to the collector: a closed list of verbs with bounded, typed arguments.

One JSON object a line, one answer a line: ``{"ok":true,...}`` or ``{"ok":false,"error":"..."}``. Who speaks is never
taken from the text: the kernel names the peer.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from tidegate_collectors.records import Priority

MAX_LINE_BYTES: Final = 64 * 1024
"""A longer line ends the connection."""

_Text = Annotated[str, Meta(max_length=200)]
_Argument = Annotated[str, Meta(max_length=4096)]


class RegisterSession(Struct, kw_only=True, tag_field="verb", tag="register_session", forbid_unknown_fields=True):
    """The peer becomes the root of a session. ``runtime_depth``: generations of launched programs that stay runtime."""

    session: Annotated[str, Meta(max_length=64)]
    title: _Text = ""
    priority: Priority = "normal"
    agent: _Text = ""
    runtime_depth: Annotated[int, Meta(ge=0, le=16)] = 0
    budget_bytes: Annotated[int, Meta(gt=0, le=1 << 50)] | None = None


class RegisterCall(Struct, kw_only=True, tag_field="verb", tag="register_call", forbid_unknown_fields=True):
    """The peer, a process of a session, is about to become ``command``: an explicit call."""

    command: Annotated[list[_Argument], Meta(min_length=1, max_length=1024)]
    hint: _Text | None = None
    tool: _Text | None = None
    nested: bool = True
    """Whether a process of a call, too, begins one of its own. The shell shim says no: a shell in a call is no call."""


class Ended(Struct, kw_only=True, tag_field="verb", tag="ended", forbid_unknown_fields=True):
    """The peer launched a session and has waited for its root. Exactly one of the two numbers is given."""

    session: Annotated[str, Meta(max_length=64)]
    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, Meta(ge=1, le=127)] | None = None

    @property
    def status(self) -> int:
        """The same as a wait status."""
        return self.signal if self.signal is not None else (self.exit_code or 0) << 8


class Hook(Struct, kw_only=True, tag_field="verb", tag="hook", forbid_unknown_fields=True):
    """A hook of the agent tells of one of its tool calls; the peer is the hook, below the agent.

    ``before``, ``after`` and ``failed`` are about a tool; ``turn_over``: what was open is over; ``other``: nothing that
    matters, but this process is a hook and no call. ``command`` serves to find the call, ``detail`` (a file, an
    address) to name one that has no process; neither is recorded unless arguments are.
    """

    event: Literal["before", "after", "failed", "notification", "turn_over", "other"]
    agent_session: _Text = ""
    tool: _Text = ""
    id: _Text = ""
    input_digest: Annotated[str, Meta(max_length=64)] = ""
    command: Annotated[str, Meta(max_length=8192)] | None = None
    detail: Annotated[str, Meta(max_length=512)] | None = None
    about: Literal["permission", "waiting", "other"] = "other"
    result_chars: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None


Request = RegisterSession | RegisterCall | Ended | Hook

_decoder: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)


class RequestError(ValueError):
    """A line that is no request, with what was expected."""


def decode(line: bytes | bytearray) -> Request:
    """Read one request. Raises :class:`RequestError`."""
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise RequestError(f"not a request: {error}") from None
    except (UnicodeDecodeError, RecursionError):
        raise RequestError("not a request: not UTF-8, or nested too deep") from None


def encode(reply: dict[str, Any]) -> bytes:
    """One answer with its newline."""
    return msgspec.json.encode(reply) + b"\n"
