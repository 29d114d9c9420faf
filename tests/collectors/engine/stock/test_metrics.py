"""The text of vLLM's metrics, real and damaged."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stock_engine import METRICS
from tidegate_collectors.engine.stock.metrics import ALIASES, MetricsError, read, restarted


def without(pattern: str) -> str:
    return "\n".join(line for line in METRICS.splitlines() if not re.search(pattern, line)) + "\n"


def changed(name: str, value: float, text: str = METRICS) -> str:
    found, count = re.subn(rf"(?m)^({name}\{{.*\}}) \S+$", rf"\1 {value}", text)
    assert count
    return found


def test_a_real_text_is_read() -> None:
    reading = read(METRICS)

    assert reading.counts == {
        "running": 0, "waiting": 0, "prefix_queries_tokens": 5400, "prefix_hits_tokens": 2592,
        "external_queries_tokens": 0, "external_hits_tokens": 0, "preemptions": 0, "prompt_tokens": 5400,
        "output_tokens": 144,
    }  # fmt: skip
    assert (reading.block_tokens, reading.pool_blocks, reading.cores) == (32, 64, 1)
    assert (reading.usage, reading.used_blocks) == (0.0, 0)
    assert reading.waiting_by_reason == {"capacity": 0, "deferred": 0}
    assert reading.missing == ()


def test_the_share_of_use_is_of_the_blocks_that_requests_can_have() -> None:
    reading = read(changed("vllm:kv_cache_usage_perc", 0.109375))

    assert reading.used_blocks == 7


@pytest.mark.parametrize(
    ("new", "old", "field"),
    [
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "usage"),
        ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total", "prefix_queries_tokens"),
        ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "prefix_hits_tokens"),
    ],
)
def test_a_name_that_changed_is_found_by_its_old_name(new: str, old: str, field: str) -> None:
    text = changed(new, 0.5 if field == "usage" else 77)
    text = re.sub(rf"(?m)^((?:# \w+ )?){re.escape(new)}(?=[ {{])", rf"\1{old}", text)
    assert old in ALIASES[field]

    reading = read(text)
    assert reading.missing == ()
    assert (reading.usage if field == "usage" else reading.counts[field]) == (0.5 if field == "usage" else 77)


def test_what_is_not_there_is_unknown_and_said_to_be_missing() -> None:
    reading = read(without("kv_cache_usage_perc|external_prefix|by_reason|cache_config_info"))

    assert set(reading.missing) == {
        "vllm:kv_cache_usage_perc", "vllm:external_prefix_cache_queries_total",
        "vllm:external_prefix_cache_hits_total", "vllm:num_requests_waiting_by_reason", "vllm:cache_config_info",
    }  # fmt: skip
    assert reading.usage is None and reading.used_blocks is None and reading.pool_blocks is None
    assert "external_hits_tokens" not in reading.counts and reading.counts["prompt_tokens"] == 5400


def test_several_cores_are_added_up() -> None:
    second = [line.replace('engine="0"', 'engine="1"') for line in METRICS.splitlines() if 'engine="0"' in line]
    text = changed("vllm:kv_cache_usage_perc", 0.5) + "\n".join(second) + "\n"

    reading = read(text)
    assert (reading.cores, reading.pool_blocks, reading.counts["prompt_tokens"]) == (2, 128, 10_800)
    assert reading.used_blocks == 32


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300"])
def test_a_value_that_cannot_be_is_no_value(value: str) -> None:
    text = re.sub(r"(?m)^(vllm:kv_cache_usage_perc\{.*\}) \S+$", rf"\1 {value}", METRICS)

    assert "vllm:kv_cache_usage_perc" in read(text).missing


@pytest.mark.parametrize(
    "text", ["", "<html><body>It works!</body></html>", "up 1\n", "vllm:a{ 1\n", '{"a": 1}', "a{b=\n" * 10, "\x00\xff"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(MetricsError):
        read(text)


@given(st.text(max_size=200), st.integers(0, 5000), st.integers(0, 200))
def test_damage_never_surprises(rubbish: str, at: int, cut: int) -> None:
    text = METRICS[:at] + rubbish + METRICS[at + cut : 6000]
    try:
        reading = read(text)
    except MetricsError:
        return
    assert all(0 <= value < 1 << 53 for value in reading.counts.values())


def test_reasons_are_words_and_few() -> None:
    many = "".join(f'vllm:num_requests_waiting_by_reason{{reason="<b>{n}"}} 1\n' for n in range(100))

    assert read(METRICS + many).waiting_by_reason == {"capacity": 0, "deferred": 0}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("vllm:prompt_tokens_total", 5399, "prompt tokens fell from 5400 to 5399"),
        ("vllm:prompt_tokens_total", 5400, ""),
        ("vllm:prompt_tokens_total", 9999, ""),
    ],
)
def test_a_counter_that_falls_is_a_restart(name: str, value: float, why: str) -> None:
    found = restarted(read(METRICS), read(changed(name, value)))

    assert why in found and bool(found) == bool(why)


def test_another_start_or_another_pool_is_a_restart() -> None:
    before = read(METRICS)

    later = re.sub(r"(?m)^process_start_time_seconds \S+$", "process_start_time_seconds 1.9e+09", METRICS)
    assert restarted(before, read(later)) == "it began at another time"
    assert "64 tokens" in restarted(before, read(METRICS.replace('block_size="32",cache', 'block_size="64",cache')))
    assert "129 blocks" in restarted(before, read(METRICS.replace('num_gpu_blocks="65"', 'num_gpu_blocks="130"')))


def test_without_the_start_of_the_process_that_of_the_counters_counts() -> None:
    before = read(without("^process_start_time_seconds"))
    assert before.born_s == pytest.approx(1796127210.655)

    now = changed("vllm:prompt_tokens_created", 1.9e9, changed("vllm:generation_tokens_created", 1.9e9))
    assert restarted(before, read(re.sub(r"(?m)^process_start_time_seconds.*\n", "", now)))
