"""``tidegate export``: a run or a session as JSON lines."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tidegate.commands._open import add_state_dir, settings_of
from tidegate.errors import UsageError

if TYPE_CHECKING:
    from tidegate.store import Store

_DESCRIPTION = """\
Write the records of a run as they came in, one JSON object a line. The file opens again with `tidegate serve --replay`.
It may be written while the run is going on.
"""

_EPILOG = """\
examples:
  tidegate export --list                            the runs that there are
  tidegate export -o run.jsonl                      the live run, or the newest that was live
  tidegate export --run 20261130-2306-ab12 | zstd > run.jsonl.zst
  tidegate export --session night-1 -o night.jsonl  one session, with the host's samples in its time
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "export",
        help="write a run or a session as JSON lines",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--run", dest="run_id", default="live", metavar="ID", help="the run (default: live)")
    parser.add_argument("--session", metavar="ID", help="only what concerns this session")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write to FILE; standard output without it, or as -"
    )
    parser.add_argument("--list", action="store_true", help="print the runs instead, the newest first")
    add_state_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write it. The file appears under its name when it is complete."""
    if args.output == Path("-"):
        args.output = None
    if not args.list and args.output is None and sys.stdout.isatty():
        raise UsageError("the records would fill the terminal; give -o FILE, or a pipe")
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from tidegate.store import open_store

    store = await open_store(settings_of(args).database, read_only=True)
    try:
        if args.list:
            await _list(store)
        elif args.output is None:
            await _write(store, args, sys.stdout.buffer)
        else:
            await _write_file(store, args, args.output)
    finally:
        await store.close()
    return 0


async def _write_file(store: Store, args: argparse.Namespace, path: Path) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            count = await _write(store, args, file)
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    print(f"{path}: {count} records, {path.stat().st_size} bytes", file=sys.stderr)  # noqa: ASYNC240


async def _write(store: Store, args: argparse.Namespace, out: BinaryIO) -> int:
    from tidegate.exporters.jsonl import export_lines

    count = 0
    async for block in export_lines(store.reads, args.run_id, session=args.session):
        # Standard output may be unbuffered (python -u), and then a write may be partial.
        rest = memoryview(block)
        while rest:
            rest = rest[out.write(rest) :]
        count += block.count(b"\n")
    out.flush()
    return count


async def _list(store: Store) -> None:
    for one in await store.reads.runs():
        started = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(one.started_us // 1_000_000))
        state = "ended" if one.ended_us is not None else "open"
        title = "".join(character if character.isprintable() else "?" for character in one.title)
        print(f"{one.id}\t{started}\t{one.source}\t{state}\t{one.last_ord} records\t{title}")
