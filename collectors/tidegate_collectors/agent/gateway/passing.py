"""One request through the gateway. The agent gets what the upstream says, byte for byte, as it comes."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from .apis import OWN_PREFIX, Api, Target, api_of, target_of
from .headers import REQUEST_ID, client_headers, is_loopback_name, upstream_headers
from .options import Config
from .refusals import body_of
from .telling import Teller, Watch, now_us
from .upstream import Upstream, broken_when_closed, explain

_AUTOMATIC: Final = ("Content-Type", "Date", "Server")


class Passed(web.StreamResponse):
    """An answer with the upstream's headers and no others."""

    def __init__(self, status: int, reason: str | None, headers: CIMultiDict[str]) -> None:
        super().__init__(status=status, reason=reason, headers=headers)
        self._given = headers

    def trim(self) -> None:
        """Take away the headers that aiohttp adds to those that were given."""
        for name in _AUTOMATIC:
            if name not in self._given:
                self.headers.popall(name, None)


async def on_prepare(_request: web.Request, response: web.StreamResponse) -> None:
    """Signal of aiohttp: the head of an answer is complete and not sent yet."""
    if isinstance(response, Passed):
        response.trim()


class Passing:
    """Handles every request but the gateway's own."""

    def __init__(self, config: Config, upstream: Upstream, teller: Teller) -> None:
        self._config = config
        self._upstream = upstream
        self._teller = teller
        self.last_error = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on, and its answer back."""
        arrived_us = now_us()
        try:
            target = target_of(request.raw_path)
        except ValueError as error:
            return self._refuse(None, 400, "bad_request", f"the gateway refuses this: {error}")
        api = api_of(request.method, target.bare)
        if not self._config.allow_remote and not is_loopback_name(request.headers.get("Host", "localhost")):
            return self._refuse(
                api, 421, "misdirected_request",
                "the gateway answers to loopback addresses only; use one, or start it with --allow-remote",
            )  # fmt: skip
        if target.path.startswith(OWN_PREFIX):
            return self._refuse(None, 404, "not_found", "the gateway itself has /tidegate/health only")
        if api is None:
            self._teller.counts.passed += 1
            body = request.content if request.body_exists else None
            return await self._pass(request, target, None, None, body)
        try:
            data = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(
                api, 413, "request_too_large",
                f"the request is longer than the gateway takes ({self._config.max_body_bytes >> 20} MiB); "
                "start it with a larger --max-body",
            )  # fmt: skip
        watch = self._teller.asked(api, request.headers, target.session, data, arrived_us)
        try:
            return await self._pass(request, target, api, watch, data)
        except BaseException:  # the client went, or it is a defect
            if watch is not None:
                watch.abort()
            raise

    async def _pass(
        self, request: web.Request, target: Target, api: Api | None, watch: Watch | None, body: Any
    ) -> web.StreamResponse:
        turn, session = (watch.turn, watch.session) if watch is not None else (None, None)
        headers = upstream_headers(request.raw_headers, session=session, turn=turn)
        try:
            answer = await self._upstream.ask(request.method, target.path, headers, body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.last_error = message = explain(error, self._upstream.base)
            if watch is not None:
                watch.refused(502, message)
            return self._refuse(api, 502, "upstream_unavailable", message)
        try:
            if watch is not None:
                watch.answering(
                    answer.status, answer.headers.get("Content-Type", ""), answer.headers.get("Content-Encoding", "")
                )
            given = client_headers(answer.raw_headers, turn=turn, own_id=request.headers.get(REQUEST_ID))
            with broken_when_closed(answer):
                return await self._answer(request, answer, given, watch)
        finally:
            if answer.content.at_eof() and answer.content.exception() is None:
                answer.release()
            else:  # the engine must not go on for nobody
                answer.close()

    async def _answer(
        self, request: web.Request, answer: aiohttp.ClientResponse, headers: CIMultiDict[str], watch: Watch | None
    ) -> web.StreamResponse:
        out = Passed(answer.status, answer.reason, headers)
        try:
            await out.prepare(request)
            while True:
                try:
                    chunk = await answer.content.readany()
                except (aiohttp.ClientError, OSError) as error:
                    await self._broken(request, answer, out, watch, error)
                    return out
                if not chunk:
                    break
                await out.write(chunk)
                if watch is not None:
                    watch.chunk(chunk)
            await out.write_eof()
        except ConnectionError:  # of the client
            if watch is not None:
                watch.abort()
            return out
        if watch is not None:
            watch.complete()
        return out

    async def _broken(
        self, request: web.Request, answer: aiohttp.ClientResponse, out: Passed, watch: Watch | None, error: Exception
    ) -> None:
        """The answer broke off: what came of it is passed on, and the agent's connection ends there too."""
        # Bytes that came in one piece with the end lie behind it, and a reader that failed gives nothing any more.
        rest = answer.content._read_nowait(-1)
        if rest:
            await out.write(rest)
            if watch is not None:
                watch.chunk(rest)
        if request.transport is not None:
            request.transport.close()
        self.last_error = "an answer of the engine broke off; see its log"
        if watch is not None:
            watch.cut(f"the engine's answer broke off ({type(error).__name__})")

    def _refuse(self, api: Api | None, status: int, kind: str, message: str) -> web.Response:
        return web.Response(
            status=status, body=body_of(api, status, kind, message), content_type="application/json",
            headers={"Server": "tidegate-gateway"},
        )  # fmt: skip
