"""``tidegate run``: handed to the collectors' package, which also runs without the backend."""

from __future__ import annotations

import argparse

from tidegate_collectors.agent import run as agent_run

_EPILOG = """\
examples:
  tidegate run -- claude
  tidegate run --title "fix issue 12" --priority low -- python agent.py --task 12
  tidegate run --session night-1 -- bash -c "git clone https://example.org/x && pytest"
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand with the arguments that its module has."""
    parser = subparsers.add_parser(
        "run",
        help="start an agent, or any command, in a session of its own",
        description=(
            "Start a command in a session: each program it starts becomes a call on the pages. "
            "Its exit code is passed on."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    agent_run.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns its exit code."""
    return agent_run.main(args)
