"""The policy document: what travels down the link and one plane obeys.

A document is typed and bounded here, at the place where it is read, because the web process that sends it is never
trusted with the rights of the collector that obeys it. What the ``params`` of a policy mean, and their bounds, is
checked a second time by the collector that implements it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

MAX_DOCUMENT_BYTES: Final = 64 * 1024
"""A longer document is refused."""

MAX_LEASE_S: Final = 24 * 3600.0
"""A policy that nobody renews for a day is undone."""

Scalar = bool | int | float | Annotated[str, Meta(max_length=256)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")]
Key = Annotated[str, Meta(min_length=1, max_length=64)]
Value = Scalar | Annotated[list[Scalar], Meta(max_length=256)] | None


class Scope(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Whom a policy concerns; an empty scope is everybody. All given conditions must hold."""

    sessions: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=1024)] = []
    priorities: Annotated[list[Literal["high", "normal", "low"]], Meta(max_length=3)] = []
    categories: Annotated[list[Key], Meta(max_length=32)] = []


class PolicyDocument(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One policy in one version.

    Fields that this version does not know are refused rather than ignored: a collector must not obey half a policy.
    """

    id: Name
    plane: Literal["kernel", "engine", "context"]
    version: Annotated[int, Meta(ge=1, le=2**53)]
    mode: Literal["off", "observe", "enforce"]
    scope: Scope = msgspec.field(default_factory=Scope)
    params: Annotated[dict[Key, Value], Meta(max_length=64)] = {}
    reason: Annotated[str, Meta(max_length=1024)] = ""
    lease_s: Annotated[float, Meta(gt=0, le=MAX_LEASE_S)] | None = None
    """Seconds after which the collector undoes the policy unless it is renewed; none: until changed."""


class PolicyError(ValueError):
    """A document that does not fit, with the field that is wrong."""


_decoder: Final[msgspec.json.Decoder[PolicyDocument]] = msgspec.json.Decoder(PolicyDocument)
_encoder: Final = msgspec.json.Encoder()


def encode(document: PolicyDocument) -> bytes:
    """The document as one line of JSON, without the newline."""
    return _encoder.encode(document)


def decode(data: bytes) -> PolicyDocument:
    """Read a document. Raises :class:`PolicyError` when it is too long, no JSON or out of its bounds."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise PolicyError(f"a policy of {len(data)} bytes; at most {MAX_DOCUMENT_BYTES} are read")
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise PolicyError(f"not a policy document: {error}") from None
