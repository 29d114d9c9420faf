"""Headers on their way through: what belongs to one connection only stays behind (RFC 9110, 7.6.1). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Final

from multidict import CIMultiDict

SESSION: Final = "X-Session-ID"
REQUEST_ID: Final = "X-Request-Id"

_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OURS: Final = frozenset({"host", "expect"})
"""Of a request: the first names us, the second our server has answered."""

Raw = Iterable[tuple[bytes, bytes]]


def upstream_headers(raw: Raw, *, session: str | None, turn: str | None) -> CIMultiDict[str]:
    """The headers of a request as the upstream gets them.

    Args:
        raw: as they came.
        session: put in place of the client's own ``X-Session-ID``; None leaves it.
        turn: put in place of the client's own ``X-Request-Id``; None leaves it.
    """
    dropped = _OURS
    if session is not None:
        dropped |= {SESSION.lower()}
    if turn is not None:
        dropped |= {REQUEST_ID.lower()}
    headers = CIMultiDict(_passed(raw, dropped))
    if session is not None:
        headers[SESSION] = session
    if turn is not None:
        headers[REQUEST_ID] = turn
    return headers


def client_headers(raw: Raw, *, turn: str | None, own_id: str | None) -> CIMultiDict[str]:
    """The headers of an answer as the client gets them.

    An upstream that echoes request ids echoes ours: a client that sent one of its own (``own_id``) gets that back.
    """
    headers = CIMultiDict(_passed(raw, frozenset()))
    if turn is not None and own_id is not None and headers.get(REQUEST_ID) == turn:
        headers[REQUEST_ID] = own_id
    return headers


def is_loopback_name(host: str) -> bool:
    """Whether a ``Host`` header names this machine: a page of a rebound DNS name cannot send such a one."""
    name = host.strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    name = name.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _passed(raw: Raw, dropped: frozenset[str]) -> Iterator[tuple[str, str]]:
    pairs = [(name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in raw]
    dropped = dropped | _HOP_BY_HOP
    for name, value in pairs:
        if name.lower() == "connection":
            dropped |= {part.strip().lower() for part in value.split(",")}
    return (pair for pair in pairs if pair[0].lower() not in dropped)
