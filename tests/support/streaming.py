"""One open stream of a backend inside the test's own event loop, spoken to over ASGI.

httpx's transport waits for the end of an answer, which a stream has not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.backend import Backend
from tidegate.web.security import COOKIE

Event = tuple[str, int | None, Any]


class Client:
    """One open stream. While ``hold`` is cleared it takes nothing; set ``gone`` to leave."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()
        self.ended = False
        self._text = ""
        self._asked = False

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        await self.hold.wait()
        self.chunks.put_nowait(message["body"])
        self.ended = not message.get("more_body", False)

    async def event(self, timeout_s: float = 5.0) -> Event:
        """The next event; pings are passed over."""
        async with asyncio.timeout(timeout_s):
            while True:
                block, found, rest = self._text.partition("\n\n")
                if not found:
                    self._text += (await self.chunks.get()).decode()
                    continue
                self._text = rest
                if block.startswith(":"):
                    continue
                fields = dict(line.split(": ", 1) for line in block.split("\n"))
                return fields["event"], int(fields["id"]) if "id" in fields else None, json.loads(fields["data"])


@asynccontextmanager
async def connected(
    web: Backend, query: str = "", last_event_id: str | None = None
) -> AsyncIterator[tuple[Client, asyncio.Task[None]]]:
    client = Client()
    headers = [(b"host", b"127.0.0.1:6456"), (b"cookie", f"{COOKIE}={web.client.cookies[COOKIE]}".encode())]
    if last_event_id is not None:
        headers.append((b"last-event-id", last_event_id.encode()))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": "/api/stream",
        "raw_path": b"/api/stream", "query_string": query.encode(), "headers": headers, "scheme": "http",
        "server": ("127.0.0.1", 6456), "client": ("127.0.0.1", 4), "root_path": "",
    }  # fmt: skip
    task = asyncio.create_task(web.app(scope, client.receive, client.send))
    try:
        yield client, task
    finally:
        client.gone.set()
        client.hold.set()
        await asyncio.wait_for(task, 5)


async def frames_until(client: Client, ord_: int) -> list[Event]:
    found: list[Event] = []
    while not found or found[-1][2].get("ord", 0) < ord_:
        found.append(await client.event())
    return found
