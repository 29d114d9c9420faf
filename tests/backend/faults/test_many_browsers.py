"""Fifty browsers at once on a real backend that takes records, with some that stop reading."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import suppress
from itertools import islice
from pathlib import Path

import httpx

from bench._workload import workload
from tests.support.server import Server, running_server
from tidegate_collectors.link import Hello, LinkClient
from tidegate_collectors.records import Note

BROWSERS = 50
STALLED = 5
RECORDS = 4000
LAST = "the last one"


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Stream:
    """One browser's stream, as bytes on a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, server: Server, path: str) -> Stream:
        host, port = server.base_url.removeprefix("http://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port), limit=8 << 20)
        cookie = server.cookies["tidegate_session"]
        # HTTP/1.0: no chunk headers between the frames
        writer.write(
            f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nCookie: tidegate_session={cookie}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")), head
        return cls(reader, writer)

    async def until(self, text: str) -> int:
        """Read frames until one holds this text; returns how many there were."""
        frames = 0
        while True:
            event = await self.reader.readuntil(b"\n\n")
            frames += b"event: frame" in event
            if text.encode() in event:
                return frames

    async def close(self) -> None:
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()


async def browse(server: Server, ready: asyncio.Semaphore) -> int:
    """What one page does: the whole state, then the stream from there."""
    async with httpx.AsyncClient(base_url=server.base_url, cookies=server.cookies, timeout=60) as client:
        answer = await client.get("/api/state")
        assert answer.status_code == 200
        stream = await Stream.open(server, f"/api/stream?after={answer.json()['ord']}")
        ready.release()
        try:
            frames = await stream.until(LAST)
            # and it looks into a session meanwhile
            state = (await client.get("/api/state")).json()
            session = state["sessions"][0]["id"]
            assert (await client.get(f"/api/sessions/{session}")).status_code == 200
            return frames
        finally:
            await stream.close()


async def wind_back(server: Server) -> str:
    """A page that plays the run's past for a moment."""
    async with httpx.AsyncClient(base_url=server.base_url, cookies=server.cookies, timeout=60) as client:
        head = (await client.get("/api/state")).json()["playhead"]
        stream = await Stream.open(server, f"/api/stream?at={head['start_us']}&speed=64")
        try:
            event = await stream.reader.readuntil(b"\n\n")
            return event.split(b"\n")[0].decode()
        finally:
            await stream.close()


async def many(server: Server, link: LinkClient) -> list[int]:
    ready = asyncio.Semaphore(0)
    stalled = [await Stream.open(server, "/api/stream") for _ in range(STALLED)]
    for stream in stalled:
        with suppress(OSError):
            stream.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.reader._transport.pause_reading()  # type: ignore[attr-defined]
    browsers = [asyncio.create_task(browse(server, ready)) for _ in range(BROWSERS)]
    for _ in browsers:
        await ready.acquire()

    def send() -> None:
        for record, _ in islice(workload(RECORDS * 2, sessions=16), RECORDS):
            link.send(record)
        link.send(Note(t=1_900_000_000_000_000, text=LAST))

    sender = threading.Thread(target=send)
    sender.start()
    hellos = await asyncio.gather(*(wind_back(server) for _ in range(8)))
    assert hellos == ["event: hello"] * 8
    frames = await asyncio.gather(*browsers)
    sender.join()
    for stream in stalled:
        await stream.close()
    return list(frames)


def test_fifty_browsers_and_some_that_stall_all_follow_a_run_that_is_being_written(tmp_path: Path) -> None:
    """GIVEN 50 pages that follow, 8 that play the past and 5 that stopped reading WHEN records stream in THEN each of
    the 50 gets frames up to the last record, nothing fails, and the backend's memory stays bounded."""
    with running_server(tmp_path) as server, server.client(30) as client:
        link = LinkClient(server.link_socket, Hello(role="bench", src="many-1", host="box"), max_records=100_000)
        link.start()
        client.get("/api/state")
        before = rss_bytes(server.process.pid)
        frames = asyncio.run(many(server, link))
        grown = rss_bytes(server.process.pid) - before
        assert min(frames) >= 1
        assert len(frames) == BROWSERS
        # 16 sessions with their points, queues of 5 stalled readers (1 MB each at most), the players' states
        assert grown < 150 << 20
        status = client.get("/api/status").json()
        assert (status["ingest"]["state"], status["ingest"]["lost"]) == ("running", 0)
        assert status["stream"]["clients"] <= STALLED
        events = client.get("/api/state").json()["events"]
        assert any(event["body"].get("text") == LAST for event in events)
        link.close(2.0)
        assert server.stop() == 0
    assert "Traceback" not in "".join(server.output)
