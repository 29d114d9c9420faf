"""Who may talk to the web process: login, sessions, Host and cross-origin checks, response headers.

All middlewares are plain ASGI (a ``BaseHTTPMiddleware`` would buffer and outlive streams). From the outside in:

1. :class:`~.headers.SecurityHeaders` puts the CSP and its companions on every response, errors included.
2. :class:`~.hosts.HostCheck` refuses names that are not ours (DNS rebinding).
3. :class:`~.origin.CrossOriginCheck` refuses requests that another site's page started.
4. :class:`~.auth.LoginRequired` refuses whoever has no session.
"""

from __future__ import annotations

from tidegate.web.security.auth import COOKIE, LoginRequired, is_public
from tidegate.web.security.headers import CSP, SecurityHeaders
from tidegate.web.security.hosts import HostCheck
from tidegate.web.security.landing import LANDING, LANDING_PATH, landing_of
from tidegate.web.security.origin import CrossOriginCheck, is_cross_origin
from tidegate.web.security.sessions import SessionStore
from tidegate.web.security.tokens import FailureLimit, LoginToken

__all__ = [
    "COOKIE",
    "CSP",
    "LANDING",
    "LANDING_PATH",
    "CrossOriginCheck",
    "FailureLimit",
    "HostCheck",
    "LoginRequired",
    "LoginToken",
    "SecurityHeaders",
    "SessionStore",
    "is_cross_origin",
    "is_public",
    "landing_of",
]
