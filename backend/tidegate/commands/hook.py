"""``tidegate hook``: what an agent's hook runs; handed to the collectors' package.

``tidegate hooks install`` writes a command that starts faster; this one is for settings written by hand.
"""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "hook",
        help="tell the collector of an agent's tool call (what a hook runs)",
        description="Read the event of an agent's hook as JSON from standard input and tell the collector. Prints "
        "nothing and always succeeds.",
        epilog='examples:\n  "command": "/path/to/tidegate hook"      in the settings of the agent\n',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Does not return."""
    from tidegate_collectors.agent import hook

    hook.main()
