"""``tidegate reindex``: rebuild the tables from the raw log."""

from __future__ import annotations

import argparse
import asyncio

from tidegate.commands._open import add_state_dir, settings_of

_DESCRIPTION = """\
Empty the derived tables (samples, events, sessions, calls) and fill them again from the raw log, run by run, each in
one transaction. The raw log itself is not touched. The backend must not be running.
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
    from tidegate.errors import StoreError
    from tidegate.store import open_store
    from tidegate.store.reindex import reindex

    database = settings_of(args).database
    if not database.is_file():
        raise StoreError(f"{database} does not exist; has `tidegate serve` run with this --state-dir?")
    store = await open_store(database)
    try:
        runs = [await store.reads.run(args.run_id)] if args.run_id else await store.reads.runs()
        for one in runs:
            print(f"{one.id}: {await reindex(store, one)} records")
    finally:
        await store.close()
    return 0
