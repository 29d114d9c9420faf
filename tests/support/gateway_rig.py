"""A gateway in the test's own event loop between raw sockets: an upstream that misbehaves, a client that tells all.

Both ends write and read bytes themselves (the client with h11), so that what the gateway's own HTTP library would hide
is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11

from tests.support.record_sink import RecordSink
from tidegate_collectors.agent.gateway.options import Config
from tidegate_collectors.agent.gateway.server import Gateway, running_gateway
from tidegate_collectors.records import AnyRecord, TurnEnd

Answer = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]

_PER_CONNECTION = frozenset({b"transfer-encoding", b"connection", b"keep-alive", b"trailer"})


@dataclass(slots=True)
class Request:
    """A request as the upstream got it."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


@dataclass(slots=True)
class Got:
    """An answer as a client got it. ``whole``: HTTP says that nothing is missing."""

    status: int = 0
    reason: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False

    def header(self, name: str) -> str | None:
        """The value of a header."""
        return next((value.decode() for key, value in self.headers if key == name.lower().encode()), None)


class Upstream:
    """Serves ``answer`` on loopback; ``requests`` are those that came, ``gone`` counts clients that hung up early."""

    def __init__(self) -> None:
        self.answer: Answer = plain(200, b"{}")
        self.requests: list[Request] = []
        self.connections = 0
        self.gone = asyncio.Event()
        self.port = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Upstream]:
        """Listen on a free port."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        tasks = self._tasks = set[asyncio.Task[None]]()
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            first = b""
            while (request := await _read_request(reader, first)) is not None:
                self.requests.append(request)
                answering = asyncio.ensure_future(self.answer(request, writer))
                leaving = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    self.gone.set()
                    answering.cancel()
                    return
                await answering
                if writer.is_closing():
                    leaving.cancel()
                    return
                first = await leaving
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


def plain(status: int, body: bytes, *headers: str, reason: str = "OK") -> Answer:
    """An answer in one piece, with its length; the connection ends with it."""
    head = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(body)}", "Connection: close", *headers]

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        said = b"" if request.line.startswith("HEAD ") else body
        writer.write("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + said)
        writer.close()

    return answer


def raw(*pieces: bytes, abort: bool = False, pause_s: float = 0.01) -> Answer:
    """Bytes as they are, one packet each, and the end of the connection (abrupt with ``abort``)."""

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if abort:
            writer.transport.abort()
        writer.close()

    return answer


SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk on the wire."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def events(*values: object, done: bool = True) -> list[bytes]:
    """Events of a stream; the data of each is JSON."""
    found = [b"data: " + json.dumps(value).encode() + b"\n\n" for value in values]
    return [*found, b"data: [DONE]\n\n"] if done else found


def stream(parts: Sequence[bytes]) -> Answer:
    """A stream of events, a chunk each, which ends as it should."""
    return raw(SSE_HEAD, *(chunk(part) for part in parts), b"0\r\n\r\n")


async def fetch(
    port: int,
    body: bytes = b"",
    *,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    headers: Sequence[tuple[str, str]] = (),
    on_data: Callable[[bytes], None] | None = None,
) -> Got:
    """Send a request and read its answer to the end, whatever end it has."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 24)
    given = {name.lower() for name, _ in headers}
    lines = [*headers, *([] if "host" in given else [("Host", f"127.0.0.1:{port}")])]
    if "content-length" not in given and "transfer-encoding" not in given and (body or method == "POST"):
        lines.append(("Content-Length", str(len(body))))
    got = Got()
    try:
        for part in (h11.Request(method=method, target=path, headers=lines), h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(part) or b"")
        async with asyncio.timeout(20):
            while True:
                event: Any = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await reader.read(1 << 16))
                elif isinstance(event, h11.Response):
                    got.status, got.reason = event.status_code, event.reason
                    got.headers = [(key, value) for key, value in event.headers if key not in _PER_CONNECTION]
                elif isinstance(event, h11.Data):
                    got.body += bytes(event.data)
                    if on_data is not None:
                        on_data(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    got.whole = True
                    return got
    except (h11.RemoteProtocolError, ConnectionError):
        return got
    finally:
        writer.close()


@dataclass(slots=True)
class Rig:
    """Upstream, gateway and a backend's end of the link."""

    upstream: Upstream
    gateway: Gateway
    sink: RecordSink

    @property
    def port(self) -> int:
        """The gateway's."""
        return int(self.gateway.url.rpartition(":")[2])

    async def both(self, body: bytes, **how: Any) -> tuple[Got, Got]:
        """The same request to the upstream itself and through the gateway."""
        return await fetch(self.upstream.port, body, **how), await fetch(self.port, body, **how)

    async def ask(self, value: object, **how: Any) -> Got:
        """A request with JSON through the gateway."""
        return await fetch(self.port, json.dumps(value).encode(), **how)

    async def ended(self, count: int = 1) -> list[TurnEnd]:
        """The ends of turns, once there are so many."""
        await self.records(lambda found: len([r for r in found if isinstance(r, TurnEnd)]) >= count)
        return [record for record in self.sink.records if isinstance(record, TurnEnd)]

    async def records(self, condition: Callable[[list[AnyRecord]], bool]) -> list[AnyRecord]:
        """All records, once they fulfil the condition."""
        await asyncio.to_thread(self.sink.wait_for, condition)
        return list(self.sink.records)


@contextlib.asynccontextmanager
async def gateway_rig(**options: Any) -> AsyncIterator[Rig]:
    """Everything, on free ports; ``options`` are of the gateway's :class:`Config`."""
    with tempfile.TemporaryDirectory(prefix="tgg") as name, RecordSink(Path(name) / "link.sock") as sink:
        async with Upstream().serving() as upstream:
            given: dict[str, Any] = {"port": 0, "link": sink.path, **options}
            config = Config(f"http://127.0.0.1:{upstream.port}", **given)
            async with running_gateway(config) as gateway:
                yield Rig(upstream, gateway, sink)


async def _read_request(reader: asyncio.StreamReader, first: bytes) -> Request | None:
    try:
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in rest)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(line, headers, body)
