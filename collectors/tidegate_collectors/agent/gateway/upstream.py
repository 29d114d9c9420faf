"""The connections to the engine: one request, sent once, whatever the pool does."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

MAX_LINE_BYTES: Final = 1 << 20
MAX_FIELD_BYTES: Final = 1 << 20
MAX_HEADERS: Final = 4096
"""Bounds of a head, in both directions: far beyond what servers and agents take themselves."""

KEEPALIVE_S: Final = 4.0
"""Less than the 5 s after which vLLM closes an idle connection."""

_PIECE_BYTES: Final = 1 << 18

_AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Upstream:
    """Sends requests to the engine and gives their answers as they came: no decoding, redirects, cookies, time-outs."""

    def __init__(self, base: str) -> None:
        self.base: Final = base
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_reused)
        self._pooled = _session(trace, keepalive_timeout=KEEPALIVE_S)
        self._fresh = _session(None, force_close=True)

    async def close(self) -> None:
        """Close all connections."""
        await self._pooled.close()
        await self._fresh.close()

    async def ask(self, method: str, path: str, headers: CIMultiDict[str], body: Any) -> aiohttp.ClientResponse:
        """Send a request; returns once the head of its answer is there. The caller closes the answer.

        A connection that had been idle may be closed by the engine in the moment in which it is used again: a direct
        client would have had another one, so the request is sent once more on a new one.

        Raises:
            aiohttp.ClientError, OSError: there is no answer.
            ValueError: the path makes no URL.
        """
        url = URL(self.base + path, encoded=True)
        found: dict[str, bool] = {}
        try:
            return await self._pooled.request(
                method, url, headers=headers, data=_sendable(body), allow_redirects=False, trace_request_ctx=found
            )
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            again = found.get("reused") and not isinstance(error, aiohttp.ClientConnectorError)
            if not again or not (body is None or isinstance(body, bytes)):
                raise
        return await self._fresh.request(method, url, headers=headers, data=_sendable(body), allow_redirects=False)


@contextlib.contextmanager
def broken_when_closed(answer: aiohttp.ClientResponse) -> Iterator[None]:
    """Have whoever reads the answer know when its connection ends too early.

    aiohttp says so itself, except after a chunk whose size is no number: then it closes the connection, and the reader
    would wait for ever.
    """
    protocol = answer.connection.protocol if answer.connection else None
    if protocol is None:  # everything has come
        yield
        return

    def tell(_closed: object) -> None:
        if not answer.content.is_eof() and answer.content.exception() is None:
            answer.content.set_exception(aiohttp.ClientPayloadError("the connection was closed"))

    closed = protocol.closed
    if closed is None:  # it was closed between the head and now
        tell(None)
        yield
        return
    closed.add_done_callback(tell)
    try:
        yield
    finally:
        closed.remove_done_callback(tell)


def explain(error: BaseException, base: str) -> str:
    """Why there is no answer, and what to do; nothing of what was sent or received."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the gateway cannot find the engine: no address for {base}; check --upstream"
    if isinstance(error, aiohttp.ClientSSLError):
        return f"the gateway cannot speak TLS with the engine at {base}; check --upstream and its certificate"
    if isinstance(error, aiohttp.ClientConnectorError):
        why = error.os_error.strerror if error.os_error.errno and error.os_error.errno > 0 else ""
        return f"the gateway cannot reach the engine at {base} ({why or 'no connection'}); is it running?"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"what answers at {base} does not speak HTTP as the gateway knows it; check --upstream"
    if isinstance(error, (aiohttp.ClientConnectionError, OSError)):
        return f"the engine at {base} closed the connection without an answer; see its log"
    return f"the gateway has no answer from the engine at {base} ({type(error).__name__})"


def _sendable(body: Any) -> Any:
    """A body that aiohttp writes piece by piece; large bytes it would copy at once, and warns of it."""
    return io.BytesIO(body) if isinstance(body, bytes) and len(body) > _PIECE_BYTES else body


def _session(trace: aiohttp.TraceConfig | None, **pool: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, enable_cleanup_closed=True, **pool),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_AUTOMATIC,
        auto_decompress=False,
        max_line_size=MAX_LINE_BYTES,
        max_field_size=MAX_FIELD_BYTES,
        max_headers=MAX_HEADERS,
        trace_configs=[trace] if trace is not None else None,
    )


async def _reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx["reused"] = True
