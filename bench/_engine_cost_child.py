"""The measuring half of bench.engine_cost: runs in vLLM's environment, with the engine in this very process.

``_engine_cost_child.py MODEL PAIRS``: prints one JSON object as its last line. Times are microseconds.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TIDEGATE_ENGINE_MODE": "enforce",
    "TIDEGATE_ENGINE_RULE": "four-state",
    # One thread: others that wait for their turn on a busy machine would be counted as the engine's.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

BLOCK_TOKENS = 32
POOL_BLOCKS = 128
REQUESTS = 6
PROMPT_TOKENS = 480
OUTPUT_TOKENS = 24
RULES = 5000


class Measured:
    """An engine, and what its steps take.

    Args:
        model: directory.
    """

    def __init__(self, model: str) -> None:
        from vllm import LLM, SamplingParams

        self._parameters = SamplingParams
        self._engine: Any = LLM(
            model=model, max_model_len=1024, enforce_eager=True, block_size=BLOCK_TOKENS, max_num_seqs=8,
            num_gpu_blocks_override=POOL_BLOCKS + 1, disable_log_stats=False,
            scheduler_cls="tidegate_collectors.engine.plugin.TidegateScheduler",
        ).llm_engine  # fmt: skip
        self.scheduler: Any = self._engine.engine_core.engine_core.scheduler
        self.plane: Any = self.scheduler.tidegate
        self._rng = random.Random(1)
        self._count = 0
        self.decision_us: list[float] = []
        self.recorded_us: list[float] = []
        self.plane.decider.decide = _timed(self.plane.decider.decide, self.decision_us)
        self.plane.enforcer.decide = _timed(self.plane.enforcer.decide, self.recorded_us)

    def batch(self, *, plugin: bool) -> dict[str, list[float]]:
        """Serve some turns at once, each with a beginning that its session had before.

        Returns the time that each step took, and the CPU time of the engine's thread in it.
        """
        self.scheduler.tidegate = self.plane if plugin else None
        for number in range(REQUESTS):
            self._count += 1
            known = random.Random(number).choices(range(32, 120), k=PROMPT_TOKENS - 96)
            prompt = known + self._rng.choices(range(32, 120), k=96)
            parameters = self._parameters(
                max_tokens=OUTPUT_TOKENS, ignore_eos=True, temperature=0,
                extra_args={"session_id": f"s{number}", "kv_tool": f"tool{number % 3}"},
            )  # fmt: skip
            self._engine.add_request(f"r{self._count}", {"prompt_token_ids": prompt}, parameters)
        took: dict[str, list[float]] = {"wall_us": [], "cpu_us": []}
        while self._engine.has_unfinished_requests():
            began_ns, began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            self._engine.step()
            took["cpu_us"].append((time.thread_time_ns() - began_cpu_ns) / 1000)
            took["wall_us"].append((time.perf_counter_ns() - began_ns) / 1000)
        return took


def _timed(call: Callable[..., Any], took_us: list[float]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        began_ns = time.perf_counter_ns()
        result = call(*arguments, **named)
        took_us.append((time.perf_counter_ns() - began_ns) / 1000)
        return result

    return wrapped


def rules_alone() -> list[float]:
    """``decide()`` by itself, on inputs like those of a busy engine."""
    from tidegate_collectors.engine.decision import Inputs, PinOption, decide

    inputs = Inputs(
        rule="four-state", boundary="call", reusable_tokens=1024, unsaved_tokens=1024, p_return=0.9, p_evict=0.6,
        rebuild_s=0.06, free_value_s=0.01,
        pins=[PinOption(ttl_s=0.1 * n, lapse=1 / (n + 1), hold_s=0.002 * n) for n in range(1, 17)],
    )  # fmt: skip
    took = []
    for _ in range(RULES):
        began_ns = time.perf_counter_ns()
        decide(inputs)
        took.append((time.perf_counter_ns() - began_ns) / 1000)
    return took


def main(model: str, pairs: int) -> None:
    """Measure, and print."""
    measured = Measured(model)
    for number in range(6):  # both learn and warm up outside the measurement
        measured.batch(plugin=number % 2 == 0)
    plane, found, steps = measured.plane, [], 0
    own_us = plane.counters.own_us
    measured.decision_us.clear()
    measured.recorded_us.clear()
    for number in range(pairs):
        result: dict[str, dict[str, list[float]]] = {}
        for plugin in (True, False) if number % 2 == 0 else (False, True):
            result["with" if plugin else "without"] = measured.batch(plugin=plugin)
        steps += len(result["with"]["wall_us"])
        found.append(result)
    own_us = (plane.counters.own_us - own_us) / steps
    told = {
        "pairs": found, "own_us_a_step": own_us, "decision_us": measured.decision_us,
        "recorded_us": measured.recorded_us, "rules_us": rules_alone(), "mode": plane.mode,
    }  # fmt: skip
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
