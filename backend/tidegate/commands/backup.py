"""``tidegate backup``: a copy of the database, made while the backend runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tidegate.commands._open import add_state_dir, settings_of

_DESCRIPTION = """\
Copy the database of live runs as it is at this instant, while the backend may go on writing. The copy is one file; it
is checked, and appears under its name only then. To use it, put it into a state directory as tidegate.db.

Recordings and imports are database files of their own. When the output is a directory, they are copied too:
DIRECTORY/tidegate.db and DIRECTORY/recordings/*.db, which is a whole state directory.
"""

_EPILOG = """\
examples:
  tidegate backup -o tidegate-backup.db           the live runs
  tidegate backup -o /backup/tidegate/            the recordings too
  tidegate backup -o /backup/tidegate/ --force    again, over the last one
  tidegate serve --state-dir /backup/tidegate     look at it
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "backup",
        help="copy the database while the backend runs",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="the copy; an existing directory, or a name that ends in /",
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    add_state_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Copy, and say what was written."""
    from tidegate.errors import UsageError
    from tidegate.runs.recordings import files_in
    from tidegate.store.backup import backup

    settings = settings_of(args)
    output = Path(args.output)
    if not (args.output.endswith("/") or output.is_dir()):
        _say(output, backup(settings.database, output, force=args.force, progress=_progress(output)))
        return 0
    pairs = [(settings.database, output / "tidegate.db")] if settings.database.is_file() else []
    pairs += [(path, output / "recordings" / path.name) for path in sorted(files_in(settings.recordings))]
    if not pairs:
        backup(settings.database, output)  # says that there is none
    try:
        (output / "recordings").mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{output} cannot be made: {error.strerror}") from None
    for source, target in pairs:
        if not source.is_file():
            continue  # deleted meanwhile
        _say(target, backup(source, target, force=args.force, progress=_progress(target)))
    return 0


def _say(path: Path, size: int) -> None:
    print(f"{path}: {size} bytes, checked", file=sys.stderr)


def _progress(path: Path) -> Callable[[int, int], None] | None:
    """Shows how far it is on a terminal; elsewhere only the end is told."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        percent = 100 * done // max(total, 1)
        print(f"\r{path.name}: {percent} %", end="\r" if done == total else "", file=sys.stderr, flush=True)

    return show
