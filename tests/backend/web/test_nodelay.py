"""The pages' connections send at once: without it, each answer waits 40 ms between its head and its body."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tidegate.app import bind
from tidegate.errors import UsageError
from tidegate.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_accepted_connections_do_not_wait(host: str) -> None:
    try:
        sock = bind(Settings(host=host, port=0))
    except UsageError as error:  # a machine without IPv6
        pytest.skip(str(error))
    seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def accepted(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    server = await asyncio.start_server(accepted, sock=sock)
    async with server:
        _, writer = await asyncio.open_connection(*sock.getsockname()[:2])
        assert await asyncio.wait_for(seen, 5) == 1
        writer.close()
        await writer.wait_closed()
