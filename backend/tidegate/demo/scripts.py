"""What the demo's three kinds of agents do. Each role is two functions: ``prepare`` once, ``play`` once a round."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from tidegate.demo import workshop

if TYPE_CHECKING:
    from tidegate.demo.agent import Agent

Priority = str


class Role(NamedTuple):
    """A kind of agent. ``priority`` is that of its session; ``title`` what people see."""

    title: str
    priority: Priority
    prepare: Callable[[Agent], None]
    play: Callable[[Agent, int], None]


def test_command(agent: Agent, name: str) -> list[str]:
    """Runs the suite ``name``.py: with pytest where it is installed, else with unittest."""
    if find_spec("pytest") is not None:
        return [agent.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{name}.py"]
    return [agent.python, "-m", "unittest", "-q", name]


def compile_command() -> list[str] | None:
    """The start of a compiler's command line, without its files; none when this host has no compiler."""
    for name in ("clang", "gcc", "cc"):
        if shutil.which(name):
            return [name, "-O2"]
    return None


# --- fix: reads, edits, tests, commits -------------------------------------------------------------------------------


def _prepare_fix(agent: Agent) -> None:
    repository = agent.work / "parser"
    workshop.write_repository(repository, agent.rng)
    agent.think()
    agent.call("git", "init", "--quiet", cwd=repository)
    agent.call("git", "add", ".", cwd=repository)
    agent.call("git", "commit", "--quiet", "-m", "start", cwd=repository)


def _play_fix(agent: Agent, number: int) -> None:
    repository = agent.work / "parser"
    module = f"package/module_{agent.rng.randrange(120):03}.py"
    agent.think()
    agent.call("grep", "-rn", "def step_", "package", cwd=repository)
    agent.think()
    agent.call("cat", module, cwd=repository)
    agent.think()
    agent.call("sed", "-i", f"s/value \\*/value + {number} */", module, cwd=repository)
    agent.call("git", "diff", "--stat", cwd=repository)
    agent.think()
    agent.call(*test_command(agent, "test_parser"), cwd=repository, hint="memory:high")
    agent.think()
    agent.call("git", "commit", "--quiet", "-a", "-m", f"round {number}", cwd=repository)
    agent.call("git", "log", "--oneline", cwd=repository)
    agent.think(1.0, 2.5)
    agent.call(*test_command(agent, "test_parser"), cwd=repository)


# --- build: compiles, allocates, tries the same failing command again and again ---------------------------------------


def _prepare_build(agent: Agent) -> None:
    workshop.write_broken_suite(agent.work / "broken")
    workshop.write_c_source(agent.work / "engine.c", 120, agent.rng)
    # Modules for the Python compiler, where there is no C compiler.
    workshop.write_repository(agent.work / "sources", agent.rng)


def _play_build(agent: Agent, _number: int) -> None:
    agent.think()
    compiler = compile_command()
    if compiler:
        agent.call(*compiler, "-o", "engine", "engine.c", hint="memory:512m")
        agent.call(str(agent.work / "engine"))
    else:
        agent.call(agent.python, "-m", "compileall", "-q", "-f", "sources")
    agent.think()
    crunch, megabytes = str(agent.tools / "crunch.py"), agent.burst_mb
    agent.call(agent.python, crunch, str(megabytes), "0.5", hint=f"memory:{megabytes}m")
    for _ in range(4):
        agent.think(0.2, 0.5)
        agent.call(*test_command(agent, "test_broken"), cwd=agent.work / "broken")
    agent.think(1.0, 2.0)
    agent.call(agent.python, crunch, str(megabytes * agent.rng.randrange(40, 90) // 100), "0.2")


# --- survey: searches in parallel, leaves a server behind -------------------------------------------------------------


def _prepare_survey(agent: Agent) -> None:
    workshop.write_repository(agent.work / "survey", agent.rng)
    agent.think()
    agent.call("find", "survey", "-name", "*.py", "-newer", "tools/crunch.py")


def _play_survey(agent: Agent, number: int) -> None:
    crunch, third = str(agent.tools / "crunch.py"), str(agent.burst_mb // 3)
    agent.think()
    if number == 0:
        agent.leave_behind()
        agent.think()
    agent.together(
        [
            ["grep", "-rc", "return", "survey"],
            ["sh", "-c", "find survey -type f | xargs wc -l | sort -n | tail -n 3"],
            [agent.python, crunch, third, "0.6"],
            [agent.python, crunch, third, "0.3"],
        ],
        hint="memory:medium",
    )
    agent.think()
    agent.call("sh", "-c", "for n in 1 2 3 4 5 6; do grep -rl step_$n survey >/dev/null; done")
    agent.think(1.0, 2.5)
    agent.together(
        [[agent.python, crunch, third, "0.4"], ["find", "survey", "-type", "f", "-size", "+1k"]], hint="memory:low"
    )
    agent.think(0.5, 1.5)


ROLES: dict[str, Role] = {
    "fix": Role("Fix a parser and its tests", "high", _prepare_fix, _play_fix),
    "build": Role("Build, crunch, and try again", "normal", _prepare_build, _play_build),
    "survey": Role("Survey a source tree", "low", _prepare_survey, _play_survey),
}
"""Role by name, in the order in which the demo starts them."""
