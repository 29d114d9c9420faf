"""The JSON API. Every answer is made from the folded state or from short reads of the store; ids are only compared."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tidegate._version import __version__
from tidegate.fold import EVENT_TYPE_NAMES, EventView, views
from tidegate.fold.model import Session
from tidegate.fold.neighbours import neighbours
from tidegate.web.appstate import AppState, app_state
from tidegate.web.definitions import DEFINITIONS
from tidegate.web.lookup import (
    find_call,
    losses,
    recorded_sources,
    run_view,
    session_at,
    sources_of,
    span,
    stored_event,
)
from tidegate.web.responses import json_response
from tidegate.web.shown import Shown, shown_of

router: Final = APIRouter(prefix="/api")

MAX_EVENTS: Final = 1000
"""Events of one session in one answer, the newest."""

SESSION_EVENTS: Final = EVENT_TYPE_NAMES - {"call.start", "call.end", "kv.decision", "loss", "run.meta", "run.end"}
"""Decisions have an answer of their own, and would push older bursts out of this one."""


@router.get("/state")
async def whole_state(request: Request) -> Response:
    """Everything that the Live page shows."""
    app = app_state(request.scope)
    shown = await shown_of(request)
    if shown.live:
        app.hub.wake()
    view = views.state_view(
        shown.state, now_us=shown.at_us, sources=sources_of(app, shown), replay=not shown.writing, run=run_view(shown)
    )
    return json_response({**view, "playhead": shown.playhead()})


@router.get("/sessions/{session_id}")
async def one_session(request: Request, session_id: str) -> Response:
    """A session with its calls, its events and the processes of its runtime; ``session`` is null before it began."""
    shown = await shown_of(request)
    now, last = await session_at(shown, session_id)
    return json_response(
        {
            "session": None if now is None else views.session_view(now),
            "calls": [] if now is None else views.call_views(now),
            "events": [] if now is None else await _events(shown, now),
            "processes": [] if now is None else views.processes_view(now.processes),
            "span": span(now, last),
            "playhead": shown.playhead(),
        }
    )


async def _events(shown: Shown, session: Session) -> list[EventView]:
    reads, run = shown.store.reads, shown.run.id
    rows = await reads.events(run, session=session.id, types=SESSION_EVENTS, limit=MAX_EVENTS, before_ord=shown.ord + 1)
    rows += await losses(reads, run, session, to_ord=shown.ord)
    rows.sort(key=lambda row: row.ord)
    return [stored_event(row) for row in rows]


@router.get("/sessions/{session_id}/calls/{call_id}")
async def one_call(request: Request, session_id: str, call_id: str) -> Response:
    """A call with its processes and the calls around it."""
    shown = await shown_of(request)
    session, last = await session_at(shown, session_id)
    call = find_call(session, call_id, last)
    return json_response(
        {
            "call": views.call_view(call),
            "processes": views.processes_view(call.processes),
            "neighbours": neighbours(session or last, call),
        }
    )


@router.get("/capabilities")
async def capabilities(request: Request) -> Response:
    """What the collectors can do here, each found by trying: of the connected ones, else the last word of the run."""
    shown = await shown_of(request)
    opened = await app_state(request.scope).loaded()
    found: list[dict[str, Any]] = []
    if shown.live and opened.live is not None:
        found = opened.live.link.capabilities()
    if not found:
        found = [{**msgspec.structs.asdict(view), "src": ""} for view in views.capability_views(shown.state)]
    return json_response({"capabilities": found})


@router.get("/status")
async def status(request: Request) -> Response:
    """How Tidegate itself is doing, and what is known of the run that is shown.

    Figures of ingest and link are null in a replay, which has neither. Losses, hosts and unknown types are those of the
    run that is shown; all else is of this backend, whichever run is shown.
    """
    app = app_state(request.scope)
    shown = await shown_of(request)
    opened = await app.loaded()
    live = opened.live
    sizes = await opened.store.reads.sizes()
    return json_response(
        {
            "run": run_view(shown),
            "playhead": shown.playhead(),
            "version": __version__,
            "started_us": app.started_us,
            "now_us": time.time_ns() // 1000 if live is not None else shown.at_us,
            "replay": app.replay,
            "store": sizes,
            "ingest": {**live.ingest.status(), "waiting": app.feed.waiting} if live is not None else None,
            "link": {"path": str(live.link.path), "listening": live.link.listening} if live is not None else None,
            "sources": app.sources() if live is not None else recorded_sources(shown.state),
            "stream": {**app.hub.status(), "players": len(request.app.state.players)},
            "lost": views.lost_view(shown.state),
            "hosts": [views.host_view(host) for host in shown.state.hosts.values()],
            "unknown_types": shown.state.unknown_types,
            "process": app.cost.read(),
            "report": opened.report if shown.default else await _report(app, shown),
        }
    )


async def _report(app: AppState, shown: Shown) -> dict[str, Any] | None:
    """What was found wrong when the run was imported."""
    library, _ = app.runs()
    return await library.report(await library.open(shown.run.id))


@router.get("/definitions")
async def definitions() -> Response:
    """What each number means."""
    return json_response({"definitions": list(DEFINITIONS)})


@router.get("/{path:path}")
async def unknown() -> Response:
    """Whatever else: an error in the API's own shape."""
    raise HTTPException(404, "There is no such resource.")
