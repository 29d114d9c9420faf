"""A client that takes nothing is ended by the kernel, over a real connection, and leaves neither stream nor error."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest
import uvicorn

from tests.support.backend import T0_US, a_session, backend
from tidegate import app as app_module
from tidegate.settings import Settings
from tidegate.web.security import COOKIE
from tidegate_collectors.records import Note


@pytest.mark.parametrize("stream", ["live", "player"])
async def test_a_client_that_takes_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: str
) -> None:
    monkeypatch.setattr(app_module, "TAKES_NOTHING_MS", 500)
    async with backend(tmp_path) as web:
        assert web.state.opened is not None
        start_us = web.state.opened.run.started_us
        await web.record(*a_session("s1", t_us=start_us + 1_000, calls=200))
        sock = app_module.bind(Settings(port=0))
        port = sock.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(web.app, http="h11", ws="none", lifespan="off", log_config=None))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
                query = "" if stream == "live" else f"?at={start_us}&speed=64"
                request = (
                    f"GET /api/stream{query} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
                    f"cookie: {COOKIE}={web.client.cookies[COOKIE]}\r\n\r\n"
                )
                await asyncio.get_running_loop().sock_sendall(client, request.encode())

                def streams() -> int:
                    return len(web.state.hub.subscribers) + len(web.app.state.players)

                async with asyncio.timeout(20):
                    while streams() == 0:  # noqa: ASYNC110 - the server has no event for it
                        await asyncio.sleep(0.01)
                    while streams() > 0:
                        if stream == "live":
                            await web.record(Note(t=T0_US, text="x" * 8000))
                        await asyncio.sleep(0.02)
        finally:
            server.should_exit = True
            await serving
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
