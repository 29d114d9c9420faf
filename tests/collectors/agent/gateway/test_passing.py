"""The gateway against an upstream that misbehaves in every way: the agent gets what it would have got without us."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from typing import Any

import pytest

from tests.support.gateway_rig import (
    SSE_HEAD,
    Answer,
    Request,
    chunk,
    events,
    fetch,
    gateway_rig,
    plain,
    raw,
    stream,
)
from tidegate_collectors.records import TurnEnd, TurnFirstToken, TurnStart

CHAT = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": True}).encode()
DELTA: dict[str, Any] = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "word"}}]}
STOP: dict[str, Any] = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
WHOLE = json.dumps(
    {
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "message": {"content": "words"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}},
    }
).encode()
JSON = "Content-Type: application/json"
PIECES = events(DELTA, STOP)

ANSWERS: dict[str, tuple[Answer, str | None]] = {
    "whole": (plain(200, WHOLE, JSON, "X-Odd: a", "x-odd: b", "Server: uvicorn"), "stop"),
    "without a type, date or server": (plain(200, WHOLE), "stop"),
    "stream": (stream(PIECES), "stop"),
    "one byte a chunk": (stream([bytes([byte]) for byte in b"".join(PIECES)]), "stop"),
    "events split anywhere": (stream([b"".join(PIECES)[:37], b"".join(PIECES)[37:]]), "stop"),
    "stream with CRLF": (stream([part.replace(b"\n", b"\r\n") for part in PIECES]), "stop"),
    "stream without a length, to the end of the connection": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", *PIECES), "stop",
    ),
    "HTTP/1.0": (raw(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n", WHOLE), "stop"),
    "trailers": (raw(SSE_HEAD, *map(chunk, PIECES), b"0\r\nX-Sum: 1\r\n\r\n"), "stop"),
    "chunk extensions": (raw(SSE_HEAD, b"4;a=b\r\nda" + b"ta\r\n", chunk(b": [DONE]\n\n"), b"0\r\n\r\n"), None),
    "gzip": (plain(200, gzip.compress(WHOLE), JSON, "Content-Encoding: gzip"), "stop"),
    "gzip that is none": (plain(200, b"no gzip", JSON, "Content-Encoding: gzip"), None),
    "an encoding that is not known": (plain(200, b"\x8b\x01\x80", JSON, "Content-Encoding: br"), None),
    "rubbish as JSON": (plain(200, b"\x00\xff<html>" * 100, JSON), None),
    "rubbish as events": (stream([b"data: {{{\n\n", b"\xff\xfe\n\ndata: 1\n\n", b"data: [DONE]\n\n"]), None),
    "an empty answer": (plain(200, b"", JSON), None),
    "500": (plain(500, b'{"error": {"message": "boom", "type": "InternalServerError"}}', JSON, reason="Oh"), "error"),
    "404 in plain text": (plain(404, b"nothing here", "Content-Type: text/plain", reason="Not Found"), "error"),
    "429": (plain(429, b"{}", JSON, "Retry-After: 7", reason="Too Many"), "error"),
    "redirect": (plain(307, b"", "Location: /elsewhere", reason="Temporary Redirect"), None),
    "cookies": (plain(200, WHOLE, JSON, "Set-Cookie: a=1; Path=/", "Set-Cookie: b=2"), "stop"),
    "a huge header": (plain(200, WHOLE, JSON, "X-Huge: " + "h" * 200_000), "stop"),
    "many headers": (plain(200, WHOLE, JSON, *(f"X-{number}: {number}" for number in range(1000))), "stop"),
    "huge": (plain(200, b"x" * 30_000_000, JSON), None),
    "no reason": (raw(b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\n{}"), None),
    "cut in the stream": (raw(SSE_HEAD, chunk(PIECES[0])), "cut"),
    "cut in a chunk": (raw(SSE_HEAD, chunk(PIECES[0]), b"ff\r\ndata: half"), "cut"),
    "cut with the head": (raw(SSE_HEAD + chunk(PIECES[0]) + b"40\r\nthe last bytes"), "cut"),
    "cut before its length": (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{\"id\": 1"), "cut"),
    "reset before its length": (
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", b"half", abort=True), "cut",
    ),
    # With the head in one packet it would be no answer at all: the pause is for a busy machine.
    "rubbish for a chunk": (raw(SSE_HEAD, chunk(PIECES[0]), b"no number\r\n", pause_s=0.3), "cut"),
    "ends well but too early": (stream(PIECES[:1]), "cut"),
    "an error in the stream": (stream(events(DELTA, {"error": {"type": "Overloaded", "message": "m"}})), "error"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
async def test_the_agent_gets_the_upstreams_answer(name: str) -> None:
    """GIVEN an answer THEN status, headers, bytes and the kind of end are those of a direct request, and it is told."""
    answer, finish = ANSWERS[name]
    async with gateway_rig() as rig:
        rig.upstream.answer = answer
        direct, through = await rig.both(CHAT)
        (end,) = await rig.ended()

    assert (through.status, through.reason) == (direct.status, direct.reason)
    assert sorted(through.headers) == sorted(direct.headers)
    assert through.body == direct.body
    assert through.whole == direct.whole
    assert (end.finish_reason, end.http_status) == (finish, direct.status)
    assert rig.gateway.teller.counts.faults == 0


async def test_the_body_and_the_headers_arrive_as_they_were_sent() -> None:
    body = b'{"model":"m", "messages" :[{"role":"user","content":"\xc3\xa9 \\u00e9"}],"unknown":{"a":[1.0e3]}}'
    headers = [
        ("Authorization", "Bearer secret"), ("Accept", "*/*"), ("X-Many", "1"), ("X-Many", "2"),
        ("Connection", "keep-alive, X-Hop"), ("X-Hop", "1"), ("TE", "trailers"), ("User-Agent", "agent/1"),
    ]  # fmt: skip
    async with gateway_rig() as rig:
        seen: list[list[str]] = []
        answer = plain(200, b"{}")

        async def heard(request: Request, writer: asyncio.StreamWriter) -> None:
            seen.append(sorted(request.headers))
            await answer(request, writer)

        rig.upstream.answer = heard
        await fetch(rig.port, body, headers=headers, path="/v1/chat/completions?a=%2F&b=c%20d")
        (request,) = rig.upstream.requests

    assert request.body == body
    assert request.line == "POST /v1/chat/completions?a=%2F&b=c%20d HTTP/1.1"
    assert request.headers["host"] == f"127.0.0.1:{rig.upstream.port}"
    assert request.headers["authorization"] == "Bearer secret"
    assert seen == [
        ["accept", "authorization", "content-length", "host", "user-agent", "x-many", "x-request-id", "x-session-id"]
    ]


async def test_a_stream_is_not_held_back() -> None:
    """GIVEN an upstream that says its second word only when the client has the first THEN there is no deadlock."""
    got_first = asyncio.Event()

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(PIECES[0]))
        await got_first.wait()
        writer.write(b"".join(map(chunk, PIECES[1:])) + b"0\r\n\r\n")
        writer.close()

    async with gateway_rig() as rig:
        rig.upstream.answer = answer
        got = await fetch(rig.port, CHAT, on_data=lambda data: got_first.set())
        assert got.whole
        records = await rig.records(lambda found: any(isinstance(record, TurnEnd) for record in found))

    assert [type(record) for record in records] == [TurnStart, TurnFirstToken, TurnEnd]
    start, first, end = records
    assert isinstance(first, TurnFirstToken)
    assert start.t <= first.t == start.t + first.ttft_us <= end.t


async def test_a_head_is_passed_on_before_there_is_a_body() -> None:
    got_head = asyncio.Event()

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        await got_head.wait()
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with gateway_rig() as rig:
        rig.upstream.answer = answer
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        got_head.set()
        writer.close()


@pytest.mark.parametrize("spoken", [False, True])
async def test_a_client_that_goes_takes_its_request_with_it(spoken: bool) -> None:
    """GIVEN an upstream in the middle of an answer WHEN the client goes THEN the upstream's connection ends at once."""
    asked = asyncio.Event()

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        if spoken:
            writer.write(SSE_HEAD + chunk(PIECES[0]))
        asked.set()
        await asyncio.Event().wait()

    async with gateway_rig() as rig:
        rig.upstream.answer = answer
        client = asyncio.create_task(fetch(rig.port, CHAT))
        await asked.wait()
        await asyncio.sleep(0.1)
        client.cancel()
        async with asyncio.timeout(5):
            await rig.upstream.gone.wait()
        (end,) = await rig.ended()

    assert end.finish_reason == "abort"
    assert end.http_status == (200 if spoken else 0)


async def test_a_client_that_has_the_whole_answer_may_go_before_its_end() -> None:
    """GIVEN a client that closes at ``[DONE]`` WHEN the upstream ends its stream later THEN the turn was answered."""

    async def answer(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + b"".join(map(chunk, PIECES)))
        await asyncio.Event().wait()

    async with gateway_rig() as rig:
        rig.upstream.answer = answer
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(CHAT)
        writer.write(head + CHAT)
        async with asyncio.timeout(10):
            await reader.readuntil(b"[DONE]")
        writer.close()
        (end,) = await rig.ended()

    assert end.finish_reason == "stop"
    assert end.error is None


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/completions", {"error": {"type": "upstream_unavailable", "code": "upstream_unavailable"}}),
        ("/v1/responses", {"error": {"type": "upstream_unavailable", "code": "upstream_unavailable"}}),
        ("/v1/messages", {"type": "error", "error": {"type": "api_error"}}),
        ("/v1/models", {"error": {"type": "upstream_unavailable"}}),
    ],
)
async def test_without_an_upstream_the_agent_is_told_what_to_do(path: str, shape: dict[str, Any]) -> None:
    async with gateway_rig() as rig:
        port = rig.upstream.port
        rig.gateway.passing._upstream.base = "http://127.0.0.1:1"  # type: ignore[misc]
        got = await fetch(rig.port, CHAT, path=path)
        said = json.loads(got.body)
        text = said["error"].pop("message")

    assert port != 1 and got.status == 502
    for name, value in shape.items():
        part = said[name]
        assert part == value if isinstance(value, str) else {**part, **value} == part
    assert "cannot reach the engine at http://127.0.0.1:1" in text and "is it running?" in text


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (raw(b""), "closed the connection without an answer"),
        (raw(b"", abort=True), "closed the connection without an answer"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-"), "closed the connection without an answer"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "does not speak HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"), "does not speak HTTP"),
    ],
)
async def test_an_answer_without_a_head_is_a_502(answer: Answer, says: str) -> None:
    async with gateway_rig() as rig:
        rig.upstream.answer = answer
        got = await fetch(rig.port, CHAT)
        (end,) = await rig.ended()

    assert got.status == 502 and got.whole
    assert says in json.loads(got.body)["error"]["message"]
    assert (end.finish_reason, end.http_status) == ("error", 502)
    assert end.error is not None and says in end.error


async def test_a_connection_that_the_upstream_closed_meanwhile_is_not_the_agents_problem() -> None:
    """GIVEN an upstream that ends an idle connection just when the next request comes THEN that is sent once more."""

    async def first(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with gateway_rig() as rig:
        rig.upstream.answer = first
        assert (await fetch(rig.port, CHAT)).status == 200

        async def second(_request: Request, writer: asyncio.StreamWriter) -> None:
            if rig.upstream.connections > 1:
                await first(_request, writer)
            writer.close()

        rig.upstream.answer = second
        assert (await fetch(rig.port, CHAT)).status == 200
        assert rig.upstream.connections == 2
        # A new connection that is closed is the upstream's own doing, and is not tried again.
        rig.upstream.answer = raw(b"")
        assert (await fetch(rig.port, CHAT)).status == 502
        assert len(rig.upstream.requests) == 4


async def test_other_paths_are_passed_unchanged() -> None:
    async with gateway_rig() as rig:
        rig.upstream.answer = plain(200, b"\x00models", "Content-Type: application/x-odd")
        for method, path, body in (
            ("GET", "/v1/models?x=1", b""),
            ("PUT", "/files/a%2Fb//c", b"\x00" * 100_000),
            ("DELETE", "/", b""),
            ("GET", "/v1/chat/completions", b""),
            ("HEAD", "/health", b""),
            ("OPTIONS", "/v1/messages", b""),
        ):
            rig.upstream.requests.clear()
            direct, through = await rig.both(
                body, method=method, path=path, headers=[("X-Session-ID", "mine"), ("X-Request-Id", "own")]
            )
            assert (through.status, sorted(through.headers)) == (direct.status, sorted(direct.headers)), path
            assert (through.body, through.whole) == (direct.body, direct.whole), path
            first, second = rig.upstream.requests
            assert (first.line, first.body) == (second.line, second.body)
            if not body:  # says the same as none
                second.headers.pop("content-length", None)
            assert {**first.headers, "host": ""} == {**second.headers, "host": ""}
        assert rig.gateway.teller.counts.turns == 0
        assert rig.gateway.teller.counts.passed == 6


async def test_an_upload_without_a_length_is_streamed() -> None:
    async with gateway_rig(max_body_bytes=1000) as rig:
        got = await fetch(
            rig.port, b"y" * 50_000, path="/v1/files", headers=[("Transfer-Encoding", "chunked")]
        )  # longer than a turn may be: it is not kept
        (request,) = rig.upstream.requests

    assert got.status == 200
    assert request.body == b"y" * 50_000


async def test_a_request_beyond_the_bound_is_refused_with_the_bound() -> None:
    async with gateway_rig(max_body_bytes=1 << 20) as rig:
        got = await fetch(rig.port, b"x" * ((1 << 20) + 1))
        assert rig.upstream.requests == []

    assert got.status == 413
    assert "1 MiB" in json.loads(got.body)["error"]["message"]


async def test_a_large_request_is_passed() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 5_000_000}]}).encode()
    async with gateway_rig() as rig:
        assert (await fetch(rig.port, body)).status == 200
        assert rig.upstream.requests[0].body == body


@pytest.mark.parametrize("body", [b"", b"no json", b"[1,2]", b"\xff\xfe", b'{"messages": 5}', b"[" * 100_000])
async def test_a_request_that_is_no_json_is_the_upstreams_to_refuse(body: bytes) -> None:
    async with gateway_rig() as rig:
        rig.upstream.answer = plain(400, b'{"error": {"message": "bad"}}', JSON, reason="Bad Request")
        direct, through = await rig.both(body)
        assert rig.upstream.requests[0].body == rig.upstream.requests[1].body == body
        assert rig.gateway.teller.counts.faults == 0

    assert (through.status, through.body) == (direct.status, direct.body) == (400, b'{"error": {"message": "bad"}}')


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/session/../v1/models", 400),
        ("/session/%2e%2e/v1/models", 400),
        (f"/session/{'x' * 65}/v1/models", 400),
        ("/session//v1/models", 400),
        ("@evil.example/v1/models", 400),
        ("http://evil.example/v1/models", 400),
        ("/tidegate/other", 404),
    ],
)
async def test_targets_that_are_refused(target: str, status: int) -> None:
    async with gateway_rig() as rig:
        got = await fetch(rig.port, method="GET", path=target)
        assert got.status in (status, 404)
        assert rig.upstream.requests == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:6457", 200), ("127.0.0.1", 200), ("[::1]:6457", 200), ("agent.localhost", 200),
        ("evil.example", 421), ("evil.example:6457", 421), ("192.168.0.7", 421), ("", 421),
    ],
)  # fmt: skip
async def test_a_rebound_name_gets_nothing(host: str, status: int) -> None:
    """A page in a browser whose name was made to point at this machine sends that name."""
    async with gateway_rig() as rig:
        for path in ("/v1/chat/completions", "/v1/models", "/tidegate/health"):
            method = "POST" if "chat" in path else "GET"
            got = await fetch(rig.port, method=method, path=path, headers=[("Host", host)])
            assert got.status == status, path
            assert got.header("access-control-allow-origin") is None
        assert bool(rig.upstream.requests) == (status == 200)


async def test_an_upgrade_is_not_passed_on() -> None:
    async with gateway_rig() as rig:
        headers = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")]
        assert (await fetch(rig.port, method="GET", path="/v1/realtime", headers=headers)).status == 200
        assert "upgrade" not in rig.upstream.requests[0].headers


async def test_a_defect_of_ours_is_counted_and_harms_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """GIVEN parser, link and table that fail WHEN turns are passed THEN they pass, and one line says so."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret prompt")

    for place in ("sessions.SessionTable.find", "tap.Tap.feed", "tap.Tap.end", "telling.Teller.send"):
        caplog.clear()
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(f"tidegate_collectors.agent.gateway.{place}", broken)
            async with gateway_rig() as rig:
                rig.upstream.answer = stream(PIECES)
                for _ in range(2):
                    direct, through = await rig.both(CHAT)
                    assert (through.status, through.body, through.whole) == (200, direct.body, True), place
                assert rig.gateway.teller.counts.faults >= 2, place
        assert "secret prompt" not in caplog.text
        assert caplog.text.count("a defect") == 1, place


async def test_fifty_clients_at_once_keep_their_own_answers() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        word = request.json["messages"][0]["content"]
        parts = events(*({"choices": [{"index": 0, "delta": {"content": word}}]} for _ in range(5)), STOP)
        writer.write(SSE_HEAD)
        for part in parts:
            writer.write(chunk(part))
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")

    async with gateway_rig() as rig:
        rig.upstream.answer = answer
        asks = [rig.ask({"messages": [{"role": "user", "content": f"word-{n}"}]}) for n in range(50)]
        got = await asyncio.gather(*asks)
        ends = await rig.ended(50)

    for number, answer_ in enumerate(got):
        assert answer_.whole and answer_.body.count(f'"word-{number}"'.encode()) == 5
    assert len({end.session for end in ends}) == len({end.turn for end in ends}) == 50
