"""The ``tidegate`` command: one file a subcommand, each with ``add_parser(subparsers)`` and ``run(args) -> int``.

Only the module of the subcommand that was named is imported, and that imports what is heavy inside ``run``: an agent's
every tool call may go through ``tidegate exec``, which must not wait for a web framework.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final, Protocol, cast

from tidegate._version import __version__
from tidegate.errors import TidegateError

COMMANDS: Final = {
    "serve": "keep records and show them in the browser",
    "collect": "observe this host's kernel (needs root) or a vLLM, and send records",
    "run": "start an agent, or any command, in a session of its own",
    "exec": "run one command as one call of the session around it",
    "gateway": "pass agents' requests to the engine and send records of the turns",
    "hooks": "let an agent's hooks name its tool calls",
    "hook": "tell the collector of an agent's tool call (what a hook runs)",
    "demo": "run scripted agents whose tools are real",
    "runs": "list the runs, rename or delete one",
    "import": "read recordings and other programs' traces into runs",
    "export": "write a run or a session as JSON lines",
    "parity": "take the KV decisions of a recording again and compare",
    "backup": "copy the database while the backend runs",
    "prune": "remove old runs, by age and by size",
    "reindex": "rebuild the tables of the database from its raw log",
    "doctor": "try what this host can do, and say what is missing",
    "version": "print the version",
}
"""Subcommands in the order of the help."""

_MODULES: Final = {"exec": "exec_", "import": "import_"}

_DESCRIPTION: Final = "See, on one clock, what each tool call of an AI agent does to this host."

_EPILOG: Final = """\
examples:
  tidegate serve                                the pages at http://127.0.0.1:6456
  sudo tidegate collect                         observe the kernel
  tidegate run --title "fix the bug" -- claude  start an agent in its own session
  tidegate export --run live -o run.jsonl       save what was seen
  tidegate serve --replay run.jsonl             look at it again, on any machine

`tidegate COMMAND --help` says more about each.
"""


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser of the command line, with the arguments of the chosen subcommand only (None: of none)."""
    parser = argparse.ArgumentParser(
        prog="tidegate",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tidegate {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        if name == chosen:
            _module(name).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Errors of ours become a message on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        parser = build_parser(chosen)
        args = parser.parse_args(arguments)
        if args.command is None:
            parser.print_help()
            return 2
        code: int = args.run(args)
        return code
    except TidegateError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


class _Command(Protocol):
    """What a module of a subcommand has."""

    def add_parser(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add the subcommand, and set ``run`` as its default."""


def _module(name: str) -> _Command:
    return cast("_Command", importlib.import_module(f"tidegate.commands.{_MODULES.get(name, name)}"))


__all__ = ["COMMANDS", "build_parser", "main"]
