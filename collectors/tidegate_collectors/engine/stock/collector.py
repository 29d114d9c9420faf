"""The loop of ``tidegate collect --engine``: metrics are looked at again and again, events come by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from tidegate_collectors.engine.stock import metrics, telling
from tidegate_collectors.engine.stock.capture import Capture
from tidegate_collectors.engine.stock.http import FetchError, Server, pause
from tidegate_collectors.engine.stock.listening import Listener
from tidegate_collectors.engine.stock.metrics import MetricsError, Reading
from tidegate_collectors.engine.stock.options import Config
from tidegate_collectors.records import EngineEnd, Note, Record

log = logging.getLogger("tidegate.collect")

GONE_AFTER: Final = 3
"""So many times in a row nobody must have listened there before the engine is called gone."""

MAX_PAUSE_S: Final = 15.0
_NO_EVENTS_AFTER: Final = 10


class StockCollector:
    """Watches one engine until it is told to stop.

    Args:
        config: what to watch.
        send: takes records; must not wait.
        capture: where KV events are written to as well.
    """

    def __init__(self, config: Config, send: Callable[[Record], None], capture: Capture | None = None) -> None:
        self._config, self._send, self._capture = config, send, capture
        self._last: Reading | None = None
        self._introduced: tuple[str, str, Reading] | None = None  # version, model, reading; None: it is not there
        self._failures = 0
        self._trouble = ""
        self._look = asyncio.Event()
        self._stopping = False
        self._listener: Listener | None = None
        self._deaf_samples = 0

    def stop(self) -> None:
        """Make :meth:`run` return."""
        self._stopping = True
        self._look.set()

    def new_run(self) -> None:
        """Another run is being written: introduce the engine to it."""
        if self._introduced is None:
            return
        version, model, reading = self._introduced
        self._say(telling.introduction(self._config.name, version, model, reading, events=self._listener is not None))
        if self._listener is not None:
            self._listener.tell_all()

    async def run(self) -> None:
        """Watch the engine."""
        config = self._config
        server = Server(config.url)
        listening: asyncio.Task[None] | None = None
        if config.kv_events is not None:
            self._listener = Listener(
                config.name, config.kv_events, config.kv_replay, self._send, self._began_anew, self._capture
            )
            listening = asyncio.create_task(self._listener.run())
        try:
            while not self._stopping:
                began = time.monotonic()
                wait_s = await self._once(server)
                if listening is not None and listening.done():
                    listening.result()  # a defect: not to be passed over
                await pause(self._look, max(0.05, wait_s - (time.monotonic() - began)))
                self._look.clear()
        finally:
            if listening is not None:
                listening.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await listening
            if self._listener is not None:
                self._listener.close()
            await server.close()

    # --- one look ----------------------------------------------------------------------------------------------------

    async def _once(self, server: Server) -> float:
        """Look at the metrics; returns the seconds until the next look."""
        try:
            reading = metrics.read((await server.get("/metrics")).decode("utf-8", "replace"))
        except (FetchError, MetricsError) as error:
            return self._failed(error)
        if self._trouble:
            log.info("engine %s: %s answers", self._config.name, self._config.url)
        self._failures, self._trouble = 0, ""
        await self._seen(server, reading)
        return self._config.interval_s

    def _failed(self, error: FetchError | MetricsError) -> float:
        self._failures += 1
        if str(error) != self._trouble:
            self._trouble = str(error)
            self._note(f"engine {self._config.name}: {self._config.url}: {error}; trying again", logging.WARNING)
        gone = isinstance(error, FetchError) and error.gone
        if gone and self._failures >= GONE_AFTER:
            self._end("nobody answers there any more")
        slower = max(0, self._failures - GONE_AFTER)
        return min(MAX_PAUSE_S, self._config.interval_s * 2.0 ** min(slower, 10))

    async def _seen(self, server: Server, reading: Reading) -> None:
        why = metrics.restarted(self._last, reading) if self._last is not None else ""
        if why:
            self._end(f"it was started anew: {why}")
        self._last = reading
        if self._introduced is None:
            version = await _said(server, "/version", lambda value: value["version"])
            model = await _said(server, "/v1/models", lambda value: value["data"][0]["id"])
            self._introduced = (version, model, reading)
            listens = self._listener is not None
            self._say(telling.introduction(self._config.name, version, model, reading, events=listens))
            if reading.missing:
                log.info("engine %s has no metrics %s", self._config.name, ", ".join(reading.missing))
            if self._listener is not None:
                await self._listener.anew()
        residency = self._listener.residency if self._listener is not None else None
        self._send(telling.sample(self._config.name, reading, residency))
        self._check_ears(reading)

    def _began_anew(self, why: str) -> None:
        self._end(f"it was started anew: {why}")
        self._look.set()

    def _end(self, why: str) -> None:
        self._last = None
        if self._introduced is None:
            return
        self._introduced = None
        log.warning("engine %s is gone: %s", self._config.name, why)
        self._send(Note(t=telling.now_us(), text=f"engine {self._config.name} is gone: {why}", by="engine"))
        self._send(EngineEnd(t=telling.now_us(), engine=self._config.name, clean=False))
        if self._listener is not None:
            self._listener.ended()

    def _check_ears(self, reading: Reading) -> None:
        """Prompts are computed, and no event ever comes: the address may be wrong."""
        if self._listener is None or self._listener.batches or not reading.block_tokens:
            return
        if reading.counts.get("prompt_tokens", 0) < 2 * reading.block_tokens:
            return
        self._deaf_samples += 1
        if self._deaf_samples == _NO_EVENTS_AFTER:
            self._note(
                f"engine {self._config.name} has computed prompts, and no KV event has come from "
                f"{self._config.kv_events}; compare it with the endpoint in vLLM's --kv-events-config",
                logging.WARNING,
            )

    def _note(self, text: str, level: int) -> None:
        log.log(level, "%s", text)
        self._send(Note(t=telling.now_us(), text=text, by="engine"))

    def _say(self, records: list[Record]) -> None:
        for record in records:
            self._send(record)


async def _said(server: Server, path: str, pick: Callable[[Any], Any]) -> str:
    """A short text out of an answer; empty where there is none."""
    try:
        value = pick(json.loads(await server.get(path)))
    except (FetchError, ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
    return "".join(char if char.isprintable() else "?" for char in value[:128]) if isinstance(value, str) else ""
