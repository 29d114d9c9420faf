"""A real ingest with its link server on a socket in a temporary directory, and a peer that says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.ingest import Ingest, LinkServer, bind_link
from tidegate.ingest.recording import Report, load
from tidegate.store import CommittedBatch, Run, Store, open_store
from tidegate_collectors.link import Hello, Up
from tidegate_collectors.link.messages import encode_line
from tidegate_collectors.records import AnyRecord


@dataclass(slots=True)
class Backend:
    """What of a backend a test of the ingest needs."""

    store: Store
    ingest: Ingest
    server: LinkServer
    run: Run
    batches: list[CommittedBatch] = field(default_factory=list)

    def of(self, kind: type[AnyRecord]) -> list[Any]:
        """Committed records of one type, in order."""
        return [record for batch in self.batches for _, record in batch.records if isinstance(record, kind)]


@contextlib.asynccontextmanager
async def backend(directory: Path, **options: Any) -> AsyncIterator[Backend]:
    """A running backend; its run is closed cleanly at the end."""
    store = await open_store(directory / "t.db")
    batches: list[CommittedBatch] = []
    ingest = Ingest(store, on_commit=batches.append, **options)
    run = await ingest.start()
    server = LinkServer(ingest, bind_link(directory / "run" / "link.sock"))
    await server.start()
    try:
        yield Backend(store, ingest, server, run, batches)
    finally:
        await server.stop()
        await ingest.stop()
        await store.close()


async def until(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    """Wait until the condition holds; fails the test when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the awaited did not happen"
        await asyncio.sleep(0.01)


@dataclass(slots=True)
class OpenedRecording:
    """A recording that was read into a database of its own."""

    store: Store
    run: Run
    report: Report


@contextlib.asynccontextmanager
async def opened_recording(path: Path, data: bytes | None = None, **options: Any) -> AsyncIterator[OpenedRecording]:
    """A file (with these bytes), read as a recording; the database lies in a folder of its own beside it."""
    if data is not None:
        path.write_bytes(data)  # noqa: ASYNC240 - a test
    store = await open_store(path.parent / f"{path.name}.store" / "r.db")
    try:
        run, report = await load(path, store, **options)
        yield OpenedRecording(store, run, report)
    finally:
        await store.close()


class Peer:
    """A client of the link that sends bytes of the test's choice."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, path: Path, src: str | None = None) -> Peer:
        """Connect; with ``src`` also say hello (the welcome is the next answer)."""
        peer = cls(*await asyncio.open_unix_connection(str(path)))
        if src is not None:
            peer.send(encode_line(Up(hello=Hello(role="kernel", src=src, host="box"))))
        return peer

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.writer.write(data)

    async def answer(self) -> dict[str, Any]:
        """The next line of the backend; empty at the end of the connection."""
        line = await asyncio.wait_for(self.reader.readline(), 10.0)
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer

    async def acked(self, seq: int) -> None:
        """Read until ``seq`` is acknowledged."""
        while True:
            answer = await self.answer()
            assert answer, "the connection ended before the acknowledgement"
            if answer.get("ack", -1) >= seq:
                return

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
