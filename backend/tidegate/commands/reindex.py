"""``tidegate reindex``: rebuild the tables from the raw log."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from tidegate.commands._open import add_state_dir, settings_of
from tidegate.errors import NotFoundError, StoreError

_DESCRIPTION = """\
Empty the derived tables (samples, events, sessions, calls) and fill them again from the raw log, run by run, each in
one transaction, and those of recordings too. The raw log itself is not touched. The backend must not be running.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "reindex",
        help="rebuild the tables of the database from its raw log",
        description=_DESCRIPTION,
        epilog="examples:\n  tidegate reindex\n  tidegate reindex --run 20261130-2306-ab12\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--run", dest="run_id", metavar="ID", help="only this run (default: all)")
    add_state_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Rebuild, and say how many records were read."""
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from tidegate.runs import folder

    settings = settings_of(args)
    done = 0
    if settings.database.is_file():
        done += await _reindex(settings.database, args.run_id)
    paths = sorted(settings.recordings.glob(f"*{folder.SUFFIX}")) if settings.recordings.is_dir() else []
    if not settings.database.is_file() and not paths:
        raise StoreError(f"{settings.database} does not exist; has `tidegate serve` run with this --state-dir?")
    for path in paths:
        if args.run_id in (None, path.name.removesuffix(folder.SUFFIX)):
            done += await _reindex(path, None)
            folder.seal(path)
            folder.give(path, path.parent)
    if args.run_id is not None and not done:
        raise NotFoundError(f"no run {args.run_id!r}; `tidegate runs` lists those that there are")
    return 0


async def _reindex(database: Path, run_id: str | None) -> int:
    """Rebuild the runs of one database, or the one of that id. Returns how many there were."""
    from tidegate.store import open_store
    from tidegate.store.reindex import reindex

    store = await open_store(database)
    try:
        runs = [run for run in await store.reads.runs() if run_id in (None, run.id)]
        for run in runs:
            print(f"{run.id}: {await reindex(store, run)} records")
        return len(runs)
    finally:
        await store.close()
