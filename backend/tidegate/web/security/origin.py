"""Cross-origin protection: no other site's page may read from or write to us through the operator's browser.

The rule is that of Go 1.25's ``http.CrossOriginProtection``, made stricter for reads: ``Sec-Fetch-Site`` decides where
the browser sends it, ``Origin`` against ``Host`` where it does not; a request with neither comes from no browser (curl)
and is left to the login check. ``same-site`` is refused as well: for a loopback address every port of the machine is
the same site.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.web.errors import refuse

_SAFE: Final = frozenset({"GET", "HEAD"})


def is_cross_origin(headers: Headers) -> bool:
    """Whether a page of another origin started this request."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"same-origin", "none"}
    origin = headers.get("origin")
    if origin is None:
        return False
    # "null" (a sandboxed frame, a data: URL) has no netloc and is refused with the rest.
    return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()


def is_link(scope: Scope, headers: Headers) -> bool:
    """A link that the operator followed from elsewhere: a top-level navigation to a page, which the linking site
    cannot read. The API and the stream are no pages."""
    return (
        scope["method"] in _SAFE
        and not scope["path"].startswith("/api/")
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


class CrossOriginCheck:
    """Answers 403 to requests that another origin's page started, links to pages excepted."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if is_cross_origin(headers) and not is_link(scope, headers):
                await refuse(scope, receive, send, 403, "Requests from pages of another origin are refused.")
                return
        await self.app(scope, receive, send)
