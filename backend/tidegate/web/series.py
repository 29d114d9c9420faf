"""Charts: samples of the store, brought to the width of the chart. The reckoning is done in a thread."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tidegate.analysis.columns import spans_of
from tidegate.analysis.series import MAX_PX, SessionInput, host_series, session_series
from tidegate.fold import views
from tidegate.fold.model import Session
from tidegate.store import EventRow
from tidegate.web.appstate import AppState, Opened, app_state
from tidegate.web.lookup import find_session, losses, now_us
from tidegate.web.responses import json_response

router: Final = APIRouter(prefix="/api")

MAX_HOST_SESSIONS: Final = 200
"""Sessions stacked in one host chart, the newest."""

_HOST_SPAN_US: Final = 600_000_000

Instant = Annotated[int | None, Query(ge=0, le=1 << 53)]
Pixels = Annotated[int, Query(ge=50, le=MAX_PX)]


def _span(from_us: int | None, to_us: int | None, default: tuple[int, int]) -> tuple[int, int]:
    begin = default[0] if from_us is None else from_us
    end = default[1] if to_us is None else to_us
    if end <= begin:
        if from_us is not None and to_us is not None:
            raise HTTPException(400, f"to_us: {to_us} is not after from_us {from_us}")
        end = begin + 1
    return begin, end


def _end_us(session: Session) -> int:
    return session.last_t_us if session.ended_us is None else session.ended_us


def _start_us(session: Session) -> int:
    return _end_us(session) if session.started_us is None else session.started_us


def _gaps(rows: list[EventRow]) -> list[tuple[int, int]]:
    return [(row.body["since_us"], row.t_us) for row in rows if isinstance(row.body.get("since_us"), int)]


async def _input(opened: Opened, session: Session, from_us: int, to_us: int, *, charts: bool) -> SessionInput:
    """Samples of a session; only memory unless ``charts``."""
    reads, run = opened.store.reads, opened.run.id
    mem = await reads.mem_points(run, session.id, from_us, to_us)
    more: dict[str, Any] = {}
    if charts:
        more["sched"] = await reads.sched_points(run, session.id, from_us, to_us)
        more["psi"] = await reads.psi_points(run, session.id, from_us, to_us)
        more["gaps"] = _gaps(await losses(opened, session))
    return SessionInput(
        mem=mem,
        calls=spans_of(views.call_views(session)),
        ended_us=session.ended_us,
        silent_is_gap=opened.run.source in ("live", "recorded"),
        **more,
    )


@router.get("/sessions/{session_id}/series")
async def one_session(
    request: Request, session_id: str, from_us: Instant = None, to_us: Instant = None, px: Pixels = 1200
) -> Response:
    """Memory, run-queue wait and pressure of a session; by default from its start to its end."""
    state = app_state(request.scope)
    opened = await state.loaded()
    session = find_session(state, session_id)
    begin, end = _span(from_us, to_us, (_start_us(session), _end_us(session) + 1))
    data = await _input(opened, session, begin, end, charts=True)
    series = await asyncio.to_thread(session_series, data, from_us=begin, to_us=end, px=px)
    return json_response(series.to_json())


@router.get("/host/series")
async def host(request: Request, from_us: Instant = None, to_us: Instant = None, px: Pixels = 1200) -> Response:
    """The host's memory and CPU, and the sessions' memory; by default the last ten minutes."""
    state = app_state(request.scope)
    opened = await state.loaded()
    now = now_us(state)
    begin, end = _span(from_us, to_us, (max(0, now - _HOST_SPAN_US), now + 1))
    columns = await opened.store.reads.host_points(opened.run.id, begin, end)
    known = state.state.sessions.values()
    shown = [session for session in known if _start_us(session) < end and _end_us(session) >= begin]
    inputs = {
        session.id: await _input(opened, session, begin, end, charts=False) for session in shown[-MAX_HOST_SESSIONS:]
    }
    answer = await asyncio.to_thread(host_series, columns, inputs, from_us=begin, to_us=end, px=px, cpus=_cpus(state))
    return json_response(answer)


def _cpus(state: AppState) -> int | None:
    return next((host.cpus for host in state.state.hosts.values() if host.cpus), None)
