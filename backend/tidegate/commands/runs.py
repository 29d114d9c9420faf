"""``tidegate runs``: which runs there are; other titles for them, and deleting them."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate.commands._open import add_state_dir, open_library, settings_of
from tidegate.errors import NotFoundError

if TYPE_CHECKING:
    from tidegate.runs.library import RunRow
    from tidegate.settings import Settings

_DESCRIPTION = """\
List the runs of the state directory, the newest first: id, start (UTC), kind, state, records, size, title, file. In a
terminal it is a table for people; elsewhere each line has these fields separated by tabs, sizes in bytes, no header.
Recordings can be renamed and deleted while the backend runs; runs that were live here only when it does not (its Runs
page can).
"""

_EPILOG = """\
examples:
  tidegate runs
  tidegate runs rename 20261130-2306-ab12 "the night of the OOM"
  tidegate runs delete 20261130-2306-ab12
"""

_HEADER: Final = ["ID", "STARTED (UTC)", "KIND", "STATE", "RECORDS", "SIZE", "TITLE", "FILE"]
_NUMBERS: Final = {"RECORDS", "SIZE"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "runs",
        help="list the runs, rename or delete one",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_state_dir(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    listing = actions.add_parser("list", help="list the runs (what happens without an action)")
    rename = actions.add_parser("rename", help="give a run another title")
    rename.add_argument("run_id", metavar="ID")
    rename.add_argument("title", metavar="TITLE")
    delete = actions.add_parser("delete", help="delete runs for good")
    delete.add_argument("run_ids", metavar="ID", nargs="+")
    for action in (listing, rename, delete):
        # Given after the action it wins; not given there, it must not undo what stands before it.
        action.add_argument("--state-dir", type=Path, metavar="DIR", default=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List, rename or delete."""
    settings = settings_of(args)
    if args.action == "rename":
        asyncio.run(_rename(settings, args.run_id, args.title))
    elif args.action == "delete":
        for run_id in args.run_ids:
            asyncio.run(_delete(settings, run_id))
    else:
        asyncio.run(_list(settings))
    return 0


async def _list(settings: Settings) -> None:
    async with open_library(settings) as (library, _):
        rows = await library.list()
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(_fields(row, f"{row.records} records", f"{row.bytes} bytes")))
        return
    table = [_HEADER, *(_fields(row, f"{row.records:,}", _size(row.bytes)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for fields in table:
        cells = [
            text.rjust(width) if name in _NUMBERS else text.ljust(width)
            for name, text, width in zip(_HEADER, fields, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _fields(row: RunRow, records: str, size: str) -> list[str]:
    started = "-"
    if row.started_us is not None:
        started = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(row.started_us // 1_000_000))
    # The words of the Runs page.
    kind = f"{row.kind}, {row.format}" if row.kind == "imported" else row.kind
    state = "damaged" if row.damaged else "being written" if row.writing else "ended" if row.clean else "cut off"
    text = row.reason if row.damaged and row.reason else row.title
    return [_plain(row.id), started, _plain(kind), state, records, size, _plain(text), _plain(row.file) or "-"]


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


async def _rename(settings: Settings, run_id: str, title: str) -> None:
    write = await _is_live(settings, run_id)
    async with open_library(settings, write=write) as (library, _):
        await library.rename(run_id, title)


async def _delete(settings: Settings, run_id: str) -> None:
    write = await _is_live(settings, run_id)
    async with open_library(settings, write=write) as (library, _):
        await library.delete(run_id)
    print(f"{_plain(run_id)} is deleted")


async def _is_live(settings: Settings, run_id: str) -> bool:
    """Whether a run lies in the live database, which only one process may write."""
    async with open_library(settings) as (library, store):
        known = {row.id for row in await library.list()}
        if run_id not in known:
            raise NotFoundError(f"no run {run_id!r}; `tidegate runs` lists those that there are")
        return store is not None and run_id in {run.id for run in await store.reads.runs()}
