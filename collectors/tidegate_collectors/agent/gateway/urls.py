"""Base URLs of engines and gateways. Standard library only: ``tidegate run`` loads it before every agent."""

from __future__ import annotations

import urllib.parse


class UrlError(ValueError):
    """It is no base URL; the message says what to write."""


def base_url(text: str) -> str:
    """The URL without a slash, and without ``/v1``, at its end.

    Raises:
        UrlError: no http or https URL with a host, or it holds a password, a query or odd letters.
    """
    shown = ascii(text[:120])
    if not text.isascii() or not text.isprintable() or " " in text:
        raise UrlError(f"{shown} is no URL; write for example http://127.0.0.1:8000")
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError:
        raise UrlError(f"{shown} is no URL; write for example http://127.0.0.1:8000") from None
    if "@" in parts.netloc:  # not shown: it holds a password
        raise UrlError("a user or password in the URL is not used; let the agent send its key")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UrlError(
            f"{shown} is no URL with http:// or https:// and a host; write for example http://127.0.0.1:8000"
        )
    if parts.query or parts.fragment:
        raise UrlError(f"{shown} has a query or a fragment; give the part before it")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def same_server(first: str, second: str) -> bool:
    """Whether two base URLs lead to the same server of this machine or elsewhere."""
    return _origin(first) == _origin(second)


def _origin(url: str) -> tuple[str, str, int | None]:
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ("", url, None)
    host = (parts.hostname or "").lower()
    return (parts.scheme, "127.0.0.1" if host in ("localhost", "::1") else host, port)
