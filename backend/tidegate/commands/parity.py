"""``tidegate parity``: take the KV decisions of recordings again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.errors import BadInputError

if TYPE_CHECKING:
    from tidegate_collectors.engine.parity import Parity

_DESCRIPTION = """\
Take every KV decision of a recording again from its recorded inputs, and compare action, costs, margin and length of
the pin, to the bit. Prints how many there are, the first that differs, and a SHA-256 over all of them, which is the
same on every machine.
"""

_EPILOG = """\
examples:
  tidegate parity run.jsonl                 one recording
  tidegate parity recordings/*.jsonl.zst    several, packed or not

exit codes: 0 all are the same; 1 one differs; 3 no such file; 4 it cannot be read, or has no decision
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "parity",
        help="take the KV decisions of a recording again and compare",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recordings (JSONL, .gz, .zst)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check each file; 1 when a decision differs. Raises NotFoundError and BadInputError."""
    return max(_check(path) for path in args.files)


def _check(path: Path) -> int:
    from tidegate.ingest.lines import LinesOfFile
    from tidegate_collectors.engine.parity import Parity
    from tidegate_collectors.records import KvDecision, RecordError, decode

    parity = Parity()
    place = ""
    number = broken = 0
    file = LinesOfFile(path)
    for block in file.blocks():
        for line in block:
            number += 1
            if b"kv.decision" not in line:
                continue
            try:
                record = decode(line)
            except RecordError:
                broken += 1
                continue
            if isinstance(record, KvDecision) and not parity.take(record) and not place:
                place = f"{path}:{number}"
    if not parity.count:
        raise BadInputError("no KV decision in it; the engine's plugin writes them", source=str(path))
    _tell(path, parity, place, broken, file.damage)
    return 1 if parity.mismatches else 0


def _tell(path: Path, parity: Parity, place: str, broken: int, damage: str) -> None:
    print(f"{path}: {parity.count} decisions, {parity.mismatches} of them differ when taken again")
    if parity.first is not None:
        first = parity.first
        print(f"  first: {place}: seq {first.seq}, session {first.session!a}, {first.what}")
        print(f"    recorded {first.recorded[:200]!a}, again {first.again[:200]!a}")
    if broken:
        print(f"  {broken} lines that speak of decisions are no records and were passed over")
    if damage:
        print(f"  read up to here only: {damage}")
    print(f"  sha256 {parity.sha256()}")
