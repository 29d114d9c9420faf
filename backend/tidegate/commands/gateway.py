"""``tidegate gateway``: handed to the collectors' package, which also runs without the backend."""

from __future__ import annotations

import argparse

from tidegate_collectors.agent.gateway import main as gateway

_EPILOG = """\
examples:
  tidegate gateway --upstream http://127.0.0.1:8000     in front of a vLLM on this machine
  tidegate run -- python agent.py                       its requests go through the gateway, as one session
  curl http://127.0.0.1:6457/tidegate/health            what it has passed, and whether it reaches engine and backend
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand with the arguments that its module has."""
    parser = subparsers.add_parser(
        "gateway",
        help="pass agents' requests to the engine and send records of the turns",
        description=(
            "Listen for requests of the OpenAI and Anthropic APIs and pass them to the engine, untouched, telling of "
            "each turn and of the tools that it asks for."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    gateway.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run it; returns its exit code."""
    return gateway.main(args)
