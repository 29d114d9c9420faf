"""The login check: all but a few paths need a session cookie."""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.web.errors import KNOWN, refuse
from tidegate.web.security.landing import remembering
from tidegate.web.security.sessions import SessionStore

COOKIE: Final = "tidegate_session"

_PUBLIC: Final = frozenset({"/health", "/login"})


def is_public(path: str) -> bool:
    """Paths that are served without a login: they hold nothing of a run."""
    return path in _PUBLIC or path.startswith("/static/")


class LoginRequired:
    """Answers 401 to whoever has no session: JSON below ``/api/``, the login page elsewhere."""

    def __init__(self, app: ASGIApp, sessions: SessionStore) -> None:
        self.app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_public(scope["path"]):
            key = HTTPConnection(scope).cookies.get(COOKIE, "")
            if not key or not self._sessions.check(key):
                message = "Log in first: open the login URL that `tidegate serve` printed."
                headers = remembering(scope)
                if headers:
                    message += " It then brings you to the page that you asked for."
                await refuse(scope, receive, send, 401, message, headers)
                return
            scope[KNOWN] = True
        await self.app(scope, receive, send)
