"""A backend inside the test's own event loop, spoken to over ASGI, and records to feed it with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from tidegate.app import opened, prepare
from tidegate.settings import Settings
from tidegate.web import AppState, create_app
from tidegate.web.security import COOKIE
from tidegate_collectors import records
from tidegate_collectors.records import CallEnd, CallStart, MemSample, Record, SessionEnd, SessionStart

BASE_URL = "http://127.0.0.1:6456"
T0_US = 1_800_000_000_000_000


@dataclass(slots=True)
class Backend:
    """An open backend; ``client`` is logged in, ``stranger`` is not."""

    state: AppState
    app: FastAPI
    client: httpx.AsyncClient
    stranger: httpx.AsyncClient

    async def json(self, path: str, **params: Any) -> Any:
        """The JSON of a 200."""
        answer = await self.client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def record(self, *given: Record) -> None:
        """Commit records by way of the ingest, and wait until they are folded."""
        assert self.state.opened is not None
        assert self.state.opened.live is not None
        run = self.state.opened.run
        target = max(run.last_ord, self.state.state.ord) + len(given)
        for record in given:
            self.state.opened.live.ingest.record(record)
        await self.folded(target)

    async def folded(self, ord_: int) -> None:
        """Wait until the record with that ordinal is folded."""
        await self.state.feed.loaded.wait()
        async with asyncio.timeout(10):
            while self.state.state.ord < ord_:  # noqa: ASYNC110 - the fold is pure: it has no event to wait for
                await asyncio.sleep(0.005)


@asynccontextmanager
async def backend(directory: Path, **settings: Any) -> AsyncIterator[Backend]:
    """An open backend with directories of its own."""
    state = prepare(Settings(state_dir=directory / "state", runtime_dir=directory / "run", **settings))
    app = create_app(state)
    async with opened(state):
        # raise_app_exceptions off: an unexpected error is an answer for the browser, and that answer is tested.
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 40000))
        async with (
            httpx.AsyncClient(transport=transport, base_url=BASE_URL) as stranger,
            httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client,
        ):
            client.cookies.set(COOKIE, state.sessions.create(), domain="127.0.0.1")
            found = Backend(state, app, client, stranger)
            await found.folded(1)
            yield found


def a_session(name: str = "s1", *, calls: int = 2, t_us: int = T0_US, **start: Any) -> list[Record]:
    """Records of a session with ``calls`` calls one after the other, a second each, and an end."""
    found: list[Record] = [SessionStart(t=t_us, session=name, **{"agent": "bash", "title": "a title", **start})]
    for number in range(calls):
        begin = t_us + number * 1_000_000
        call = f"c{number + 1}"
        found.append(CallStart(t=begin, session=name, call=call, tool="git", category="git", command="git status"))
        for tick in range(1, 10):
            t = begin + tick * 100_000
            found.append(MemSample(t=t, session=name, subject="runtime", anon_bytes=50_000_000))
            found.append(MemSample(t=t, session=name, call=call, subject="call", anon_bytes=tick * 10_000_000))
        found.append(CallEnd(t=begin + 1_000_000, session=name, call=call, exit_code=0, duration_us=1_000_000))
    found.append(SessionEnd(t=t_us + calls * 1_000_000, session=name, exit_code=0))
    return found


def write_recording(path: Path, given: Iterable[Record], src: str = "kernel-test") -> Path:
    """Write records as a recording, stamped as a collector would."""
    with path.open("wb") as file:
        for seq, record in enumerate(given):
            record.v, record.seq, record.src, record.host = records.VERSION, seq, src, record.host or "testhost"
            file.write(records.encode(record) + b"\n")
    return path
