"""``tidegate collect``: handed to the collectors' package, which also runs without the backend."""

from __future__ import annotations

import argparse

from tidegate_collectors import collecting

_EPILOG = """\
examples:
  sudo tidegate collect                     send to the backend of this machine
  sudo tidegate collect --record-args       keep whole command lines, not only their recognised words
  sudo tidegate collect --loader bcc        have BCC compile the programs for this kernel (python3-bpfcc, no clang)
  tidegate collect --engine http://127.0.0.1:8000     a vLLM without Tidegate's plugin, by its metrics
  tidegate doctor                           what this host can do, and what is missing
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand with the arguments that its module has."""
    parser = subparsers.add_parser(
        "collect",
        help="observe this host's kernel (needs root) or a vLLM, and send records",
        description=(
            "Load the BPF programs, keep a cgroup for each session and call, and send records to `tidegate serve`; or "
            "with --engine, watch a vLLM from outside."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    collecting.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns its exit code."""
    return collecting.main(args)
