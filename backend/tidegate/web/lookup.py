"""Finding what a request names. Ids are only compared with what is known, never built into anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from starlette.exceptions import HTTPException

from tidegate.fold import State
from tidegate.fold.events import EventView, event_body
from tidegate.fold.limits import short_id
from tidegate.fold.model import Call, Session
from tidegate.store import EventRow, Reads

if TYPE_CHECKING:
    from tidegate.web.appstate import AppState
    from tidegate.web.shown import Shown

MAX_LOSSES: Final = 1000


def run_view(shown: Shown) -> dict[str, Any]:
    """The run as the store knows it. ``replay``: it is not being written, so nothing can be controlled."""
    run = shown.run
    return {
        "id": run.id,
        "title": run.title or shown.state.run.title or run.id,
        "source": run.source,
        "kind": run.source,
        "started_us": run.started_us,
        "ended_us": run.ended_us,
        "replay": not shown.writing,
        "writing": shown.writing,
    }


def sources_of(app: AppState, shown: Shown) -> list[dict[str, Any]]:
    """The collectors: of the live run as the link has them, of any other instant as its records say."""
    return app.sources() if shown.live else recorded_sources(shown.state)


def recorded_sources(state: State) -> list[dict[str, Any]]:
    """The senders of a state, in the shape of the link's; none is connected."""
    return [
        {
            "src": source.src, "role": source.src.rpartition("-")[0], "version": "", "host": source.host,
            "connected": False, "last_t_us": source.last_t_us, "queued": None, "records": source.last_seq + 1,
            "lost": None,
        }
        for source in state.sources.values()
    ]  # fmt: skip


def known_session(state: State, segment: str) -> Session | None:
    """The session of a path segment, None when the state has none of that id."""
    return state.sessions.get(short_id(unquote(segment)))


async def session_at(shown: Shown, segment: str) -> tuple[Session | None, Session]:
    """The session of a path segment at the position, None before it began; and as it is at the end of the run.

    Raises:
        HTTPException: 404, the run has no such session.
    """
    now = known_session(shown.state, segment)
    last = known_session(await shown.whole(), segment) or now
    if last is None:
        raise HTTPException(404, "There is no such session in this run.")
    return now, last


def span(now: Session | None, last: Session) -> dict[str, int]:
    """First and last instant of a session over the whole run, of both lives where its id was used again."""
    lives = [last] if now is None else [now, last]
    return {"start_us": min(map(start_us, lives)), "end_us": max(map(end_us, lives))}


def start_us(session: Session) -> int:
    """When a session began; its end where that is not known."""
    return end_us(session) if session.started_us is None else session.started_us


def end_us(session: Session) -> int:
    """When a session ended; its last record while it runs, or when its end was not seen."""
    return session.last_t_us if session.ended_us is None else session.ended_us


def find_call(session: Session | None, segment: str, last: Session) -> Call:
    """The call of a path segment; ``last`` is the session at the end of the run.

    Raises:
        HTTPException: 404, the session has no such call, or not yet.
    """
    call_id = short_id(unquote(segment))
    found = None if session is None else session.calls.get(call_id)
    if found is None:
        later = call_id in last.calls
        words = (
            "This call begins after the instant that is shown." if later else "There is no such call in this session."
        )
        raise HTTPException(404, words)
    return found


async def losses(reads: Reads, run: str, session: Session, *, to_ord: int | None = None) -> list[EventRow]:
    """The losses that name a session, or none and fall into its time; the newest :data:`MAX_LOSSES` are looked at.

    Args:
        to_ord: ordinal of the last record that counts; None: the last of the run.
    """
    before = None if to_ord is None else to_ord + 1
    rows = await reads.events(run, types=["loss"], limit=MAX_LOSSES, before_ord=before)
    return [row for row in rows if _concerns(row, session)]


def _concerns(row: EventRow, session: Session) -> bool:
    if row.session is not None:
        return row.session == session.id
    since_us = row.body.get("since_us")
    begin_us = since_us if isinstance(since_us, int) else row.t_us
    return begin_us <= end_us(session) and row.t_us >= (session.started_us or 0)


def stored_event(row: EventRow) -> EventView:
    """An event of the store as the browser gets it."""
    session, call = (None if value is None else short_id(value) for value in (row.session, row.call))
    return EventView(
        ord=row.ord, t_us=row.t_us, type=row.type, session=session, call=call, body=event_body(row.type, row.body)
    )
