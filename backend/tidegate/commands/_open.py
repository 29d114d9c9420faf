"""Opening the store from the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegate.settings import Settings


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Add ``--state-dir``."""
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="where the database is (default: $TIDEGATE_STATE_DIR)"
    )


def settings_of(args: argparse.Namespace) -> Settings:
    """Settings from the environment and ``--state-dir``."""
    return Settings.from_env(state_dir=args.state_dir)
