"""What the plugin costs an engine: microseconds a decision, and how much longer a step takes with it.

A vLLM with the tiny model runs in one process (so that nothing but the engine is measured), the plugin in mode enforce
with rule four-state. A decision is everything from the engine as it stands to the action: the inputs (predictions,
pool, queue, pins to choose from) and the rule. Value: its median.

Steps are paired: six turns at once are served with the plugin's hooks at work and with the hooks returning at once, in
alternating order; the value of a pair is the ratio of its mean steps, those in which turns begin and end among them.
``cpu`` is the CPU time of the engine's thread, which a busy machine disturbs less than the wall clock.
``own_us_a_step`` is the plugin's own account.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from bench import _engine_cost_child as child
from bench._report import Report, arguments, percentile, progress
from bench._stack import BenchError, fail
from tidegate.demo import engine
from tidegate.errors import TidegateError

GOAL_US = 20.0
GOAL_STEP_PERCENT = 1.0


def measure(pairs: int) -> dict[str, Any]:
    """What the child found.

    Raises:
        BenchError: there is no vLLM, or it failed.
    """
    try:
        python = engine.find_python()
        model = engine.make_model(python, engine.cache_directory())
    except TidegateError as error:
        raise BenchError(str(error)) from None
    progress("starting an engine in one process, about 15 s, and measuring")
    done = subprocess.run(
        [python, child.__file__, model, str(pairs)], env=os.environ | engine.QUIET, capture_output=True, text=True,
        errors="replace", timeout=900, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"the engine failed: {done.stderr.strip()[-1500:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if found["mode"] != "enforce":
        raise BenchError(f"the plugin fell back to mode {found['mode']}: {done.stderr.strip()[-1500:]}")
    return found


def report(found: dict[str, Any]) -> Report:
    """The report of what the child found."""
    decisions, recorded, rules = found["decision_us"], found["recorded_us"], found["rules_us"]
    details: dict[str, Any] = {"pairs": len(found["pairs"]), "own_us_a_step": found["own_us_a_step"]}
    for clock in ("cpu_us", "wall_us"):
        means = [
            (statistics.fmean(pair["with"][clock]), statistics.fmean(pair["without"][clock])) for pair in found["pairs"]
        ]
        more = sorted(100 * (with_us / without_us - 1) for with_us, without_us in means)
        name = clock.removesuffix("_us")
        details |= {
            f"step_{name}_more_percent": statistics.median(more),
            f"step_{name}_more_percent_interval": _median_interval(more),
            f"step_{name}_us_without": statistics.median(without_us for _, without_us in means),
        }
    return Report(
        bench="engine_cost",
        value=statistics.median(decisions),
        unit="us a decision",
        reference_name="goal",
        reference_value=GOAL_US,
        runs=len(decisions),
        details={
            "decision_us": {"p50": percentile(decisions, 50), "p99": percentile(decisions, 99)},
            "decision_with_its_record_us": {"p50": percentile(recorded, 50), "p99": percentile(recorded, 99)},
            "rule_alone_us": {"p50": percentile(rules, 50), "p99": percentile(rules, 99)},
            **details,
            "goal_us": GOAL_US,
            "goal_step_percent": GOAL_STEP_PERCENT,
        },
    )


def _median_interval(ordered: list[float]) -> list[float]:
    """95 % interval of the median, by order statistics (normal approximation of the binomial)."""
    half = 0.98 * len(ordered) ** 0.5
    low, high = int(len(ordered) / 2 - half), int(len(ordered) / 2 + half)
    return [ordered[max(0, low)], ordered[min(len(ordered) - 1, high)]]


def main() -> int:
    """Measure and report. Returns the exit code."""
    full = arguments("engine_cost", __doc__).full
    try:
        found = measure(240 if full else 60)
    except BenchError as error:
        return fail("engine_cost", error)
    print(report(found).line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
