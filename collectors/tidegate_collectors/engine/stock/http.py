"""Asking vLLM's server over HTTP: bounded in time and size, no redirects, no cookies, no proxies."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import aiohttp

TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 16 << 20


class FetchError(Exception):
    """There is no usable answer; the message says why. ``gone``: nobody listens there."""

    def __init__(self, message: str, *, gone: bool = False) -> None:
        super().__init__(message)
        self.gone = gone


class Server:
    """vLLM's HTTP server. Close it with :meth:`close`."""

    def __init__(self, base: str, *, timeout_s: float = TIMEOUT_S, max_bytes: int = MAX_BYTES) -> None:
        self._base, self._max_bytes = base, max_bytes
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout_s), cookie_jar=aiohttp.DummyCookieJar()
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()

    async def get(self, path: str) -> bytes:
        """The body of a 200.

        Raises:
            FetchError: anything else.
        """
        try:
            async with self._session.get(self._base + path, allow_redirects=False) as answer:
                if 300 <= answer.status < 400:
                    raise FetchError(f"{path} leads elsewhere ({answer.status}); give the address of vLLM itself")
                if answer.status != 200:
                    raise FetchError(f"{path} is answered with {answer.status}")
                body = bytearray()
                async for piece in answer.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > self._max_bytes:
                        raise FetchError(f"{path} has more than {self._max_bytes >> 20} MiB; this is no vLLM")
                return bytes(body)
        except TimeoutError:
            raise FetchError(f"{path} is not answered in time") from None
        except aiohttp.ClientConnectorDNSError:
            raise FetchError("its host has no address; check --engine") from None
        except aiohttp.ClientConnectorError as error:
            why = error.os_error.strerror if (error.os_error.errno or 0) > 0 else "no connection"
            raise FetchError(f"nobody answers there ({why}); is it running?", gone=True) from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError):
            raise FetchError(f"{path}: the connection was closed", gone=True) from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise FetchError(f"{path}: what answers there does not speak HTTP ({type(error).__name__})") from None


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Wait, and no longer than until the event is set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
