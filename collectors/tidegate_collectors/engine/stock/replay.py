"""Having batches again that were lost on their way: vLLM keeps the last 10,000, and sends them when asked."""

from __future__ import annotations

import asyncio
from typing import Final

import zmq
import zmq.asyncio

from tidegate_collectors.engine.stock.events import MAX_BATCH_BYTES, EventError, sequence_of

TIMEOUT_S: Final = 5.0
MAX_BATCHES: Final = 100_000
_END: Final = -1


def socket(context: zmq.asyncio.Context, kind: int, address: str) -> zmq.asyncio.Socket:
    """A socket that leads to ``address``, with bounds. ZMQ connects and reconnects by itself."""
    found = context.socket(kind)
    found.setsockopt(zmq.LINGER, 0)
    found.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
    found.setsockopt(zmq.RCVHWM, MAX_BATCHES)
    found.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    if kind == zmq.SUB:
        found.setsockopt(zmq.SUBSCRIBE, b"")
    found.connect(address)
    return found


async def fetch(
    context: zmq.asyncio.Context, address: str | None, first: int, timeout_s: float = TIMEOUT_S
) -> list[tuple[int, bytes]] | None:
    """The batches from ``first`` on that are still kept there, in order; None where nobody answers in time.

    What had come when the time was over is returned.
    """
    if address is None:
        return None
    found: list[tuple[int, bytes]] = []
    dealer = socket(context, zmq.DEALER, address)
    try:
        async with asyncio.timeout(timeout_s):
            await dealer.send_multipart([b"", max(0, first).to_bytes(8, "big")])
            while len(found) < MAX_BATCHES:
                frames = await dealer.recv_multipart()
                try:
                    seq, payload = sequence_of(frames)
                except EventError:
                    continue
                if seq == _END:
                    break
                if seq >= first and (not found or seq > found[-1][0]):
                    found.append((seq, payload))
    except TimeoutError:
        return found or None
    finally:
        dealer.close()
    return found
