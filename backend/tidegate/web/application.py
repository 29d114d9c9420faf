"""The ASGI application: routes inside, guards outside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.web import api, errors, kv_api, pages, playhead_api, retention_api, runs_api, series, stream
from tidegate.web.appstate import AppState
from tidegate.web.player_stream import Players
from tidegate.web.security import CrossOriginCheck, HostCheck, LoginRequired, SecurityHeaders
from tidegate.web.shown import KeepOpen, Positions

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


class RawPath:
    """Routes by the path as it was sent, percent-encoded, so that an id with a slash in it (``%2F``) stays one segment.

    The handlers decode their segments. It stands outermost: guards and routes must see the same path.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if scope["type"] == "http" and raw:
            scope = {**scope, "path": raw.partition(b"?")[0].decode("latin-1")}
        await self.app(scope, receive, send)


class _Application(FastAPI):
    """Puts our guards around everything, the handler of unexpected errors included: its answers need headers too."""

    tidegate_state: AppState

    def build_middleware_stack(self) -> ASGIApp:
        state = self.tidegate_state
        app: ASGIApp = KeepOpen(super().build_middleware_stack())
        app = LoginRequired(app, state.sessions)
        app = CrossOriginCheck(app)
        app = HostCheck(app, state.settings.allowed_hosts)
        return RawPath(SecurityHeaders(app))


def create_app(state: AppState, lifespan: Lifespan | None = None) -> FastAPI:
    """The application of a backend.

    Args:
        state: what the handlers work on; ``lifespan``, or the caller, opens and closes it.
    """
    kwargs: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None, "redirect_slashes": False}
    app = _Application(title="Tidegate", lifespan=lifespan, **kwargs)
    app.tidegate_state = state
    app.state.tidegate = state
    app.state.positions = Positions(state)
    app.state.players = Players()
    state.hub.on_close.append(app.state.players.close)
    app.state.marks = playhead_api.MarksCache()
    errors.install(app)
    # The last one answers whatever else there is below /api/.
    for module in (pages, stream, series, kv_api, playhead_api, runs_api, retention_api, api):
        app.include_router(module.router)
    return app
