"""The whole collector on real sockets, HTTP and the link: engines that come, go, restart and answer rubbish."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.record_sink import RecordSink
from tests.support.stock_engine import (
    BLOCK_TOKENS,
    METRICS,
    POOL_BLOCKS,
    PROMPT_TOKENS,
    Answers,
    Publisher,
    metrics_server,
    stored,
)
from tests.support.stock_rig import last_of, of, sampled, settled, until, watching
from tidegate_collectors.records import Capability, EngineEnd, EngineSample, EngineStart, Note


async def test_an_engine_is_introduced_with_what_cannot_be_known(sink: RecordSink) -> None:
    with metrics_server(Answers()) as url:
        async with watching(sink, url):
            sample = await sampled(sink)

    (start,) = of(sink.records, EngineStart)
    assert (start.engine, start.version, start.model, start.plugin) == ("stock", "0.32.0", "tiny", False)
    assert (start.block_tokens, start.pool_blocks, start.mode, start.rule) == (BLOCK_TOKENS, POOL_BLOCKS, "off", "")
    unable = {item.name: item.reason for item in of(sink.records, Capability) if not item.available}
    assert set(unable) == {
        "engine.residency", "engine.turns", "engine.decisions", "engine.pin", "engine.drop", "engine.offload",
    }  # fmt: skip
    assert "--kv-events" in unable["engine.residency"] and "docs/engine.md" in unable["engine.pin"]
    assert (sample.blocks_total, sample.blocks_used, sample.prompt_tokens) == (POOL_BLOCKS, 0, PROMPT_TOKENS)
    unknown = (sample.blocks_active, sample.blocks_pinned, sample.blocks_cached, sample.blocks_free, sample.sessions)
    assert unknown == (None,) * 5
    assert not of(sink.records, EngineEnd)  # we go, it stays


async def test_a_gauge_and_a_missing_metric(sink: RecordSink) -> None:
    answers = Answers()
    answers.set("vllm:kv_cache_usage_perc", 0.25)
    answers.metrics = "\n".join(line for line in answers.metrics.splitlines() if "preemptions_total" not in line) + "\n"
    with metrics_server(answers) as url:
        async with watching(sink, url):
            sample = await sampled(sink)

    assert (sample.blocks_used, sample.preemptions, sample.missing) == (16, None, ["vllm:num_preemptions_total"])


async def test_an_engine_that_is_not_there_yet_is_waited_for(sink: RecordSink) -> None:
    with metrics_server(Answers()) as url:
        pass
    port = int(url.rpartition(":")[2])
    async with watching(sink, url):
        await until(sink, lambda found: bool(of(found, Note)))
        assert "nobody answers there" in of(sink.records, Note)[0].text
        with metrics_server(Answers(), port):
            await sampled(sink)

    assert not of(sink.records, EngineEnd)
    assert len(of(sink.records, Note)) == 1  # said once, not at each attempt


async def test_an_engine_that_goes_has_ended_and_comes_back_as_another(sink: RecordSink) -> None:
    with metrics_server(Answers()) as url:
        async with watching(sink, url):
            await sampled(sink)
    port = int(url.rpartition(":")[2])
    with metrics_server(Answers(), port) as url:
        stop = watching(sink, url)
        await stop.__aenter__()
        await sampled(sink)
    await until(sink, lambda found: bool(of(found, EngineEnd)))
    assert of(sink.records, EngineEnd)[0].clean is False

    later = Answers()
    later.metrics = later.metrics.replace('block_size="32"', 'block_size="64"').replace('="65"', '="33"')
    with metrics_server(later, port):
        await until(sink, lambda found: len(of(found, EngineStart)) == 3)
        await stop.__aexit__(None, None, None)
    again = of(sink.records, EngineStart)[-1]
    assert (again.block_tokens, again.pool_blocks) == (64, 32)


async def test_a_restart_between_two_looks_is_seen(sink: RecordSink) -> None:
    answers = Answers()
    with metrics_server(answers) as url:
        async with watching(sink, url):
            await sampled(sink)
            answers.set("vllm:prompt_tokens_total", 12)
            await until(sink, lambda found: len(of(found, EngineStart)) == 2)
            await sampled(sink, 3)

    kinds = [type(record) for record in sink.records if isinstance(record, EngineStart | EngineEnd)]
    assert kinds == [EngineStart, EngineEnd, EngineStart]
    assert "prompt tokens fell from 5400 to 12" in of(sink.records, Note)[-1].text


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>hello</html>", "/metrics"),
        (200, b"\xff\xfe\x00" * 1000, "/metrics"),
        (200, b"up 1\n", "nothing of vLLM's"),
        (200, b"a 1\n" * (5 << 20), "more than 16 MiB"),
        (307, b"", "leads elsewhere (307)"),
        (401, b"", "answered with 401"),
        (500, b"vllm:num_requests_running 1\n", "answered with 500"),
    ],
)
async def test_answers_that_are_none(sink: RecordSink, status: int, body: bytes, said: str) -> None:
    answers = Answers()
    with metrics_server(answers) as url:
        async with watching(sink, url):
            await sampled(sink)
            answers.status, answers.body, answers.location = status, body, f"{url}/secret"
            await until(sink, lambda found: bool(of(found, Note)))
            await asyncio.sleep(0.3)
            assert "/secret" not in answers.asked
            answers.status, answers.body, answers.location = 200, None, ""
            await sampled(sink)

    (note,) = of(sink.records, Note)
    assert said in note.text
    assert len(of(sink.records, EngineStart)) == 1 and not of(sink.records, EngineEnd)


async def test_rubbish_beside_the_metrics_leaves_version_and_model_unknown(sink: RecordSink) -> None:
    answers = Answers()
    answers.version, answers.models = b"[" * 100_000, b'{"data":[]}'
    with metrics_server(answers) as url:
        async with watching(sink, url):
            await sampled(sink)

    (start,) = of(sink.records, EngineStart)
    assert (start.version, start.model) == ("", "")


async def test_another_run_is_told_everything_again(place: Path, sink: RecordSink) -> None:
    with metrics_server(Answers()) as url, Publisher(place) as publisher:
        async with watching(sink, url, publisher):
            await sampled(sink)
            publisher.publish(stored([1, 2], "a"))
            await settled(sink, "a", device_cached=2)
            sink.close()
            with RecordSink(sink.path, run="run-2") as second:
                await until(second, lambda found: bool(of(found, EngineStart)) and bool(last_of(found, "a")))
                assert last_of(second.records, "a") == {"device_cached": 2}


def test_the_command_runs_without_root_and_ends_with_a_signal(sink: RecordSink, place: Path) -> None:
    with metrics_server(Answers()) as url:
        command = [sys.executable, "-m", "tidegate_collectors", "collect", "--engine", url, "--interval", "0.2"]
        process = subprocess.Popen(
            [*command, "--link", str(sink.path)], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TIDEGATE_RUNTIME_DIR": str(place)},
        )  # fmt: skip
        try:
            sink.wait_for(lambda found: len(of(found, EngineSample)) >= 2, 20.0)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=20)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert process.returncode == 0, said
    assert f"watching engine vllm-{os.uname().nodename}-" in said
    assert sink.hellos[0]["role"] == "engine"


def test_the_text_that_tests_serve_is_a_real_one() -> None:
    assert len(METRICS) > 50_000 and "vllm:kv_cache_usage_perc" in METRICS
