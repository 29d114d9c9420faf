"""One frame for all: what changed is encoded once a tick and shared by every open page.

A subscriber that reads too slowly loses its frames and is told so (``event: gap``); it then fetches the whole state. A
subscriber that comes back gets the frames it missed as long as they are in the ring.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from tidegate.web.responses import encode

URGENT_S: Final = 0.02
RING_S: Final = 60.0
RING_BYTES: Final = 4 << 20
QUEUE_FRAMES: Final = 64
QUEUE_BYTES: Final = 2 << 20
MAX_SUBSCRIBERS: Final = 200


def sse(event: str, data: bytes, id_: int | None = None) -> bytes:
    """One server-sent event; ``data`` is JSON, which has no line breaks."""
    head = f"event: {event}\n".encode() + (b"" if id_ is None else f"id: {id_}\n".encode())
    return head + b"data: " + data + b"\n\n"


class News(NamedTuple):
    """What a source has to say: a frame's JSON, or None when more changed than it kept."""

    ord: int
    data: bytes | None


class Source(Protocol):
    """Where frames come from."""

    @property
    def ord(self) -> int:
        """Ordinal of the last record that is folded."""
        ...

    @property
    def run(self) -> str:
        """Id of the run."""
        ...

    def news(self) -> News | None:
        """What changed since the last call; None when nothing did."""
        ...

    def forget(self) -> None:
        """Drop what changed: nobody is there to be told."""
        ...


@dataclass(frozen=True, slots=True)
class _Frame:
    ord: int
    time: float
    data: bytes


class Subscriber:
    """One open stream: a bounded queue of frames."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._gap_from: int | None = None
        self._last = self._told = hub.ord
        self.closed = False

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, data: bytes, ord_: int) -> bool:
        """Queue a frame; false when it was dropped because the reader is behind."""
        if self._gap_from is None and (len(self._queue) >= QUEUE_FRAMES or self._bytes + len(data) > QUEUE_BYTES):
            self._gap_from = self._told
            self._queue.clear()
            self._bytes = 0
        if self._gap_from is not None:
            self._wake.set()
            return False
        self._last = ord_
        self._queue.append(data)
        self._bytes += len(data)
        self._wake.set()
        return True

    def gap(self, from_ord: int) -> None:
        """Tell the reader that it misses what came after ``from_ord``."""
        self._gap_from = from_ord if self._gap_from is None else min(from_ord, self._gap_from)
        self._queue.clear()
        self._bytes = 0
        self._wake.set()

    def close(self) -> None:
        """End the stream: the next :meth:`read` returns None."""
        self.closed = True
        self._wake.set()

    async def read(self, timeout_s: float) -> bytes | None:
        """Everything queued; empty when nothing came in time, None when the stream has ended."""
        if not self._wake.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                return b""
        self._wake.clear()
        if self.closed:
            return None
        if self._gap_from is not None:
            gap = {"from_ord": self._gap_from, "to_ord": self._hub.ord}
            self._gap_from = None
            self._last = self._told = self._hub.ord
            return sse("gap", encode(gap))
        data = b"".join(self._queue)
        self._told = self._last
        self._queue.clear()
        self._bytes = 0
        return data


class Hub:
    """Makes frames and hands them out. All methods belong to the event loop's thread.

    Args:
        source: where frames come from.
        tick_s: least time between two frames.
        clock: monotonic seconds.
    """

    def __init__(self, source: Source, tick_s: float = 0.1, clock: Callable[[], float] | None = None) -> None:
        self._source = source
        self._tick_s = tick_s
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._ring: deque[_Frame] = deque()
        self._ring_bytes = 0
        self._floor = 0
        self._last = -1e9
        self._seen = -1e9
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.previous_ord = 0
        self.frames = 0
        self.dropped_frames = 0
        self.closed = False
        self.subscribers: set[Subscriber] = set()
        self.on_close: list[Callable[[], None]] = []
        """Called when all streams are to end: there are other streams than those of the hub."""

    @property
    def ord(self) -> int:
        """Ordinal of the last record that is folded."""
        return self._source.ord

    @property
    def full(self) -> bool:
        """Whether a further stream has to be turned away."""
        return len(self.subscribers) >= MAX_SUBSCRIBERS

    def status(self) -> dict[str, Any]:
        """Figures for the Health page."""
        return {
            "clients": len(self.subscribers),
            "queued": sum(len(subscriber) for subscriber in self.subscribers),
            "frames": self.frames,
            "dropped_frames": self.dropped_frames,
        }

    def notify(self, urgent: bool = False) -> None:
        """Something changed: a frame follows at the tick, or after 20 ms when it is urgent."""
        if self.closed or self._asleep():
            return
        due = max(self._clock(), self._last + (min(URGENT_S, self._tick_s) if urgent else self._tick_s))
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._clock()), self.flush)

    def flush(self) -> None:
        """Make a frame of what changed and hand it out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._last = self._clock()
        news = self._source.news()
        if news is None:
            return
        self.frames += 1
        if news.data is None:
            self._start_anew()
            for subscriber in self.subscribers:
                subscriber.gap(self.previous_ord)
            self.previous_ord = news.ord
            return
        moved = news.ord > self.previous_ord
        # A frame that holds no new record (a collector left, say) has no id: it is no place to resume from.
        data = sse("frame", news.data, news.ord if moved else None)
        if moved:
            self._remember(_Frame(news.ord, self._last, data))
        for subscriber in self.subscribers:
            if not subscriber.offer(data, news.ord):
                self.dropped_frames += 1
        self.previous_ord = news.ord

    def wake(self) -> bool:
        """Somebody fetched the whole state and will follow it: make frames from here on. True when none were made."""
        asleep = self._asleep()
        if asleep:
            self._source.forget()
            self._start_anew()
            self.previous_ord = self.ord
        self._seen = self._clock()
        return asleep

    def subscribe(self, after: int | None = None) -> Subscriber:
        """A new stream. It begins with ``hello``, then what was missed after record ``after``, or a ``gap``."""
        if not self.wake():
            self.flush()
        subscriber = Subscriber(self)
        hello = sse("hello", encode({"ord": self.ord, "run": self._source.run}))
        subscriber.offer(hello, self.ord)
        if after is not None and not self._floor <= after <= self.ord:
            gap = {"from_ord": min(max(after, 0), self.ord), "to_ord": self.ord}
            subscriber.offer(sse("gap", encode(gap)), self.ord)
        elif after is not None:
            missed = b"".join(frame.data for frame in self._ring if frame.ord > after)
            if len(hello) + len(missed) > QUEUE_BYTES:  # more than a reader may be behind: the whole state is less
                missed = sse("gap", encode({"from_ord": after, "to_ord": self.ord}))
            if missed:
                subscriber.offer(missed, self.ord)
        self.subscribers.add(subscriber)
        if self.closed:
            subscriber.close()
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Forget a stream; harmless when it is forgotten already."""
        self.subscribers.discard(subscriber)
        self._seen = self._clock()

    def close(self) -> None:
        """End all streams, now."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for subscriber in self.subscribers:
            subscriber.close()
        for close in self.on_close:
            close()

    def _asleep(self) -> bool:
        """Nobody listens, and whoever did is gone too long to resume: no frames are made."""
        return not self.subscribers and self._clock() - self._seen > RING_S

    def _start_anew(self) -> None:
        self._ring.clear()
        self._ring_bytes = 0
        self._floor = self.ord

    def _remember(self, frame: _Frame) -> None:
        self._ring.append(frame)
        self._ring_bytes += len(frame.data)
        while self._ring and (self._ring_bytes > RING_BYTES or self._ring[0].time < frame.time - RING_S):
            old = self._ring.popleft()
            self._ring_bytes -= len(old.data)
            self._floor = old.ord
