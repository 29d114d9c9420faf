"""A collector of a stock engine in the test's loop, and waiting for its records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from tests.support.record_sink import RecordSink
from tests.support.stock_engine import Publisher
from tidegate_collectors.engine.stock.main import watch
from tidegate_collectors.engine.stock.options import Config
from tidegate_collectors.records import AnyRecord, EngineSample, KvTransition

T = TypeVar("T")


@asynccontextmanager
async def watching(
    sink: RecordSink, url: str, publisher: Publisher | None = None, **more: object
) -> AsyncIterator[None]:
    """A collector, as ``tidegate collect --engine`` runs it, in this loop."""
    settings: dict[str, object] = {"url": url, "name": "stock", "link": sink.path, "interval_s": 0.05}
    if publisher is not None:
        settings |= {"kv_events": publisher.address, "kv_replay": publisher.replay_address}
    stop = asyncio.Event()
    task = asyncio.create_task(watch(Config(**(settings | more)), stop))  # type: ignore[arg-type]
    try:
        if publisher is not None:
            await asyncio.to_thread(publisher.wait_for_subscriber)
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 15)


async def until(sink: RecordSink, condition: Callable[[list[AnyRecord]], bool]) -> None:
    await asyncio.to_thread(sink.wait_for, condition, 10.0)


def of(records: list[AnyRecord], kind: type[T]) -> list[T]:
    return [record for record in records if isinstance(record, kind)]


async def settled(sink: RecordSink, session: str, **residency: int) -> None:
    """Wait until the session's blocks are there, as far as records say it."""
    await until(sink, lambda found: last_of(found, session) == residency)


def last_of(records: list[AnyRecord], session: str) -> dict[str, int]:
    return next((r.residency for r in reversed(of(records, KvTransition)) if r.session == session), {})


async def sampled(sink: RecordSink, count: int = 1) -> EngineSample:
    """The newest sample, after ``count`` more have come."""
    before = len(sink.of(EngineSample))
    await until(sink, lambda found: len(of(found, EngineSample)) >= before + count)
    sample = sink.of(EngineSample)[-1]
    assert isinstance(sample, EngineSample)
    return sample
