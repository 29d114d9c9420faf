"""``tidegate gateway``: set up, say where to send requests, and run until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

from tidegate_collectors import paths

from .options import Config, GatewayError, add_arguments, check

EXIT_UNAVAILABLE = 5

__all__ = ["add_arguments", "main"]


def main(ns: argparse.Namespace) -> int:
    """Run until SIGINT or SIGTERM; returns the exit code: 2 wrong options, 5 it cannot listen."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="tidegate gateway: %(message)s")
    try:
        config = check(ns, paths.runtime_dir())
    except GatewayError as error:
        print(f"tidegate gateway: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(_serve(config))
    except GatewayError as error:
        print(f"tidegate gateway: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    return 0


async def _serve(config: Config) -> None:
    try:
        from .server import running_gateway
    except ModuleNotFoundError as error:
        raise GatewayError(f"{error.name} is missing; install it: pip install 'tidegate-collectors[gateway]'") from None
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running_gateway(config) as gateway:
        print(_welcome(gateway.url, config.upstream), flush=True)
        await stop.wait()


def _welcome(url: str, upstream: str) -> str:
    return f"""\
tidegate gateway: passes requests to {upstream}
  OpenAI       OPENAI_BASE_URL={url}/v1
  Anthropic    ANTHROPIC_BASE_URL={url}
  a session    {url}/session/ID/v1   (`tidegate run` sets it for what it starts)
  health       {url}/tidegate/health"""
