"""The Host allowlist: the defence against DNS rebinding.

A page of another site can point its own name at 127.0.0.1 and then talk to us as "same origin". It cannot choose the
Host header, though: that header carries its own name, so only names that we know are served.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.web.errors import refuse

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")

_HOST: Final = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE)


def split_host(value: str) -> tuple[str, int | None] | None:
    """Name (lower case) and port of a Host header or setting; none when it is malformed."""
    match = _HOST.fullmatch(value)
    if match is None:
        return None
    port = int(match["port"]) if match["port"] else None
    if port is not None and port > 65535:
        return None
    return match["name"].lower(), port


class HostCheck:
    """Answers 400 to a missing or malformed Host and 421 to a name that is not allowed.

    Args:
        allowed: further names as the operator wrote them. ``name:port`` admits that port only, ``name`` any port:
            through a forwarded port (``ssh -L 8000:localhost:6456``) browsers send the port of the other end, and a
            rebinding attack is recognised by its name.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self.app = app
        self._allowed: set[tuple[str, int | None]] = {(name, None) for name in LOOPBACK_NAMES}
        for entry in allowed:
            parsed = split_host(entry)
            if parsed is None:
                raise ValueError(f"allowed host {entry!r} is not a name or name:port")
            self._allowed.add(parsed)

    def admits(self, value: str) -> bool:
        """Whether a well-formed Host header names us."""
        parsed = split_host(value)
        return parsed is not None and (parsed in self._allowed or (parsed[0], None) in self._allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        values = [value for name, value in scope["headers"] if name == b"host"]
        if len(values) != 1 or split_host(values[0].decode("latin-1")) is None:
            await refuse(scope, receive, send, 400, "The request has no valid Host header.")
        elif not self.admits(values[0].decode("latin-1")):
            await refuse(
                scope,
                receive,
                send,
                421,
                "This host name is not served here: use 127.0.0.1 or localhost, or set TIDEGATE_ALLOWED_HOSTS.",
            )
        else:
            await self.app(scope, receive, send)
