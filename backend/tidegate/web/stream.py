"""``GET /api/stream``: server-sent events.

Written as a plain ASGI response: frames are encoded already, and one that stops at once when the client goes or the
server ends is easier to see than one that does so inside a framework's generator.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidegate.web.appstate import AppState, app_state
from tidegate.web.hub import Hub, Subscriber

PING_S: Final = 10.0
SEND_TIMEOUT_S: Final = 60.0
"""A client that takes nothing for so long is gone, whatever its socket says."""

_PING: Final = b": ping\n\n"
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

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
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            while (data := await subscriber.read(PING_S)) is not None:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await send({"type": "http.response.body", "body": data or _PING, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            pass
        finally:
            self._hub.unsubscribe(subscriber)
            watcher.cancel()


async def _close_on_disconnect(receive: Receive, subscriber: Subscriber) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    subscriber.close()


def ordinal(text: str | None) -> int | None:
    """The record a client has seen last; -1, which nothing can be resumed from, for text that is no number."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else -1


@router.get("/api/stream")
async def stream(request: Request) -> Response:
    """The stream; ``Last-Event-ID``, or ``?after=`` for a first connection, says what the client has seen."""
    state: AppState = app_state(request.scope)
    await state.loaded()
    query = request.query_params
    after = request.headers.get("last-event-id") or query.get("after") or query.get("last_event_id")
    if state.hub.full:
        raise HTTPException(503, "Too many streams are open; close some tabs.")
    return EventStream(state.hub, ordinal(after))
