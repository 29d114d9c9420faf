"""Tokens that a session's KV cache must be computed anew for, under lru, ttl and four-state: real engines, paired.

Five agents at once, each with a conversation of its own that grows by a tool's result at each turn, ask a vLLM whose KV
pool holds little more than half of what they have together. Between turns their tools run: here they sleep, for times
drawn for each tool from a distribution of its own (from 40 ms for a search to 700 ms for a test suite, in the median).
The model is the deeper of the two that can be made here, so that a rebuild costs more than a copy.
The request names the tool (``kv_tool``); nothing tells the engine which turn of a session is the last.

Three engines are started once, one for each rule, the plugin in mode enforce; one works at a time. That of four-state
has a host tier as large as two pools, into which it may OFFLOAD; the two others have no use for one. With ``--full`` a
fourth has four-state and no host tier: what the rule does with the same memory as lru. A repeat plays the same
conversations with the same tool times on each, in random order, each time with an empty prefix cache. What the plugin
has learnt about tools stays; the first repeat, in which it learns, is not counted.

Recomputed tokens are the client's: whole blocks of the previous prompt less the tokens that the answer says were
cached. Value: their mean over sessions with four-state; reference: with lru. Intervals are 95 % bootstrap intervals
over repeats.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench._engines import counter, reset_prefix_cache, running_engines
from bench._report import Report, arguments, percentile, progress
from bench._stack import BenchError, fail
from tidegate.demo import chat
from tidegate.demo.engine import BLOCK_TOKENS, MODEL_NAME, Engine
from tidegate.demo.tiny_model import DEEP

ARMS = {"lru": "lru", "ttl": "ttl", "four-state": "four-state"}
"""Rule by the arm's name."""
DEVICE_ONLY = "four-state, device only"
SESSIONS = 5
TURNS = 5
POOL_BLOCKS = 112
MAX_TOKENS = 2560
HOST_TOKENS = 2 * POOL_BLOCKS * BLOCK_TOKENS

_TOOLS = {"search": (0.04, 0.4), "git": (0.08, 0.4), "build": (0.4, 0.5), "test": (0.7, 0.5)}
"""Median in seconds and sigma of a log-normal distribution, by tool: few tools are slow, and those vary."""
_WEIGHTS = (4, 3, 2, 2)
_MAX_GAP_S = 2.5
_BOOTSTRAPS = 10_000


@dataclass(slots=True)
class Arm:
    """What one rule did in one repeat. Tokens are sums over sessions; times of turns after a tool."""

    recomputed_tokens: int = 0
    reusable_tokens: int = 0
    preemptions: float = 0
    seconds: float = 0
    ttft_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """A turn: what the conversation gets before it, and the tool that runs after it."""

    text: str
    tool: str
    gap_s: float


def conversation(rng: random.Random) -> list[Step]:
    """The steps of one session, the same for every rule."""
    steps = []
    for number in range(TURNS):
        letters = rng.randrange(600, 1000) if number == 0 else rng.randrange(80, 240)
        (tool,) = rng.choices(list(_TOOLS), _WEIGHTS)
        median_s, sigma = _TOOLS[tool]
        gap_s = min(_MAX_GAP_S, rng.lognormvariate(np.log(median_s), sigma))
        steps.append(Step("".join(rng.choices("abcdefghijklmnop ", k=letters)), tool, gap_s))
    return steps


def play(engine: Engine, session: str, steps: Sequence[Step], bias: dict[str, float]) -> Arm:
    """One session on one engine."""
    asking = chat.Engine(f"{engine.url}/v1", {"X-Session-ID": session})
    messages: list[chat.Message] = []
    arm, before_tokens = Arm(), 0
    for number, step in enumerate(steps):
        messages.append({"role": "tool" if number else "user", "content": step.text})
        body: dict[str, Any] = {
            "model": MODEL_NAME, "messages": messages, "max_tokens": 12, "temperature": 0, "logit_bias": bias,
            "vllm_xargs": {"kv_tool": step.tool},
        }  # fmt: skip
        answer = asking.ask(body)
        if number:
            arm.reusable_tokens += before_tokens
            arm.recomputed_tokens += max(0, before_tokens - answer.cached_tokens)
            arm.ttft_s.append(answer.ttft_s)
        before_tokens = answer.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
        messages.append({"role": "assistant", "content": answer.text})
        if number < len(steps) - 1:
            time.sleep(step.gap_s)
    return arm


def play_all(engine: Engine, name: str, conversations: Sequence[Sequence[Step]], bias: dict[str, float]) -> Arm:
    """All sessions at once, on an engine with an empty prefix cache."""
    reset_prefix_cache(engine)
    preemptions = counter(engine, "vllm:num_preemptions_total")
    began = time.monotonic()
    with ThreadPoolExecutor(len(conversations)) as pool:
        jobs = [
            pool.submit(play, engine, f"{name}-{number}", steps, bias) for number, steps in enumerate(conversations)
        ]
        arms = [job.result() for job in jobs]
    return Arm(
        recomputed_tokens=sum(arm.recomputed_tokens for arm in arms),
        reusable_tokens=sum(arm.reusable_tokens for arm in arms),
        preemptions=counter(engine, "vllm:num_preemptions_total") - preemptions,
        seconds=time.monotonic() - began,
        ttft_s=[ttft_s for arm in arms for ttft_s in arm.ttft_s],
    )


def warm_up(engine: Engine, bias: dict[str, float]) -> None:
    """Prompts of several lengths, one at a time: by them the plugin measures what a rebuild costs."""
    rng = random.Random(0)
    for number in range(16):
        play(engine, f"warm-{number}", [Step("".join(rng.choices("qrstuvw", k=200 + 120 * number)), "", 0.0)], bias)


def interval(values: np.ndarray[Any, Any], of: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> list[float]:
    """95 % bootstrap interval over the first axis; ``of`` gets resamples (resamples, repeats, ...)."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(values), size=(_BOOTSTRAPS, len(values)))
    low, high = np.percentile(of(values[picks]), [2.5, 97.5])
    return [float(low), float(high)]


def report(repeats: Sequence[dict[str, Arm]]) -> Report:
    """The report of all counted repeats."""
    arms = list(repeats[0])
    details: dict[str, Any] = {
        "sessions": SESSIONS,
        "turns": TURNS,
        "pool_blocks": POOL_BLOCKS,
        "host_tokens": HOST_TOKENS,
        "goal_ratio": 0.5,
    }
    lost = {rule: np.array([repeat[rule].recomputed_tokens / SESSIONS for repeat in repeats]) for rule in arms}
    ttft = {rule: np.array([statistics.fmean(repeat[rule].ttft_s) * 1000 for repeat in repeats]) for rule in arms}
    for rule in arms:
        all_ttft_s = [ttft_s for repeat in repeats for ttft_s in repeat[rule].ttft_s]
        details[rule] = {
            "recomputed_tokens_a_session": float(lost[rule].mean()),
            "recomputed_interval": interval(lost[rule], lambda sample: sample.mean(axis=1)),
            "recomputed_share": float(
                sum(repeat[rule].recomputed_tokens for repeat in repeats)
                / sum(repeat[rule].reusable_tokens for repeat in repeats)
            ),
            "ttft_after_tool_ms": {
                "mean": float(ttft[rule].mean()), "mean_interval": interval(ttft[rule], lambda s: s.mean(axis=1)),
                "p50": percentile(all_ttft_s, 50) * 1000, "p95": percentile(all_ttft_s, 95) * 1000,
            },
            "preemptions": sum(repeat[rule].preemptions for repeat in repeats),
            "seconds_a_repeat": statistics.fmean(repeat[rule].seconds for repeat in repeats),
        }  # fmt: skip
        if rule != "lru":
            pairs = np.stack([lost[rule], lost["lru"]], axis=1)
            details[rule]["ratio_interval"] = interval(pairs, lambda s: s[:, :, 0].sum(1) / s[:, :, 1].sum(1))
            details[rule]["ratio_to_lru"] = float(lost[rule].sum() / lost["lru"].sum())
            details[rule]["ttft_less_ms_interval"] = interval(ttft["lru"] - ttft[rule], lambda s: s.mean(axis=1))
    return Report(
        bench="engine_policies",
        value=float(lost["four-state"].mean()),
        unit="recomputed tokens a session",
        reference_name="vLLM's LRU, the same conversations",
        reference_value=float(lost["lru"].mean()),
        runs=len(repeats),
        details=details,
    )


def measure(repeats: int, arms: Mapping[str, str]) -> Report:
    """Play it so many times, and once more before."""
    settings = {arm: {"mode": "enforce", "rule": rule, "name": arm} for arm, rule in arms.items()}
    order = random.Random(1)
    done: list[dict[str, Arm]] = []
    with running_engines(
        settings,
        pool_blocks=POOL_BLOCKS,
        max_tokens=MAX_TOKENS,
        size=DEEP,
        host_bytes={"four-state": HOST_TOKENS * DEEP.kv_bytes_per_token},
    ) as engines:
        (letter,) = chat.tokens_of(engines["lru"].url, ["a"])
        # One letter for ever: whole characters, so that the first token of an answer is seen when it comes.
        bias = {str(letter): 100.0}
        for engine in engines.values():
            warm_up(engine, bias)
        for number in range(repeats + 1):
            conversations = [conversation(random.Random(1000 * number + session)) for session in range(SESSIONS)]
            repeat = {
                rule: play_all(engines[rule], f"r{number}", conversations, bias)
                for rule in order.sample(list(arms), len(arms))
            }
            lost = ", ".join(f"{rule} {repeat[rule].recomputed_tokens / SESSIONS:.0f}" for rule in arms)
            progress(f"repeat {number}/{repeats}: recomputed tokens a session: {lost}")
            if number:
                done.append(repeat)
    return report(done)


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("engine_policies", __doc__).full
    try:
        result = measure(40, ARMS | {DEVICE_ONLY: "four-state"}) if full else measure(10, ARMS)
    except (BenchError, chat.ChatError) as error:
        return fail("engine_policies", BenchError(str(error)))
    print(result.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
