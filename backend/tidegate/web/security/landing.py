"""Where a login leads: to the page that was asked for before it.

The login URL comes out of a terminal, so the page waits in a cookie meanwhile. Every port of this machine may set
cookies for us: what comes back is only taken when it is a path of this server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

LANDING: Final = "tidegate_landing"
LANDING_PATH: Final = "/login"
"""The only path that the cookie is sent to."""

_MAX_AGE_S: Final = 600
_MAX_CHARS: Final = 1200  # three times as much when it is percent-encoded; a cookie has room for 4096
_OURS: Final = re.compile(r"/(?!/)[!-\[\]-~]*")  # a path, and no other server: neither // nor a backslash


def remembering(scope: Scope) -> Mapping[str, str]:
    """Headers that keep the page of this request for after the login; none when it is no page to come back to."""
    query = scope["query_string"].decode("latin-1")
    page = scope["path"] + (f"?{query}" if query else "")
    is_page = scope["method"] == "GET" and Headers(scope=scope).get("sec-fetch-dest", "document") == "document"
    if not is_page or page.startswith("/api/") or not _is_ours(page):
        return {}
    cookie = f"{LANDING}={quote(page, safe='')}; Path={LANDING_PATH}; Max-Age={_MAX_AGE_S}; HttpOnly; SameSite=Lax"
    return {"set-cookie": cookie}


def landing_of(request: HTTPConnection) -> str:
    """The page that was asked for before the login, as a path with its query; ``/`` when there was none."""
    page = unquote(request.cookies.get(LANDING, ""))
    return page if _is_ours(page) else "/"


def _is_ours(page: str) -> bool:
    return len(page) <= _MAX_CHARS and _OURS.fullmatch(page) is not None
