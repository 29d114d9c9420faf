"""Charts of the store, at the width of the screen: always of the whole run, whatever the instant shown."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tidegate.analysis.series import MAX_PX
from tidegate.fold import State
from tidegate.store import EventRow
from tidegate.store.charts import host_chart, session_chart
from tidegate.web.lookup import end_us, losses, session_at, span, start_us
from tidegate.web.responses import json_response
from tidegate.web.shown import shown_of

router: Final = APIRouter(prefix="/api")

MAX_HOST_SESSIONS: Final = 200
"""Sessions stacked in one host chart, the newest."""

_HOST_SPAN_US: Final = 600_000_000

Instant = Annotated[int | None, Query(ge=0, le=1 << 53)]
Pixels = Annotated[int, Query(ge=50, le=MAX_PX)]


def chart_span(from_us: int | None, to_us: int | None, default: tuple[int, int]) -> tuple[int, int]:
    """The span of a chart. Raises HTTPException: 400, it ends before it begins."""
    begin = default[0] if from_us is None else from_us
    end = default[1] if to_us is None else to_us
    if end <= begin:
        if from_us is not None and to_us is not None:
            raise HTTPException(400, f"to_us: {to_us} is not after from_us {from_us}")
        end = begin + 1
    return begin, end


def _gaps(rows: list[EventRow]) -> list[tuple[int, int]]:
    return [(row.body["since_us"], row.t_us) for row in rows if isinstance(row.body.get("since_us"), int)]


@router.get("/sessions/{session_id}/series")
async def one_session(
    request: Request, session_id: str, from_us: Instant = None, to_us: Instant = None, px: Pixels = 1200
) -> Response:
    """Memory, run-queue wait and pressure of a session; by default from its start to its end."""
    shown = await shown_of(request)
    now, session = await session_at(shown, session_id)
    whole = span(now, session)
    begin, end = chart_span(from_us, to_us, (whole["start_us"], whole["end_us"] + 1))
    gaps = _gaps(await losses(shown.store.reads, shown.run.id, session))
    series = await session_chart(shown.store, shown.run, session.id, from_us=begin, to_us=end, px=px, gaps=gaps)
    return json_response(series.to_json())


@router.get("/host/series")
async def host(request: Request, from_us: Instant = None, to_us: Instant = None, px: Pixels = 1200) -> Response:
    """The host's memory and CPU, and the sessions' memory; by default the last ten minutes."""
    shown = await shown_of(request)
    now = shown.at_us
    begin, end = chart_span(from_us, to_us, (max(0, now - _HOST_SPAN_US), now + 1))
    state = await shown.whole()
    known = state.sessions.values()
    drawn = [session.id for session in known if start_us(session) < end and end_us(session) >= begin]
    answer = await host_chart(
        shown.store, shown.run, drawn[-MAX_HOST_SESSIONS:], from_us=begin, to_us=end, px=px, cpus=_cpus(state)
    )
    return json_response(answer)


def _cpus(state: State) -> int | None:
    return next((host.cpus for host in state.hosts.values() if host.cpus), None)
