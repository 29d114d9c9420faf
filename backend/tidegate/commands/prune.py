"""``tidegate prune``: remove old runs, by age and by size."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from typing import TYPE_CHECKING, Final

from tidegate.commands._open import add_state_dir, open_library, settings_of
from tidegate.errors import StoreError, UsageError

if TYPE_CHECKING:
    from tidegate.runs.retention import Preview

_DESCRIPTION = """\
Show which runs are over the limits, ask, and delete them: first those that ended (or were imported, if that was later)
too long ago, then the oldest while all take too much room. The disk gets the room back. The backend must not be
running: it has the same on its Runs page, and applies TIDEGATE_KEEP_DAYS and TIDEGATE_KEEP_BYTES every hour by itself.
"""

_EPILOG = """\
examples:
  tidegate prune --older-than 30d              runs that ended, or were imported, more than 30 days ago
  tidegate prune --max-size 10G                the oldest ones, until the others take no more than 10 GB
  tidegate prune --older-than 12h --yes        without asking, for a script
  tidegate prune --compact                     only give free room back, also of a database of an older version
"""

_DAYS: Final = {"h": 1 / 24, "d": 1.0, "w": 7.0}
_BYTES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "prune",
        help="remove old runs, by age and by size",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--older-than", metavar="AGE", help="hours, days or weeks: 12h, 30d, 4w")
    parser.add_argument("--max-size", metavar="SIZE", help="bytes, or 500M, 10G, 1T")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--compact", action="store_true", help="rewrite the database without free room; takes a while")
    add_state_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show, ask, delete."""
    age = None if args.older_than is None else _number(args.older_than, _DAYS, "--older-than", "12h, 30d or 4w")
    size = None if args.max_size is None else int(_number(args.max_size, _BYTES, "--max-size", "500M or 10G"))
    if age is None and size is None and not args.compact:
        raise UsageError("without a limit nothing would go; give --older-than, --max-size or both")
    return asyncio.run(_run(args, age, size))


async def _run(args: argparse.Namespace, age: float | None, size: int | None) -> int:
    from tidegate.runs.retention import apply, preview
    from tidegate.store.retention import Limits

    limits = Limits(age, size)
    try:
        async with open_library(settings_of(args), write=True) as (library, store):
            if args.compact and store is not None:
                freed = await store.compact()
                print(f"{store.path}: {_size(freed)} given back")
            if not limits:
                return 0
            found = await preview(library, limits)
            _show(found)
            if not found.runs:
                return 0
            if not (args.yes or _agreed(len(found.runs))):
                print("nothing was deleted")
                return 1
            went = await apply(library, store, limits)
            print(f"{len(went.runs)} runs deleted, {_size(went.bytes)}")
    except StoreError as error:
        if "being written by process" in str(error):
            raise StoreError(f"{error}, or use its Runs page, which removes runs while it works") from None
        raise
    return 0


def _show(found: Preview) -> None:
    from tidegate.store.retention import kept_from_us

    for row in found.runs:
        since_us = kept_from_us(row)
        what = "imported" if since_us == row.imported_us else "ended"
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(since_us // 1_000_000))
        title = "".join(char if char.isprintable() else "?" for char in row.title[:60])
        print(f"  {row.id:<28} {what:<8} {when} UTC  {_size(row.bytes):>10}  {title}")
    print(f"{len(found.runs)} runs would go, {_size(found.bytes)}; {found.kept_runs} stay, {_size(found.kept_bytes)}")


def _agreed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask at; look at the list above and add --yes")
    return input(f"delete these {count} runs for good? [y/N] ").strip().lower() in ("y", "yes")


def _number(text: str, units: dict[str, float] | dict[str, int], option: str, expected: str) -> float:
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-zA-Z]?)", text.strip(), re.ASCII)
    unit = found[2].lower() if found is not None else ""
    if found is None or unit not in units:
        raise UsageError(f"{option} {text!r}: expected for example {expected}")
    return float(found[1]) * units[unit]


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"
