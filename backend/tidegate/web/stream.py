"""``GET /api/stream``: server-sent events.

Written as a plain ASGI response: frames are encoded already, and one that stops at once when the client goes or the
server ends is easier to see than one that does so inside a framework's generator.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidegate.runs.player import MAX_SPEED, MIN_SPEED
from tidegate.web.appstate import AppState, app_state
from tidegate.web.errors import Refusal
from tidegate.web.hub import Hub, Subscriber
from tidegate.web.player_stream import EVENT_STREAM, MAX_PLAYERS, Players, PlayerStream, until_gone
from tidegate.web.shown import run_of, wanted

PING_S: Final = 10.0

_PING: Final = b": ping\n\n"

router: Final = APIRouter()


class EventStream(Response):
    """The stream of one client."""

    def __init__(self, hub: Hub, after: int | None) -> None:
        super().__init__(media_type="text/event-stream")
        self._hub = hub
        self._after = after

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        subscriber = self._hub.subscribe(self._after)
        watcher = asyncio.create_task(_close_on_disconnect(receive, subscriber))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(EVENT_STREAM)})
            while (data := await subscriber.read(PING_S)) is not None:
                await send({"type": "http.response.body", "body": data or _PING, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._hub.unsubscribe(subscriber)
            watcher.cancel()


async def _close_on_disconnect(receive: Receive, subscriber: Subscriber) -> None:
    await until_gone(receive)
    subscriber.close()


def ordinal(text: str | None) -> int | None:
    """The record a client has seen last; -1, which nothing can be resumed from, for text that is no number."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else -1


@router.get("/api/stream")
async def stream(
    request: Request, speed: Annotated[float, Query(ge=MIN_SPEED, le=MAX_SPEED, allow_inf_nan=False)] = 1.0
) -> Response:
    """The stream of the live run; with ``run`` or ``at`` a player of its own for this client.

    ``Last-Event-ID``, or ``?after=`` for a first connection to the live run, says what the client has seen. The id of a
    player's frame is its instant.
    """
    app: AppState = app_state(request.scope)
    run = await run_of(request)
    at_us = wanted(request)[1]
    query = request.query_params
    last_id = request.headers.get("last-event-id")
    if at_us is None and run.default:
        after = last_id or query.get("after")
        if app.hub.full:
            raise Refusal(503, "Too many streams are open.", "Close some tabs.")
        return EventStream(app.hub, ordinal(after))
    players: Players = request.app.state.players
    if players.full:
        raise Refusal(503, f"{MAX_PLAYERS} runs are being played already.", "Pause some, or close some tabs.")
    # A browser that comes back goes on where it was.
    library, _ = app.runs()
    return PlayerStream(players, library, run, run.within(max(run.within(at_us), ordinal(last_id) or 0)), speed)
