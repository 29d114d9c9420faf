"""Every refusal and error in one shape: JSON below ``/api/``, a page elsewhere.

The JSON is ``{"ok": false, "error": "...", "status": 404}``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from markupsafe import escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from tidegate.errors import BadInputError, NotFoundError, TidegateError, UnavailableError, UsageError
from tidegate.web.appstate import app_state
from tidegate.web.responses import json_response

logger: Final = logging.getLogger(__name__)

_STATUS: Final[dict[type[TidegateError], int]] = {
    NotFoundError: 404,
    UsageError: 400,
    BadInputError: 400,
    UnavailableError: 503,
}


KNOWN: Final = "tidegate.known"
"""Key of a request's scope that is set when the reader is logged in."""

SHOWN: Final = "tidegate.shown"
"""Key of a request's scope that holds what it is about, once that is found."""


class Refusal(HTTPException):
    """An error that says what to do next as well.

    Args:
        status: HTTP status.
        message: what was wrong.
        hint: what to do.
    """

    def __init__(self, status: int, message: str, hint: str) -> None:
        super().__init__(status, message)
        self.hint = hint


def status_of(error: TidegateError) -> int:
    """The HTTP status that belongs to one of our errors."""
    return next((status for cls, status in _STATUS.items() if isinstance(error, cls)), 500)


def error_response(
    scope: Scope,
    status: int,
    message: str,
    *,
    hint: str = "",
    known: bool = False,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer for an error, in the form that fits the path; ``known``: the reader is logged in."""
    if scope["path"].startswith("/api/"):
        body = {"ok": False, "error": f"{message} {hint}".rstrip(), "status": status}
        return json_response(body, status, headers=headers)
    try:
        pages = app_state(scope).pages
        html = (
            pages.login(message)
            if status == 401
            else pages.error(status, message, hint, shown=scope.get(SHOWN), known=known)
        )
    except Exception:
        # An error page that fails must not hide the error it was for.
        logger.exception("the page for status %d cannot be rendered", status)
        html = f"<!doctype html><title>{status}</title><h1>{status} {phrase(status)}</h1><p>{escape(message)}</p>"
    return HTMLResponse(html, status, headers=dict(headers or {}))


async def refuse(
    scope: Scope, receive: Receive, send: Send, status: int, message: str, headers: Mapping[str, str] | None = None
) -> None:
    """Answer a request with an error from within a middleware."""
    await error_response(scope, status, message, headers=headers)(scope, receive, send)


def phrase(status: int) -> str:
    """The short name of a status, for example ``Not Found``."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _validation_message(error: RequestValidationError) -> str:
    parts = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"][1:]) or str(item["loc"][0])
        parts.append(f"{place}: {item['msg']}")
    return "; ".join(parts)


def _is_known(request: Request) -> bool:
    return request.scope.get(KNOWN) is True


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - the handler is registered for this type
    detail = str(error.detail)
    message = "There is no such page." if error.status_code == 404 and detail == "Not Found" else detail
    return error_response(
        request.scope,
        error.status_code,
        message,
        hint=error.hint if isinstance(error, Refusal) else "",
        known=_is_known(request),
        headers=error.headers,
    )


async def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    return error_response(request.scope, 400, _validation_message(error), known=_is_known(request))


async def _on_tidegate(request: Request, error: Exception) -> Response:
    assert isinstance(error, TidegateError)  # noqa: S101
    return error_response(request.scope, status_of(error), str(error), known=_is_known(request))


async def _on_defect(request: Request, _error: Exception) -> Response:
    # Starlette logs it with its traceback after this; the page says nothing of the inside.
    return error_response(
        request.scope, 500, "A defect in Tidegate; its log has the details.", known=_is_known(request)
    )


def install(app: FastAPI) -> None:
    """Register the handlers."""
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(TidegateError, _on_tidegate)
    app.add_exception_handler(Exception, _on_defect)
