"""A real model, in a process of its own: every action gives the same answer as an engine that knows nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vllm

from tests.engine.inprocess_child import BLOCKS

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not Path(vllm.__file__).is_relative_to(sys.prefix),
        reason="these sources of a vLLM cannot run a model",
    ),
]

REPO = Path(__file__).resolve().parents[2]
ACTIONS = ("KEEP", "PIN", "DROP", "OFFLOAD", "OFFLOAD under pressure", "KEEP under pressure")
CACHED = 224
"""Tokens of the full blocks of 230 + 12 that were computed, in blocks of 32."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("inprocess")
    model = folder / "model"
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    subprocess.run(
        [sys.executable, str(REPO / "backend/tidegate/demo/tiny_model.py"), str(model)],
        check=True, capture_output=True, timeout=120, env=os.environ | quiet,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(REPO / "tests/engine/inprocess_child.py"), str(model)],
        capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | {"TIDEGATE_RUNTIME_DIR": str(folder), "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert done.returncode == 0 and lines, done.stdout[-3000:] + done.stderr[-6000:]
    yield json.loads(lines[-1].removeprefix("REPORT "))


@pytest.mark.parametrize("action", ACTIONS)
def test_the_answer_is_that_of_an_engine_that_knows_nothing(report: dict[str, Any], action: str) -> None:
    scratch = report["scratch"]
    assert report[action]["first"] == report["first"]["tokens"]
    assert report[action]["tokens"] == scratch["tokens"]
    assert report[action]["logprobs"] == pytest.approx(scratch["logprobs"], abs=2e-3)  # it was computed in other pieces


def test_what_was_fetched_is_what_was_there_bit_by_bit(report: dict[str, Any]) -> None:
    assert report["OFFLOAD"]["logprobs"] == report["KEEP"]["logprobs"] == report["PIN"]["logprobs"]
    assert report["OFFLOAD under pressure"]["logprobs"] == report["KEEP"]["logprobs"]
    assert report["DROP"]["logprobs"] == report["scratch"]["logprobs"]


def test_blocks_come_from_where_they_are_said_to_be(report: dict[str, Any]) -> None:
    found = {action: (report[action]["device"], report[action]["host"]) for action in ACTIONS}
    assert found == {
        "KEEP": (CACHED, 0), "PIN": (CACHED, 0), "DROP": (0, 0), "OFFLOAD": (0, CACHED),
        "OFFLOAD under pressure": (0, CACHED), "KEEP under pressure": (0, 0),
    }  # fmt: skip
    assert {action: report[action]["cached"] for action in ACTIONS} == {a: sum(found[a]) for a in ACTIONS}
    assert report["OFFLOAD"]["used"] == CACHED // 32 and report["KEEP"]["used"] == 0
    assert report["OFFLOAD"]["residency"]["device_and_host"] == CACHED // 32


def test_no_block_is_lost(report: dict[str, Any]) -> None:
    end = report["end"]
    assert (end["free"], end["used"], end["mode"]) == (BLOCKS, 0, "enforce")
    assert [report[action]["free"] for action in ACTIONS] == [BLOCKS] * len(ACTIONS)
    assert [(direction, ok) for direction, ok, *_ in end["transfers"]] == [("out", True), ("in", True)] * 2
    assert all(size == blocks * 32 * 512 and us > 0 for _, _, blocks, size, us, _ in end["transfers"])
