"""``tidegate version``."""

from __future__ import annotations

import argparse
import platform
import sys

from tidegate._version import __version__


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "version", help="print the version", description="Print the version of Tidegate, of Python and of the kernel."
    )
    parser.set_defaults(run=run)


def run(_args: argparse.Namespace) -> int:
    """Print it."""
    print(f"tidegate {__version__} (Python {platform.python_version()}, {platform.system()} {platform.release()})")
    sys.stdout.flush()
    return 0
