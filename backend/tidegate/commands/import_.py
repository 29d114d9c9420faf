"""``tidegate import``: recordings and other people's traces into runs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.commands._open import add_state_dir, settings_of
from tidegate.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.runs.messages import Done, Progress
    from tidegate.settings import Settings

_DESCRIPTION = """\
Read files or folders into runs, each into a database file of its own below the state directory. A backend that is
running shows them at once. What could not be used is told with file, line and reason. The format is found out; --format
says it. Exit code: that of the last file that could not be read.
"""

_EPILOG = """\
examples:
  tidegate import run.jsonl.zst                         a recording, made by `tidegate export`
  tidegate import ~/.claude/projects/*/*.jsonl          transcripts of Claude Code
  tidegate import --title "bench, arm 2" traces/task-7  a folder of AgentCgroup
  tidegate import traces.zip                            the same, packed
"""

_SHOWN_ERRORS = 20


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    from tidegate.importers import FORMATS
    from tidegate.runs.messages import TIDEGATE

    parser = subparsers.add_parser(
        "import",
        help="read recordings and other programs' traces into runs",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE|DIR", help="what is read, one run each")
    names = ", ".join([TIDEGATE, *(known.name for known in FORMATS)])
    parser.add_argument(
        "--format", dest="format_name", metavar="NAME", help=f"the format (default: found out): {names}"
    )
    parser.add_argument("--title", help="title of the run (default: what the file says, or its name)")
    add_state_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Import one file after the other."""
    from tidegate.importers import format_named
    from tidegate.runs.messages import TIDEGATE

    if args.format_name not in (None, TIDEGATE):
        format_named(args.format_name)
    if args.title is not None and len(args.paths) > 1:
        raise UsageError("--title is for one file; without it each run gets the title that its file says")
    settings = settings_of(args)
    prepare(settings)
    return asyncio.run(_run(args, settings))


def prepare(settings: Settings) -> None:
    """As root, on a host where no backend has run yet: the state directory of the user that it will run as."""
    from tidegate.commands import _privileges

    if os.geteuid() == 0 and not settings.state_dir.exists():
        _privileges.prepare_state_dir(settings.state_dir, _privileges.choose_user(settings.user))


async def _run(args: argparse.Namespace, settings: Settings) -> int:
    code = 0
    for path in args.paths:
        try:
            done = await _import(path, args, settings)
        except TidegateError as error:
            print(f"tidegate: {error}", file=sys.stderr)
            code = error.exit_code
            continue
        _tell(path, done)
    return code


async def _import(path: Path, args: argparse.Namespace, settings: Settings) -> Done:
    from tidegate.runs import folder
    from tidegate.runs.messages import Task
    from tidegate.runs.process import run_worker

    line = _ProgressLine(path)
    task = Task(
        source=os.path.abspath(path),  # noqa: ASYNC240, PTH100
        name=str(path),
        part=str(folder.new_part(settings.recordings)),
        format=args.format_name,
        title=args.title,
        taken=sorted(await _taken(settings)),
        nice=0,
        folder=True,
    )
    try:
        return await run_worker(task, line.show)
    finally:
        line.clear()


async def _taken(settings: Settings) -> set[str]:
    from tidegate.commands._open import open_library

    if not settings.database.exists() and not settings.recordings.exists():
        return set()
    async with open_library(settings) as (library, _):
        return await library.ids()


class _ProgressLine:
    """One line on a terminal, written over again and again; nothing elsewhere."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._total_bytes = path.stat().st_size if path.is_file() else 0
        self._on = sys.stderr.isatty()

    def show(self, progress: Progress) -> None:
        """Say how far it is."""
        if not self._on:
            return
        part = (
            f"{100 * progress.bytes_done // self._total_bytes} %, " if self._total_bytes and progress.bytes_done else ""
        )
        text = f"{self._name}: {part}{progress.records:,} records"
        print(f"\r{text[:100]}\x1b[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _tell(path: Path, done: Done) -> None:
    print(f"{path}: {done.records} records ({done.format}) as run {done.run_id}")
    report = done.report
    total = report["errors_total"]
    if total:
        print(f"{path}: {total} lines or values were left out or corrected", file=sys.stderr)
        for error in report["errors"][:_SHOWN_ERRORS]:
            print(f"  {_plain(error)}", file=sys.stderr)
        if total > _SHOWN_ERRORS:
            print(f"  and {total - min(_SHOWN_ERRORS, len(report['errors']))} more", file=sys.stderr)
    for key, text in (
        ("gaps", "gaps in the numbering"),
        ("duplicates", "records that were there twice"),
        ("clock_back", "times a clock went back"),
    ):
        if report[key]:
            print(f"{path}: {report[key]} {text}", file=sys.stderr)


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
