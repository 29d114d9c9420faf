"""``tidegate exec``: handed to the collectors' package, which also runs without the backend."""

from __future__ import annotations

import argparse

from tidegate_collectors.agent import exec_

_EPILOG = """\
examples:
  tidegate exec --tool tests -- pytest -q
  AGENT_RESOURCE_HINT=memory:high tidegate exec -- cargo build
  tidegate exec --hint memory:512m -- npm install
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand with the arguments that its module has."""
    parser = subparsers.add_parser(
        "exec",
        help="run one command as one call of the session around it",
        description=(
            "Mark a command explicitly as one call. Outside a session it is just run. Its exit code is passed on."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    exec_.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns its exit code."""
    return exec_.main(args)
