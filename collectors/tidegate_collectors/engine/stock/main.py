"""``tidegate collect --engine URL``: set up, and run until a signal ends it. Needs no root and no kernel collector."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate_collectors import __version__, paths
from tidegate_collectors.engine.stock.options import Config, EngineOptionError, check
from tidegate_collectors.link import Hello, LinkClient, new_src

if TYPE_CHECKING:
    from tidegate_collectors.engine.stock.collector import StockCollector

EXIT_UNAVAILABLE: Final = 5

log = logging.getLogger("tidegate.collect")


def main(ns: argparse.Namespace) -> int:
    """Run until SIGINT or SIGTERM; returns the exit code: 2 wrong options, 5 it cannot start."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="tidegate collect: %(message)s")
    try:
        config = check(ns, ns.link or paths.link_socket())
    except EngineOptionError as error:
        print(f"tidegate collect: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(watch(config))
    except ModuleNotFoundError as error:
        print(
            f"tidegate collect: {error.name} is missing; install it: pip install 'tidegate-collectors[stock]'",
            file=sys.stderr,
        )
        return EXIT_UNAVAILABLE
    except OSError as error:
        print(f"tidegate collect: {error.filename or config.kv_events}: {error.strerror or error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    return 0


async def watch(config: Config, stop: asyncio.Event | None = None) -> None:
    """Watch the engine until a signal comes, or ``stop`` is set.

    Raises:
        ModuleNotFoundError: a library is not installed.
        OSError: the file of captured events cannot be written.
    """
    from tidegate_collectors.engine.stock.capture import Capture
    from tidegate_collectors.engine.stock.collector import StockCollector

    loop = asyncio.get_running_loop()
    capture = Capture(config.kv_capture) if config.kv_capture is not None else None
    runs: list[str] = []

    def on_run(run: str) -> None:  # in the link's thread
        log.info("the backend writes run %s", run)
        runs.append(run)
        if len(runs) > 1:  # the first one gets everything from the start
            loop.call_soon_threadsafe(collector.new_run)

    link = LinkClient(config.link, _hello(), on_run=on_run)
    collector = StockCollector(config, link.send, capture)
    link.start()
    if stop is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, collector.stop)
    waiting = asyncio.create_task(_stop_when(stop, collector)) if stop is not None else None
    log.info("watching engine %s at %s; records go to %s", config.name, config.url, config.link)
    try:
        await collector.run()
    finally:
        if waiting is not None:
            waiting.cancel()
        await asyncio.to_thread(link.close)
        if capture is not None:
            capture.close()


async def _stop_when(stop: asyncio.Event, collector: StockCollector) -> None:
    await stop.wait()
    collector.stop()


def _hello() -> Hello:
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return Hello(
        role="engine", version=__version__, src=new_src("engine"), host=socket.gethostname(), boot_id=boot_id,
        pid=os.getpid(),
    )  # fmt: skip
