"""``tidegate export``: a run or a session as JSON lines."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from tidegate.commands._open import add_state_dir, open_library, settings_of
from tidegate.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from tidegate.exporters.packing import Packing
    from tidegate.store import Reads

LIVE: Final = "live"
"""Name of the newest run that was live."""

_DESCRIPTION = """\
Write the records of a run as they came in, one JSON object a line. The file opens again with `tidegate serve --replay`.
It may be written while the run is going on.
"""

_EPILOG = """\
examples:
  tidegate export -o run.jsonl                      the live run, or the newest that was live; also .gz and .zst
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
    parser.add_argument(
        "--run", dest="run_id", default=LIVE, metavar="ID", help="the run (default: live); `tidegate runs` lists them"
    )
    parser.add_argument("--session", metavar="ID", help="only what concerns this session")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write to FILE; standard output without it, or as -"
    )
    add_state_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write it. The file appears under its name when it is complete."""
    if args.output == Path("-"):
        args.output = None
    if args.output is None and sys.stdout.isatty():
        raise UsageError("the records would fill the terminal; give -o FILE, or a pipe")
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    async with open_library(settings_of(args)) as (library, store):
        if args.run_id == LIVE:
            if store is None:
                raise NotFoundError("there is no live run yet; start one with: tidegate serve")
            reads = store.reads
        else:
            reads = (await library.open(args.run_id)).store.reads
        if args.output is None:
            await _write(reads, args, sys.stdout.buffer, "none")
        else:
            await _write_file(reads, args, args.output)
    return 0


async def _write_file(reads: Reads, args: argparse.Namespace, path: Path) -> None:
    from tidegate.exporters.packing import packing_of

    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            count = await _write(reads, args, file, packing_of(path.name))
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    print(f"{path}: {count} records, {path.stat().st_size} bytes", file=sys.stderr)  # noqa: ASYNC240


async def _write(reads: Reads, args: argparse.Namespace, out: BinaryIO, packing: Packing) -> int:
    from tidegate.exporters.jsonl import export_lines
    from tidegate.exporters.packing import packed

    count = 0

    async def lines() -> AsyncIterator[bytes]:
        nonlocal count
        async for block in export_lines(reads, args.run_id, session=args.session):
            count += block.count(b"\n")
            yield block

    async for block in packed(lines(), packing):
        # Standard output may be unbuffered (python -u), and then a write may be partial.
        rest = memoryview(block)
        while rest:
            rest = rest[out.write(rest) :]
    out.flush()
    return count
