"""``tidegate demo``: scripted agents with real tools."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tidegate.errors import UsageError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

MAX_AGENTS = 64


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "demo",
        help="run scripted agents with real tools",
        description=(
            "Runs scripted agents, each in its own session. Their tools are real: git, a test suite, a compiler, "
            "searches, allocations of hundreds of MB, a command that fails again and again, a process that is left "
            "behind, calls that overlap. Takes about a minute and a half; all files are temporary and removed."
        ),
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes", type=float, default=1.2, metavar="N", help="begin rounds for N minutes (default 1.2)"
    )
    length.add_argument("--rounds", type=int, metavar="N", help="play N rounds of work instead")
    parser.add_argument("--agents", type=int, default=3, metavar="N", help="agents at once (default 3)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of all choices (default 1)")
    parser.add_argument(
        "--pace", type=float, default=1.0, metavar="F", help="factor on the pauses between calls (default 1)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play the demo; see :func:`tidegate.demo.conductor.run`."""
    if not 1 <= args.agents <= MAX_AGENTS:
        raise UsageError(f"--agents {args.agents}: expected 1 to {MAX_AGENTS}")
    if args.minutes <= 0 or (args.rounds is not None and args.rounds < 1):
        raise UsageError("--rounds and --minutes must be above 0")
    if args.pace < 0:
        raise UsageError("--pace must not be negative")
    from tidegate.demo.conductor import Options
    from tidegate.demo.conductor import run as play

    return play(Options(agents=args.agents, rounds=args.rounds, minutes=args.minutes, seed=args.seed, pace=args.pace))
