"""The pages. Each fills its context and renders its template; the numbers come to them over the API."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tidegate._version import __version__
from tidegate.fold import views
from tidegate.web import contexts
from tidegate.web.appstate import AppState, app_state
from tidegate.web.definitions import DEFINITIONS
from tidegate.web.errors import error_response, phrase
from tidegate.web.lookup import find_session
from tidegate.web.security import COOKIE, is_cross_origin
from tidegate.web.templates import Templates

router: Final = APIRouter()

_ENTER: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
    '<title>Tidegate</title><a href="/">Continue to Tidegate</a></html>'
)


def tidegate_command() -> str:
    """Absolute path of the ``tidegate`` command of this installation."""
    beside = Path(sys.executable).with_name("tidegate")
    return str(beside) if beside.exists() else shutil.which("tidegate") or "tidegate"


class Pages:
    """Renders pages of one backend."""

    def __init__(self, state: AppState, templates: Templates) -> None:
        self._state = state
        self._templates = templates
        self._command = tidegate_command()

    def base(self, page: str, title: str, *, known: bool = True) -> dict[str, Any]:
        """The fields of :class:`~tidegate.web.contexts.BaseContext`; ``known`` false tells nothing of the run."""
        state = self._state
        opened = state.opened if known else None
        live = opened is not None and opened.live is not None
        return {
            "page": page,
            "title": title,
            "nav": contexts.navigation(page) if known else [],
            "run_id": opened.run.id if opened else "",
            "run_title": (opened.run.title or opened.run.id) if opened else "",
            "replay": state.replay,
            "version": __version__,
            "plotly_url": state.static.plotly_url,
            "command": self._command,
            "link_socket": str(state.settings.link_socket) if live else "",
        }

    def render(self, context: contexts.BaseContext) -> str:
        """The page of a context."""
        return self._templates.render(context)

    def login(self, message: str = "") -> str:
        """The login page."""
        base = self.base("login", "Log in", known=False)
        return self.render(contexts.LoginContext(**base, message=message, login_file=self._state.token.file))

    def error(self, status: int, message: str, hint: str = "") -> str:
        """The error page; it says nothing of the run, since errors are shown to everybody."""
        base = self.base("error", phrase(status), known=False)
        return self.render(
            contexts.ErrorContext(**base, status=status, heading=phrase(status), message=message, hint=hint)
        )


def _page(pages: Pages, context: contexts.BaseContext) -> Response:
    return HTMLResponse(pages.render(context))


@router.get("/")
async def live(request: Request) -> Response:
    """What happens now."""
    state = app_state(request.scope)
    base = state.pages.base("live", "Live")
    return _page(state.pages, contexts.LiveContext(**base, has_sessions=bool(state.state.sessions)))


@router.get("/sessions")
async def sessions(request: Request) -> Response:
    """All sessions, the newest first."""
    state = app_state(request.scope)
    await state.loaded()
    shown = [views.session_view(session) for session in state.state.sessions.values()]
    shown.sort(key=lambda view: view.started_us or 0, reverse=True)
    return _page(state.pages, contexts.SessionsContext(**state.pages.base("sessions", "Sessions"), sessions=shown))


@router.get("/sessions/{session_id}")
async def session(request: Request, session_id: str) -> Response:
    """One session."""
    state = app_state(request.scope)
    await state.loaded()
    view = views.session_view(find_session(state, session_id))
    return _page(
        state.pages,
        contexts.SessionContext(
            **state.pages.base("session", view.title or view.id),
            session=view,
            session_id=view.id,
            session_path=quote(view.id, safe=""),
        ),
    )


@router.get("/definitions")
async def definitions(request: Request) -> Response:
    """What each number means."""
    state = app_state(request.scope)
    base = state.pages.base("definitions", "Definitions")
    return _page(state.pages, contexts.DefinitionsContext(**base, definitions=DEFINITIONS))


@router.get("/status")
async def status(request: Request) -> Response:
    """How Tidegate itself is doing."""
    state = app_state(request.scope)
    base = state.pages.base("status", "Health")
    return _page(state.pages, contexts.StatusContext(**base, state_dir=str(state.settings.state_dir)))


# --- without a login ---------------------------------------------------------------------------------------------


@router.get("/health")
async def health() -> dict[str, str]:
    """Whether the server answers."""
    return {"status": "UP"}


@router.get("/static/{path:path}")
async def static(request: Request, path: str) -> Response:
    """A file of ours."""
    return await app_state(request.scope).static.respond(request, path)


@router.get("/login")
async def login(request: Request, token: str = "") -> Response:
    """Trade a one-time token for a session."""
    state = app_state(request.scope)
    # A browser that fetches the link ahead of a click must not use it up.
    if not token or "prefetch" in request.headers.get("sec-purpose", ""):
        return HTMLResponse(state.pages.login(), 401 if not token else 400)
    if not state.token.use(token):
        if state.sessions.check(request.cookies.get(COOKIE, "")):
            return RedirectResponse("/", 303)
        if state.failures.record():
            return error_response(
                request.scope, 429, "Too many wrong login URLs. Wait a minute.", headers={"retry-after": "60"}
            )
        return HTMLResponse(state.pages.login("This login URL is wrong or was used before."), 401)
    # A browser sends no Strict cookie along a redirect that another site's link began, so there our own page goes on.
    response: Response = HTMLResponse(_ENTER) if is_cross_origin(request.headers) else RedirectResponse("/", 303)
    # Without an age: how long a session lasts is the server's to say, which lengthens it with each use; a wall screen
    # must not be thrown out after a fixed time.
    response.set_cookie(COOKIE, state.sessions.create(), path="/", httponly=True, samesite="strict")
    return response
