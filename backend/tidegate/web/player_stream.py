"""``GET /api/stream`` of a run that is played: the frames of one client's own playhead.

Events: ``hello`` (run, at_us, speed, start_us, end_us), then ``frame`` at each tick, then ``end`` at the end of the
run. The id of a frame is its instant, so that a browser that comes back goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidegate.errors import TidegateError
from tidegate.runs.player import Player
from tidegate.web.hub import sse
from tidegate.web.lookup import recorded_sources
from tidegate.web.responses import encode

if TYPE_CHECKING:
    from tidegate.runs.library import Library
    from tidegate.web.shown import ShownRun

log: Final = logging.getLogger(__name__)

MAX_PLAYERS: Final = 32
"""Each folds for itself."""

EVENT_STREAM: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
"""Headers of a stream."""


class Players:
    """The streams that play, each by its task."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def full(self) -> bool:
        """Whether a further one has to be turned away."""
        return len(self._tasks) >= MAX_PLAYERS

    def add(self, task: asyncio.Task[None]) -> None:
        """Count a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._closed:
            task.cancel()

    def close(self) -> None:
        """End all, now."""
        self._closed = True
        for task in self._tasks:
            task.cancel()


class PlayerStream(Response):
    """The stream of one client.

    Args:
        players: counts it.
        library: tells whether the run was deleted while it was played.
        run: the run.
        at_us: where to begin, within the run.
        speed: seconds of the run in one second.
    """

    def __init__(self, players: Players, library: Library, run: ShownRun, at_us: int, speed: float) -> None:
        super().__init__(media_type="text/event-stream")
        self._players = players
        self._library = library
        self._run = run
        self._at_us = at_us
        self._started = False
        self._speed = speed

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        playing = asyncio.create_task(self._play(send), name="tidegate-player")
        self._players.add(playing)
        watching = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
            is_gone = watching.done()
        finally:
            playing.cancel()
            watching.cancel()
            await asyncio.wait({playing, watching})
        if not playing.cancelled():
            if (error := playing.exception()) is not None:
                raise error
        elif self._started and not is_gone:  # this backend ends
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _play(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(EVENT_STREAM)})
        self._started = True
        try:
            await self._frames(send)
        except TidegateError as error:
            log.warning("a run that was played: %s", error)
            await _send(send, sse("failed", encode({"error": await self._why(error)})))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _why(self, error: TidegateError) -> str:
        """What to tell of an error: that a closed or emptied database was one's own deleting is all there is to say."""
        try:
            is_gone = await self._library.is_gone(self._run.run.id)
        except TidegateError:
            is_gone = False
        return "the run was deleted" if is_gone else str(error)

    async def _frames(self, send: Send) -> None:
        run, at_us = self._run, self._at_us
        hello = {
            "run": run.run.id, "at_us": at_us, "speed": self._speed, "start_us": run.start_us, "end_us": run.end_us,
        }  # fmt: skip
        await _send(send, sse("hello", encode(hello)))
        player = Player(run.history, at_us, self._speed)
        async for frame in player:
            at_us = frame["now_us"]
            if player.state is not None:
                frame["sources"] = recorded_sources(player.state)
            await _send(send, sse("frame", encode(frame), at_us))
        await _send(send, sse("end", encode({"at_us": at_us})))


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def until_gone(receive: Receive) -> None:
    """Wait until the client has left, or took nothing for so long that the kernel ended it (see ``app.bind``)."""
    while (await receive())["type"] != "http.disconnect":
        pass
