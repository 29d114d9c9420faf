"""The pages. Each fills its context and renders its template; the numbers come to them over the API."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse, Response

import tidegate_collectors
from tidegate._version import __version__
from tidegate.fold import views
from tidegate.web import contexts
from tidegate.web.appstate import AppState, app_state
from tidegate.web.definitions import DEFINITIONS
from tidegate.web.errors import error_response, phrase
from tidegate.web.lookup import session_at
from tidegate.web.security import COOKIE, LANDING, LANDING_PATH, is_cross_origin, landing_of
from tidegate.web.shown import Shown, shown_of, wanted
from tidegate.web.templates import Templates

router: Final = APIRouter()

_ENTER: Final = Markup(
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={page}">'
    '<title>Tidegate</title><a href="{page}">Continue to Tidegate</a></html>'
)


def tidegate_command() -> str:
    """Absolute path of the ``tidegate`` command of this installation."""
    beside = Path(sys.executable).with_name("tidegate")
    return str(beside) if beside.exists() else shutil.which("tidegate") or "tidegate"


def _collectors() -> str:
    """What pip installs for the plugin: our directory where this is a checkout, else the package's name."""
    checkout = Path(tidegate_collectors.__file__).parents[1]
    return str(checkout) if (checkout / "pyproject.toml").exists() else "tidegate-collectors"


class Pages:
    """Renders pages of one backend."""

    def __init__(self, state: AppState, templates: Templates) -> None:
        self._state = state
        self._templates = templates
        self._command = tidegate_command()

    def base(self, page: str, title: str, shown: Shown | None = None, *, known: bool = True) -> dict[str, Any]:
        """The fields of :class:`~tidegate.web.contexts.BaseContext`.

        Args:
            page: the page's key.
            title: the page's title.
            shown: what is shown; by default the run of the backend, which need not be read yet.
            known: whether the reader is logged in; to others nothing is told of the run.
        """
        state = self._state
        opened = state.opened if known else None
        live = opened is not None and opened.live is not None
        run = shown.run if shown is not None and known else opened.run if opened else None
        query = shown.query if shown is not None and known else ""
        return {
            "page": page,
            "title": title,
            "nav": contexts.navigation(page, query) if known else [],
            "run_id": run.id if run else "",
            "run_title": (run.title or run.id) if run else "",
            "run_kind": run.source if run else "",
            "replay": state.replay if shown is None else not shown.writing,
            "following": not state.replay if shown is None else shown.live,
            "at_us": None if shown is None else shown.given_at_us,
            "query": query,
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

    def error(
        self, status: int, message: str, hint: str = "", *, shown: Shown | None = None, known: bool = False
    ) -> str:
        """The error page. Errors are shown to everybody: only who is ``known`` gets the navigation and the run."""
        base = self.base("error", phrase(status), shown, known=known)
        return self.render(
            contexts.ErrorContext(**base, status=status, heading=phrase(status), message=message, hint=hint)
        )


def _page(pages: Pages, context: contexts.BaseContext) -> Response:
    return HTMLResponse(pages.render(context))


@router.get("/")
async def live(request: Request) -> Response:
    """What happens now, or happened at the instant that is shown."""
    app = app_state(request.scope)
    shown = await _shown_or_none(request)
    state = app.state if shown is None else shown.state
    base = app.pages.base("live", "Live", shown)
    return _page(app.pages, contexts.LiveContext(**base, has_sessions=bool(state.sessions)))


@router.get("/sessions")
async def sessions(request: Request) -> Response:
    """All sessions, the newest first."""
    pages = app_state(request.scope).pages
    shown = await shown_of(request)
    listed = [views.session_view(session) for session in shown.state.sessions.values()]
    listed.sort(key=lambda view: view.started_us or 0, reverse=True)
    return _page(pages, contexts.SessionsContext(**pages.base("sessions", "Sessions", shown), sessions=listed))


@router.get("/sessions/{session_id}")
async def session(request: Request, session_id: str) -> Response:
    """One session; also of an instant before it began, so that one can go back beyond its start and return."""
    pages = app_state(request.scope).pages
    shown = await shown_of(request)
    now, last = await session_at(shown, session_id)
    return _page(
        pages,
        contexts.SessionContext(
            **pages.base("session", last.title or last.id, shown),
            session=None if now is None else views.session_view(now),
            session_id=last.id,
            session_path=quote(last.id, safe=""),
        ),
    )


@router.get("/kv")
async def kv(request: Request) -> Response:
    """The KV cache of inference engines."""
    pages = app_state(request.scope).pages
    base = pages.base("kv", "KV cache", await _shown_or_none(request))
    return _page(pages, contexts.KvContext(**base, collectors_dir=_collectors()))


@router.get("/runs")
async def runs(request: Request) -> Response:
    """All runs: open, import, export, rename and delete them."""
    pages = app_state(request.scope).pages
    return _page(pages, contexts.RunsContext(**pages.base("runs", "Runs", await _shown_or_none(request))))


@router.get("/definitions")
async def definitions(request: Request) -> Response:
    """What each number means."""
    pages = app_state(request.scope).pages
    base = pages.base("definitions", "Definitions", await _shown_or_none(request))
    return _page(pages, contexts.DefinitionsContext(**base, definitions=DEFINITIONS))


@router.get("/status")
async def status(request: Request) -> Response:
    """How Tidegate itself is doing."""
    app = app_state(request.scope)
    base = app.pages.base("status", "Health", await _shown_or_none(request))
    return _page(app.pages, contexts.StatusContext(**base, state_dir=str(app.settings.state_dir)))


async def _shown_or_none(request: Request) -> Shown | None:
    """What a page is about that shows nothing of it but its name; it is there before the backend's run is."""
    return await shown_of(request) if wanted(request) != (None, None) else None


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
    """Trade a one-time token for a session; it leads to the page that was asked for before."""
    page = landing_of(request)
    state = app_state(request.scope)
    # A browser that fetches the link ahead of a click must not use it up.
    if not token or "prefetch" in request.headers.get("sec-purpose", ""):
        return HTMLResponse(state.pages.login(), 401 if not token else 400)
    if not state.token.use(token):
        if state.sessions.check(request.cookies.get(COOKIE, "")):
            return RedirectResponse(page, 303)
        if state.failures.record():
            return error_response(
                request.scope, 429, "Too many wrong login URLs. Wait a minute.", headers={"retry-after": "60"}
            )
        return HTMLResponse(state.pages.login("This login URL is wrong or was used before."), 401)
    # A browser sends no Strict cookie along a redirect that another site's link began, so there our own page goes on.
    is_elsewhere = is_cross_origin(request.headers)
    response: Response = HTMLResponse(_ENTER.format(page=page)) if is_elsewhere else RedirectResponse(page, 303)
    # Without an age: how long a session lasts is the server's to say, which lengthens it with each use; a wall screen
    # must not be thrown out after a fixed time.
    response.set_cookie(COOKIE, state.sessions.create(), path="/", httponly=True, samesite="strict")
    if LANDING in request.cookies:
        response.delete_cookie(LANDING, path=LANDING_PATH, httponly=True, samesite="lax")
    return response
