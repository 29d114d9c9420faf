"""What the model can ask for: each choice is a real command that runs here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.demo import engine_tools
from tidegate.demo.agent import Agent
from tidegate.demo.scripts import ROLES

EXPECTED_FAILURES = {("run_tests", "broken"), ("search", "import")}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    work = tmp_path_factory.mktemp("agent") / "work"
    work.mkdir()
    agent = Agent("test", work, seed=1, pace=0, burst_bytes=16 << 20)
    engine_tools.prepare(agent)
    yield agent
    agent.close()


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, tool in engine_tools.TOOLS.items() for value in tool.values]
)
def test_every_choice_runs(agent: Agent, tmp_path: Path, name: str, value: str) -> None:
    run = engine_tools.TOOLS[name].run(agent, value)

    with (tmp_path / "output").open("wb+") as output:
        code = agent.call(*run.command, cwd=run.cwd, hint=run.hint, output=output)

    assert code == ((name, value) in EXPECTED_FAILURES), (tmp_path / "output").read_text()


def test_every_role_offers_tools_that_exist_and_that_a_random_model_can_tell_apart() -> None:
    assert set(engine_tools.OFFERS) == set(ROLES)
    for names in engine_tools.OFFERS.values():
        assert set(names) <= set(engine_tools.TOOLS)
        assert len({name[0] for name in names}) == len(names) >= 4


def test_a_schema_admits_the_choices_and_nothing_else() -> None:
    function = engine_tools.TOOLS["git"].schema("git")["function"]

    assert (function["name"], function["strict"]) == ("git", True)
    assert function["parameters"]["properties"]["verb"]["enum"] == ["status", "diff", "log", "commit"]
    assert function["parameters"]["additionalProperties"] is False
