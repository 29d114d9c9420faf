"""What the gateway tells of turns and tools of all four APIs, and what it never tells."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.support.gateway_rig import Rig, events, gateway_rig, plain, stream
from tidegate_collectors.records import TurnEnd, TurnStart, TurnTool, encode

JSON = "Content-Type: application/json"
SECRET = "a-secret-that-nobody-may-tell"
CHAT = "/v1/chat/completions"


def messages(*turns: str) -> list[dict[str, Any]]:
    """A conversation of the user and the assistant in turn."""
    return [{"role": "user" if place % 2 == 0 else "assistant", "content": text} for place, text in enumerate(turns)]


def chat(*turns: str, **more: Any) -> dict[str, Any]:
    """A request of a chat."""
    return {"model": "m1", "messages": messages(*turns), **more}


WHOLE: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "chat": (
        CHAT, chat("hello"),
        {
            "id": "chatcmpl-1",
            "choices": [{"index": 0, "message": {"content": SECRET}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}},
        },
        {"prompt_tokens": 12, "cached_tokens": 8, "output_tokens": 3, "finish_reason": "length", "tools": []},
    ),
    "chat that tells nothing of the cache": (
        CHAT, chat("hello"),
        {
            "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 12, "completion_tokens": 3},
        },
        {"prompt_tokens": 12, "cached_tokens": None},
    ),
    "completions": (
        "/v1/completions", {"model": "m1", "prompt": SECRET},
        {"choices": [{"index": 0, "text": SECRET, "finish_reason": "stop"}], "usage": {"prompt_tokens": 5}},
        {"prompt_tokens": 5, "output_tokens": None, "finish_reason": "stop"},
    ),
    "responses": (
        "/v1/responses", {"model": "m1", "input": SECRET},
        {
            "id": "resp_ab12", "status": "completed",
            "output": [{"type": "function_call", "call_id": "x1", "name": "grep", "arguments": SECRET}],
            "usage": {"input_tokens": 20, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 16}},
        },
        {"prompt_tokens": 20, "cached_tokens": 16, "output_tokens": 4, "tools": ["grep"], "req": "ab12_0"},
    ),
    "messages": (
        "/v1/messages", {"model": "m1", "max_tokens": 9, "messages": messages(SECRET)},
        {
            "id": "msg_1", "stop_reason": "tool_use",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": SECRET}}],
            "usage": {
                "input_tokens": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 7, "output_tokens": 5
            },
        },
        {
            "prompt_tokens": 50, "cached_tokens": 40, "output_tokens": 5, "finish_reason": "tool_calls",
            "tools": ["bash"],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
async def test_a_whole_answer_of_each_api(name: str) -> None:
    path, asked, answer, told = WHOLE[name]
    async with gateway_rig() as rig:
        rig.upstream.answer = plain(200, json.dumps(answer).encode(), JSON)
        await rig.ask(asked, path=path)
        (end,) = await rig.ended()
        start = next(record for record in rig.sink.records if isinstance(record, TurnStart))

    assert {key: getattr(end, key) for key in told} == told
    assert (start.turn, start.session, start.by, start.model) == (end.turn, end.session, "gateway", "m1")
    assert (end.http_status, end.by) == (200, "gateway")


STREAMS: dict[str, tuple[str, list[bytes], dict[str, Any]]] = {
    "chat": (
        CHAT,
        events(
            {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "x1", "function": {"name": "gr"}}]}}]},
            {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": SECRET}}]}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
        ),
        {"finish_reason": "tool_calls", "tools": ["gr"], "prompt_tokens": 9, "output_tokens": 2},
    ),
    "chat without usage": (
        CHAT,
        events({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}),
        {"finish_reason": "stop", "prompt_tokens": None, "output_tokens": None},
    ),
    "responses": (
        "/v1/responses",
        events(
            {"type": "response.created", "response": {"id": "resp_7", "status": "in_progress"}},
            {"type": "response.output_text.delta", "delta": SECRET},
            {
                "type": "response.completed",
                "response": {"id": "resp_7", "status": "completed", "usage": {"input_tokens": 6, "output_tokens": 1}},
            },
            done=False,
        ),
        {"finish_reason": "stop", "prompt_tokens": 6, "req": "7_0"},
    ),
    "messages": (
        "/v1/messages",
        events(
            {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 4, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "ls"}},
            {"type": "content_block_delta", "index": 0, "delta": {"partial_json": SECRET}},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 8}},
            {"type": "message_stop"},
            done=False,
        ),
        {"finish_reason": "tool_calls", "tools": ["ls"], "prompt_tokens": 4, "output_tokens": 8, "cached_tokens": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
async def test_a_streamed_answer_of_each_api(name: str) -> None:
    path, pieces, told = STREAMS[name]
    async with gateway_rig() as rig:
        rig.upstream.answer = stream(pieces)
        await rig.ask({**chat("hello", stream=True), "input": "x"}, path=path)
        (end,) = await rig.ended()

    assert {key: getattr(end, key) for key in told} == told
    assert end.error is None


OVERFLOWS = [
    b'{"object":"error","message":"This model\'s maximum context length is 1024 tokens. However, you requested 2000"}',
    b'{"error":{"message":"The decoder prompt (length 20) is longer than the maximum model length of 10","code":400}}',
    b'{"error":{"message":"Input length (2000) exceeds model\'s maximum context length (1024)."}}',
    b'{"error":{"message":"too long","code":"context_length_exceeded"}}',
    b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 2000 tokens > 1024"}}',
]


@pytest.mark.parametrize("body", OVERFLOWS)
async def test_a_prompt_that_does_not_fit_has_its_own_reason(body: bytes) -> None:
    async with gateway_rig() as rig:
        rig.upstream.answer = plain(400, body, JSON, reason="Bad Request")
        got = await rig.ask(chat("hello"))
        (end,) = await rig.ended()

    assert (got.status, got.body) == (400, body)
    assert (end.finish_reason, end.http_status) == ("overflow_400", 400)


async def test_another_400_is_an_error_like_others() -> None:
    async with gateway_rig() as rig:
        rig.upstream.answer = plain(400, b'{"error":{"message":"temperature","type":"BadRequestError"}}', JSON)
        await rig.ask(chat("hello"))
        (end,) = await rig.ended()

    assert (end.finish_reason, end.error) == ("error", "HTTP 400: BadRequestError")


def _asks_for(*tools: str) -> dict[str, Any]:
    calls = [
        {"id": f"id-{tool}", "type": "function", "function": {"name": tool, "arguments": f'{{"a": "{SECRET}"}}'}}
        for tool in tools
    ]
    return {"choices": [{"index": 0, "message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}


async def test_tools_begin_with_the_answer_and_end_with_the_request_that_brings_their_results() -> None:
    async with gateway_rig() as rig:
        rig.upstream.answer = plain(200, json.dumps(_asks_for("grep", "pytest")).encode(), JSON)
        first = chat("do it", session_id="s1")
        await rig.ask(first)
        await rig.ended()
        rig.upstream.answer = plain(200, b'{"choices": []}', JSON)
        result = {"role": "tool", "tool_call_id": "id-grep", "content": SECRET}
        await rig.ask({**first, "messages": [*first["messages"], result]})
        ends = await rig.ended(2)
        tools = [record for record in rig.sink.records if isinstance(record, TurnTool)]

    assert [(tool.agent_call_id, tool.agent_tool, tool.ended_us is None) for tool in tools] == [
        ("id-grep", "grep", True), ("id-pytest", "pytest", True), ("id-grep", "grep", False),
    ]  # fmt: skip
    last = tools[-1]
    assert last.turn == ends[0].turn and last.result_chars == len(SECRET)
    assert last.ended_us is not None and last.ended_us >= last.began_us == ends[0].t


async def test_a_result_that_says_it_failed() -> None:
    asks = {"content": [{"type": "tool_use", "id": "t1", "name": "bash", "input": {}}], "stop_reason": "tool_use"}
    async with gateway_rig() as rig:
        rig.upstream.answer = plain(200, json.dumps(asks).encode(), JSON)
        await rig.ask({"model": "m", "messages": messages("x")}, path="/session/s1/v1/messages")
        await rig.ended()
        block = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no"}
        body = {"model": "m", "messages": [*messages("x", "y"), {"role": "user", "content": [block]}]}
        await rig.ask(body, path="/session/s1/v1/messages")
        await rig.ended(2)
        tools = [record for record in rig.sink.records if isinstance(record, TurnTool)]

    assert [(tool.failed, tool.result_chars) for tool in tools if tool.ended_us is not None] == [(True, 2)]


async def _session(rig: Rig, value: dict[str, Any], **how: Any) -> tuple[str, str]:
    before = len([record for record in rig.sink.records if isinstance(record, TurnStart)])
    await rig.ask(value, **how)
    await rig.records(lambda found: len([r for r in found if isinstance(r, TurnEnd)]) > before)
    start = [record for record in rig.sink.records if isinstance(record, TurnStart)][-1]
    assert start.session is not None and start.session_from is not None
    assert rig.upstream.requests[-1].headers["x-session-id"] == start.session
    assert rig.upstream.requests[-1].headers["x-request-id"] == start.turn
    return start.session, start.session_from


async def test_whose_turn_it_is() -> None:
    header = [("X-Session-ID", "from-header")]
    async with gateway_rig() as rig:
        assert await _session(rig, chat("a"), path=f"/session/mine{CHAT}", headers=header) == ("mine", "launcher")
        assert await _session(rig, chat("a", session_id="theirs"), headers=header) == ("theirs", "body")
        assert await _session(rig, chat("a"), headers=header) == ("from-header", "header")
        name, how = await _session(rig, chat("a"))
        assert how == "prefix" and name.startswith("gw-")


async def test_a_conversation_without_a_name_goes_on_as_one_and_others_are_others() -> None:
    async with gateway_rig() as rig:
        first, _ = await _session(rig, chat("begin"))
        assert (await _session(rig, chat("begin", "answer", "more")))[0] == first
        # The same beginning again is another client's: the first one has gone on.
        second, _ = await _session(rig, chat("begin"))
        assert second != first
        assert (await _session(rig, chat("begin", "answer", "more", "b", "c")))[0] == first
        # Another key never is the same conversation.
        third, _ = await _session(rig, chat("begin", "answer", "more"), headers=[("Authorization", "Bearer other")])
        assert third not in (first, second)


@pytest.mark.parametrize("name", ["x" * 10_000, "../../etc", "a\u202eb", "<script>", " ", "é" * 200])
async def test_hostile_session_names_are_made_safe_and_short(name: str) -> None:
    async with gateway_rig() as rig:
        session, _ = await _session(rig, chat("a", session_id=name))

    assert 0 < len(session) <= 64
    assert session.isascii() and session.isprintable() and "/" not in session and "<" not in session


async def test_prompts_arguments_results_and_keys_are_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    headers = [("Authorization", f"Bearer {SECRET}"), ("X-Api-Key", SECRET)]
    async with gateway_rig() as rig:
        for answer in (
            plain(200, json.dumps(_asks_for("grep")).encode(), JSON),
            plain(500, f'{{"error": {{"message": "{SECRET}", "type": "X"}}}}'.encode(), JSON),
            plain(400, f"This model's maximum context length is {SECRET}".encode(), JSON),
            stream(events({"error": {"message": SECRET, "type": "Y"}})),
        ):
            rig.upstream.answer = answer
            tool = {"role": "tool", "tool_call_id": "id-grep", "content": SECRET}
            await rig.ask({"model": "m", "messages": [*messages(SECRET), tool], "user": SECRET}, headers=headers)
        await rig.ended(4)
        told = b"\n".join(encode(record) for record in rig.sink.records)
        health = json.dumps(await rig.gateway.health())

    assert SECRET.encode() not in told
    assert SECRET not in health
    assert SECRET not in "\n".join(record.getMessage() for record in caplog.records if "tidegate" in record.name)


async def test_a_client_gets_its_own_request_id_back() -> None:
    async with gateway_rig() as rig:

        async def echoing(request: Any, writer: Any) -> None:
            await plain(200, b"{}", JSON, f"X-Request-Id: {request.headers['x-request-id']}")(request, writer)

        rig.upstream.answer = echoing
        got = await rig.ask(chat("a"), headers=[("X-Request-Id", "the-clients-own")])

    assert rig.upstream.requests[0].headers["x-request-id"].startswith("tg-")
    assert got.header("x-request-id") == "the-clients-own"
