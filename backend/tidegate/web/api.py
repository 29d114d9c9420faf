"""The JSON API. Every answer is made from the folded state or from short reads of the store; ids are only compared."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from tidegate._version import __version__
from tidegate.exporters.jsonl import export_lines
from tidegate.fold import EVENT_TYPE_NAMES, EventView, views
from tidegate.fold.limits import cut_deep, short_id
from tidegate.store import EventRow
from tidegate.web.appstate import app_state
from tidegate.web.definitions import DEFINITIONS
from tidegate.web.lookup import find_call, find_session, losses, now_us, run_view
from tidegate.web.responses import json_response

router: Final = APIRouter(prefix="/api")

MAX_EVENTS: Final = 1000
"""Events of one session in one answer, the newest."""

_SESSION_EVENTS: Final = EVENT_TYPE_NAMES - {"call.start", "call.end", "loss", "run.meta", "run.end"}
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


@router.get("/state")
async def whole_state(request: Request) -> Response:
    """Everything that the Live page shows."""
    state = app_state(request.scope)
    opened = await state.loaded()
    state.hub.wake()
    view = views.state_view(
        state.state, now_us=now_us(state), sources=state.sources(), replay=state.replay, run=run_view(state, opened)
    )
    return json_response(view)


@router.get("/sessions/{session_id}")
async def one_session(request: Request, session_id: str) -> Response:
    """A session with its calls, its events and the processes of its runtime."""
    state = app_state(request.scope)
    opened = await state.loaded()
    session = find_session(state, session_id)
    reads, run = opened.store.reads, opened.run.id
    rows = await reads.events(run, session=session.id, types=_SESSION_EVENTS, limit=MAX_EVENTS)
    rows += await losses(opened, session)
    rows.sort(key=lambda row: row.ord)
    return json_response(
        {
            "session": views.session_view(session),
            "calls": views.call_views(session),
            "events": [_event(row) for row in rows],
            "processes": views.processes_view(session.processes),
        }
    )


@router.get("/sessions/{session_id}/calls/{call_id}")
async def one_call(request: Request, session_id: str, call_id: str) -> Response:
    """A call with its processes and the calls around it."""
    state = app_state(request.scope)
    await state.loaded()
    session = find_session(state, session_id)
    call = find_call(session, call_id)
    return json_response(
        {
            "call": views.call_view(call),
            "processes": views.processes_view(call.processes),
            "neighbours": views.neighbours(session, call),
        }
    )


@router.get("/capabilities")
async def capabilities(request: Request) -> Response:
    """What the collectors can do here, each found by trying: of the connected ones, else the last word of the run."""
    state = app_state(request.scope)
    opened = await state.loaded()
    found: list[dict[str, Any]] = opened.live.link.capabilities() if opened.live is not None else []
    if not found:
        found = [{**msgspec.structs.asdict(view), "src": ""} for view in views.capability_views(state.state)]
    return json_response({"capabilities": found})


@router.get("/status")
async def status(request: Request) -> Response:
    """How Tidegate itself is doing. Figures of ingest and link are null in a replay, which has neither."""
    state = app_state(request.scope)
    opened = await state.loaded()
    live = opened.live
    sizes = await opened.store.reads.sizes()
    return json_response(
        {
            "run": run_view(state, opened),
            "version": __version__,
            "started_us": state.started_us,
            "now_us": now_us(state),
            "replay": state.replay,
            "store": sizes,
            "ingest": {**live.ingest.status(), "waiting": state.feed.waiting} if live is not None else None,
            "link": {"path": str(live.link.path), "listening": live.link.listening} if live is not None else None,
            "sources": state.sources(),
            "stream": state.hub.status(),
            "lost": views.lost_view(state.state),
            "hosts": [views.host_view(host) for host in state.state.hosts.values()],
            "unknown_types": state.state.unknown_types,
            "process": state.cost.read(),
            "report": opened.report,
        }
    )


@router.get("/definitions")
async def definitions() -> Response:
    """What each number means."""
    return json_response({"definitions": list(DEFINITIONS)})


@router.get("/export")
async def export(request: Request, session: Annotated[str | None, Query(max_length=4096)] = None) -> Response:
    """The run, or one session of it, as JSON lines to download."""
    state = app_state(request.scope)
    opened = await state.loaded()
    chunks = export_lines(opened.store.reads, opened.run.id, session=session or None)
    try:
        # The first chunk is read here, so that a session that does not exist is a 404 and not a broken download.
        first = await anext(chunks)
    except StopAsyncIteration:
        first = b""
    name = "-".join(part for part in ("tidegate", opened.run.id, session) if part)
    headers = {
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="{safe_name(name)}.jsonl"',
    }
    return StreamingResponse(_chain(first, chunks), media_type="application/x-ndjson", headers=headers)


@router.get("/{path:path}")
async def unknown() -> Response:
    """Whatever else: an error in the API's own shape."""
    raise HTTPException(404, "There is no such resource.")


def safe_name(text: str) -> str:
    """Text as a file name: letters, digits, dot, dash and underscore, at most 100, never hidden."""
    return _UNSAFE.sub("_", text)[:100].strip("._") or "tidegate"


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _event(row: EventRow) -> EventView:
    body = {name: cut_deep(value) for name, value in row.body.items()}
    session, call = (None if value is None else short_id(value) for value in (row.session, row.call))
    return EventView(ord=row.ord, t_us=row.t_us, type=row.type, session=session, call=call, body=body)
