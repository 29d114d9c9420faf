"""``tidegate doctor``: what this host can do, found by trying it."""

from __future__ import annotations

import argparse
import sys

_DESCRIPTION = """\
Try each ability that Tidegate can use on this host (BTF, BPF tracepoints, cgroups, the memory controller, pressure
figures, rights) and say for each whether it works, and if not why and what to do. Nothing is changed (what BCC
compiles for this kernel is kept in the state directory, where there is one). As root more can be tried.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="try what this host can do, and say what is missing",
        description=_DESCRIPTION,
        epilog="examples:\n  sudo tidegate doctor\n  tidegate doctor --json\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report. Exit code 0 whatever is missing: a missing ability is an answer, not an error."""
    import msgspec

    from tidegate_collectors.kernel import capabilities

    found = list(capabilities.report())
    if args.json:
        for capability in found:
            print(msgspec.json.encode(_plain(capability)).decode())
        return 0
    width = max((len(capability.name) for capability in found), default=0)
    for capability in found:
        mark = "yes" if capability.available else "no "
        print(f"{mark}  {_printable(capability.name):<{width}}  {_printable(capability.reason)}".rstrip())
    missing = sum(not capability.available for capability in found)
    print(f"\n{len(found) - missing} of {len(found)} abilities are available.")
    sys.stdout.flush()
    return 0


def _plain(capability: object) -> dict[str, object]:
    return {name: getattr(capability, name) for name in ("plane", "name", "available", "reason")}


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
