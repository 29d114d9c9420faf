"""Finding what a request names. Ids are only compared with what is known, never built into anything."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import unquote

from starlette.exceptions import HTTPException

from tidegate.fold.limits import short_id
from tidegate.fold.model import Call, Session
from tidegate.store import EventRow
from tidegate.web.appstate import AppState, Opened

MAX_LOSSES: Final = 1000


def now_us(state: AppState) -> int:
    """The pages' now: in a replay the time of the last record."""
    return state.state.last_t_us if state.replay else time.time_ns() // 1000


def run_view(state: AppState, opened: Opened) -> dict[str, Any]:
    """The run as the store knows it."""
    run = opened.run
    return {
        "id": run.id,
        "title": run.title or state.state.run.title or run.id,
        "source": run.source,
        "started_us": run.started_us,
        "ended_us": run.ended_us,
        "replay": state.replay,
    }


def find_session(state: AppState, segment: str) -> Session:
    """The session of a path segment. Raises a 404."""
    found = state.state.sessions.get(short_id(unquote(segment)))
    if found is None:
        raise HTTPException(404, "There is no such session in this run.")
    return found


def find_call(session: Session, segment: str) -> Call:
    """The call of a path segment. Raises a 404."""
    found = session.calls.get(short_id(unquote(segment)))
    if found is None:
        raise HTTPException(404, "There is no such call in this session.")
    return found


async def losses(opened: Opened, session: Session) -> list[EventRow]:
    """The losses that name a session, or none and fall into its time; the newest :data:`MAX_LOSSES` are looked at."""
    rows = await opened.store.reads.events(opened.run.id, types=["loss"], limit=MAX_LOSSES)
    return [row for row in rows if _concerns(row, session)]


def _concerns(row: EventRow, session: Session) -> bool:
    if row.session is not None:
        return row.session == session.id
    end_us = session.last_t_us if session.ended_us is None else session.ended_us
    since_us = row.body.get("since_us")
    begin_us = since_us if isinstance(since_us, int) else row.t_us
    return begin_us <= end_us and row.t_us >= (session.started_us or 0)
