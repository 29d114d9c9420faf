"""The gateway as a whole: its listening socket, its link, its health."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from tidegate_collectors import __version__, paths
from tidegate_collectors.link import Hello, LinkClient, allowed_server_uids, new_src

from . import portfile
from .apis import HEALTH
from .headers import is_loopback_name
from .options import Config, GatewayError
from .passing import Passing, on_prepare
from .telling import Teller
from .upstream import MAX_FIELD_BYTES, MAX_HEADERS, MAX_LINE_BYTES, Upstream

_KEEPALIVE_S: Final = 75.0
_PROBE_TIMEOUT_S: Final = 1.0
_PROBE_EVERY_S: Final = 1.0
SHUTDOWN_S: Final = 5.0
"""How long answers may go on when the gateway is told to end."""

log = logging.getLogger("tidegate.gateway")


class Gateway:
    """A running gateway. ``url``: where agents reach it, without a slash at the end."""

    def __init__(self, config: Config, link: LinkClient, upstream: Upstream) -> None:
        self.config = config
        self.link = link
        self.url = ""
        self.teller = Teller(link.send)
        self.passing = Passing(config, upstream, self.teller)
        self._probed_s = -_PROBE_EVERY_S
        self._reachable = False
        self._probing = asyncio.Lock()

    def app(self) -> web.Application:
        """The web application."""
        app = web.Application(client_max_size=self.config.max_body_bytes)
        app.on_response_prepare.append(on_prepare)
        app.router.add_get(HEALTH, self._health)
        app.router.add_route("*", "/{path:.*}", self.passing.handle)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        if not self.config.allow_remote and not is_loopback_name(request.headers.get("Host", "localhost")):
            return web.Response(status=421, text="use a loopback address\n")
        return web.json_response(await self.health())

    async def health(self) -> dict[str, Any]:
        """What ``/tidegate/health`` says."""
        stats = self.link.stats
        return {
            "service": "tidegate-gateway",
            "version": __version__,
            "upstream": self.config.upstream,
            "reachable": await self._reach(),
            "last_error": self.passing.last_error,
            "turns": self.teller.counts.to_json(),
            "link": {
                "connected": stats.connected,
                "run": stats.run,
                "queued": stats.queued,
                "dropped": stats.dropped_records + stats.dropped_samples,
                "last_error": stats.last_error,
            },
        }

    async def _reach(self) -> bool:
        """Whether somebody listens at the upstream; asked at most once a second."""
        async with self._probing:
            if time.monotonic() - self._probed_s >= _PROBE_EVERY_S:
                parts = urllib.parse.urlsplit(self.config.upstream)
                port = parts.port or (443 if parts.scheme == "https" else 80)
                try:
                    async with asyncio.timeout(_PROBE_TIMEOUT_S):
                        _, writer = await asyncio.open_connection(parts.hostname, port)
                    writer.close()
                    self._reachable = True
                except (OSError, TimeoutError):
                    self._reachable = False
                self._probed_s = time.monotonic()
            return self._reachable


@contextlib.asynccontextmanager
async def running_gateway(config: Config) -> AsyncIterator[Gateway]:
    """Listen, and end again.

    Raises:
        GatewayError: it cannot listen.
    """
    path = None if config.runtime_dir is None else _make(config.runtime_dir) / portfile.NAME
    async with contextlib.AsyncExitStack() as stack:
        link = LinkClient(config.link or paths.link_socket(), _hello())
        link.start()
        stack.push_async_callback(asyncio.to_thread, link.close)
        upstream = Upstream(config.upstream)
        stack.push_async_callback(upstream.close)
        gateway = Gateway(config, link, upstream)
        runner = web.AppRunner(
            gateway.app(),
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,
            keepalive_timeout=_KEEPALIVE_S,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_HEADERS,
            shutdown_timeout=SHUTDOWN_S,
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        port = await _listen(runner, config)
        shown = f"[{config.host}]" if ":" in config.host else config.host
        gateway.url = f"http://{shown}:{port}"
        if path is not None:
            reached = "127.0.0.1" if config.host in ("0.0.0.0", "localhost") else shown  # noqa: S104 - compared with
            _announce(path, f"http://{'[::1]' if config.host == '::' else reached}:{port}", port, config.upstream)
            stack.callback(portfile.remove, path)
        yield gateway


async def _listen(runner: web.AppRunner, config: Config) -> int:
    try:
        site = web.TCPSite(runner, config.host, config.port, backlog=1024)
        await site.start()
    except OSError as error:
        raise GatewayError(
            f"cannot listen on {config.host} port {config.port}: {os.strerror(error.errno or 0)}; choose another --port"
        ) from None
    port: int = runner.addresses[0][1]
    return port


def _announce(path: Path, url: str, port: int, upstream: str) -> None:
    known = portfile.running(path)
    if known is not None:
        log.warning("another gateway runs at %s; `tidegate run` uses this one from now on", known.url)
    try:
        portfile.write(path, url, port, upstream)
    except OSError as error:
        log.warning("cannot write %s: %s; give `tidegate run` --gateway %s", path, error.strerror, url)


def _make(directory: Path) -> Path:
    try:
        return paths.make_private_dir(directory, owners=allowed_server_uids() if os.geteuid() == 0 else frozenset())
    except OSError as error:
        raise GatewayError(f"cannot use the runtime directory {directory}: {error.strerror or error}") from None


def _hello() -> Hello:
    boot_id = ""
    with contextlib.suppress(OSError):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Hello(
        role="gateway",
        version=__version__,
        src=new_src("gateway"),
        host=socket.gethostname(),
        boot_id=boot_id,
        pid=os.getpid(),
    )
