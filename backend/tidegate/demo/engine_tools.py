"""The tools that the demo's engine agents offer to the model, and the real commands behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.demo import scripts, workshop

if TYPE_CHECKING:
    from tidegate.demo.agent import Agent


class Run(NamedTuple):
    """A command, where it runs, and what it says it will need."""

    command: list[str]
    cwd: Path
    hint: str | None = None


class Tool(NamedTuple):
    """A function that the model can ask for. ``run`` makes the command from the chosen value of its one parameter."""

    description: str
    parameter: str
    values: tuple[str, ...]
    run: Callable[[Agent, str], Run]

    def schema(self, name: str) -> dict[str, Any]:
        """As an API of OpenAI's kind wants it. Strict, so that the engine's grammar admits nothing else."""
        choice = {"type": "string", "enum": list(self.values)}
        parameters = {
            "type": "object", "properties": {self.parameter: choice}, "required": [self.parameter],
            "additionalProperties": False,
        }  # fmt: skip
        function = {"name": name, "description": self.description, "strict": True, "parameters": parameters}
        return {"type": "function", "function": function}


def prepare(agent: Agent) -> None:
    """The files that the tools work on, and a git repository of them."""
    repository = _repository(agent)
    workshop.write_repository(repository, agent.rng)
    workshop.write_broken_suite(agent.work / "broken")
    workshop.write_c_source(agent.work / "engine.c", 40, agent.rng)
    agent.call("git", "init", "--quiet", cwd=repository)
    agent.call("git", "add", ".", cwd=repository)
    agent.call("git", "commit", "--quiet", "-m", "start", cwd=repository)


def _repository(agent: Agent) -> Path:
    return agent.work / "parser"


def _tests(agent: Agent, suite: str) -> Run:
    if suite == "broken":
        return Run(scripts.test_command(agent, "test_broken"), agent.work / "broken")
    return Run(scripts.test_command(agent, "test_parser"), _repository(agent), "memory:high")


def _git(agent: Agent, verb: str) -> Run:
    more = {
        "status": ["--short"], "diff": ["--stat"], "log": ["--oneline", "-5"],
        "commit": ["--quiet", "--allow-empty", "-a", "-m", "a step"],
    }  # fmt: skip
    return Run(["git", verb, *more[verb]], _repository(agent))


def _search(agent: Agent, pattern: str) -> Run:
    return Run(["grep", "-rn", "-m", "1", pattern, "package"], _repository(agent))


def _read(agent: Agent, part: str) -> Run:
    names = {"parser": "parser_.py", "tests": "test_parser.py", "module": "package/module_007.py"}
    return Run(["cat", names[part]], _repository(agent))


def _edit(agent: Agent, change: str) -> Run:
    signs = {"plus": "s/value [*+-]/value +/", "times": "s/value [*+-]/value */", "minus": "s/value [*+-]/value -/"}
    return Run(["sed", "-i", signs[change], f"package/module_{agent.rng.randrange(120):03}.py"], _repository(agent))


def _build(agent: Agent, what: str) -> Run:
    compiler = scripts.compile_command()
    if compiler is None or what == "modules":
        return Run([agent.python, "-m", "compileall", "-q", "-f", "package"], _repository(agent))
    return Run([*compiler, "-o", "engine", "engine.c"], agent.work, "memory:512m")


def _data(agent: Agent, size: str) -> Run:
    megabytes, seconds = {
        "small": (agent.burst_mb // 4, 0.2), "medium": (agent.burst_mb // 2, 0.8), "large": (agent.burst_mb, 2.0)
    }[size]  # fmt: skip
    crunch = str(agent.tools / "crunch.py")
    return Run([agent.python, crunch, str(megabytes), str(seconds)], agent.work, f"memory:{max(16, megabytes)}m")


TOOLS: dict[str, Tool] = {
    "run_tests": Tool("run a test suite", "suite", ("parser", "broken"), _tests),
    "git": Tool("ask or change the repository", "verb", ("status", "diff", "log", "commit"), _git),
    "search": Tool("search the sources", "pattern", ("def step_", "return value", "import"), _search),
    "view": Tool("show a file", "part", ("parser", "tests", "module"), _read),
    "edit": Tool("change a module", "change", ("plus", "times", "minus"), _edit),
    "build": Tool("compile", "what", ("program", "modules"), _build),
    "load_data": Tool("load a table into memory", "size", ("small", "medium", "large"), _data),
}
"""By the function's name. Their first letters differ, so that a model with random weights chooses all of them."""

OFFERS: dict[str, tuple[str, ...]] = {
    "fix": ("run_tests", "git", "search", "view", "edit"),
    "build": ("build", "load_data", "run_tests", "git"),
    "survey": ("search", "view", "load_data", "git"),
}
"""Names of the tools that a role offers."""
