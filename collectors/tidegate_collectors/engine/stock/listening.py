"""KV events from the socket into the table: numbers followed, what is missing fetched again, what is lost told."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import zmq
import zmq.asyncio

from tidegate_collectors.engine.stock import replay, telling
from tidegate_collectors.engine.stock.capture import Capture
from tidegate_collectors.engine.stock.events import Batch, EventError, decode, sequence_of
from tidegate_collectors.engine.stock.residency import Residency
from tidegate_collectors.engine.stock.sequence import Sequence
from tidegate_collectors.records import Loss, Note, Record

log = logging.getLogger("tidegate.collect")

_CLOCK_AHEAD_S: Final = 5.0
_CLOCK_BEHIND_S: Final = 7 * 86_400.0


class Listener:
    """Listens to one engine's events.

    Args:
        engine: its name.
        address, replay_address: of its events, and of their replay.
        send: takes records.
        began_anew: is called when the numbers say that the engine is another process than before.
        capture: where events are written to as well.
    """

    def __init__(
        self, engine: str, address: str, replay_address: str | None, send: Callable[[Record], None],
        began_anew: Callable[[str], None], capture: Capture | None = None,
    ) -> None:  # fmt: skip
        self.residency = Residency()
        self.batches = 0
        self.lost = 0
        self._engine, self._address, self._replay_address = engine, address, replay_address
        self._send, self._began_anew, self._capture = send, began_anew, capture
        self._sequence = Sequence()
        self._context = zmq.asyncio.Context()
        self._lock = asyncio.Lock()
        self._last_t_us = 0
        self._odd_clock = False
        self._rubbish = 0
        self._silent = False  # whether changes are only taken in, to be told as a whole

    async def run(self) -> None:
        """Listen until cancelled."""
        socket = replay.socket(self._context, zmq.SUB, self._address)
        try:
            while True:
                frames = await socket.recv_multipart()
                try:
                    seq, payload = sequence_of(frames)
                    if seq < 0:
                        raise EventError("a number below 0")
                    batch = decode(payload)
                except EventError as error:
                    self._odd(str(error))
                    continue
                async with self._lock:
                    await self._came(seq, batch)
        finally:
            socket.close()

    def close(self) -> None:
        """Close what is open."""
        self._context.destroy(linger=0)

    async def anew(self) -> None:
        """The engine is introduced: know what its replay still knows, and tell where all blocks are."""
        async with self._lock:
            kept = await replay.fetch(self._context, self._replay_address, 0)
            if kept is None and self._replay_address is not None:
                log.warning("nobody answers at %s; compare it with replay_endpoint", self._replay_address)
            if kept is not None:
                self._rebuild(kept)
            self.tell_all()

    def ended(self) -> None:
        """The engine is gone, and what it held."""
        self.residency.clear()
        self._sequence.reset()

    def tell_all(self) -> None:
        """Tell where all blocks are, to somebody who has not heard of it."""
        for record in telling.standing(self._engine, self.residency, telling.now_us()):
            self._send(record)

    def _rebuild(self, kept: list[tuple[int, bytes]]) -> None:
        self.ended()
        self._sequence.skip_to(kept[0][0] if kept else 0)
        self.residency.complete = not self._sequence.expected
        self._silent = True
        try:
            self._take_all(kept)
        finally:
            self._silent = False

    # --- one batch ---------------------------------------------------------------------------------------------------

    async def _came(self, seq: int, batch: Batch) -> None:
        self.batches += 1
        verdict = self._sequence.judge(seq, batch.ts_s)
        if verdict == "old":
            return
        if verdict == "restart":
            self._began_anew(f"its events begin again with number {seq}")
            self.ended()
            self._sequence.skip_to(0)
            verdict = "next" if seq == 0 else "gap"
        if self._sequence.expected is None:  # the first that is heard of this engine
            self.residency.complete = seq == 0
        if verdict == "gap":
            first = self._sequence.expected or 0
            self._take_all(await replay.fetch(self._context, self._replay_address, first) or [])
            if self._sequence.judge(seq, batch.ts_s) == "old":
                return  # it was among them
            self._gave_up(seq)
        elif seq == 0:
            self.residency.complete = True  # nothing was stored before it
        self._take(seq, batch)

    def _take_all(self, kept: list[tuple[int, bytes]]) -> None:
        for seq, payload in kept:
            try:
                batch = decode(payload)
            except EventError as error:
                self._odd(str(error))
                continue  # the next number shows that it is missing
            if self._sequence.expected is not None and seq < self._sequence.expected:
                continue
            self._gave_up(seq)
            if seq == 0:
                self.residency.complete = True
            self._take(seq, batch)

    def _take(self, seq: int, batch: Batch) -> None:
        self._sequence.took(seq, batch.ts_s)
        changes = self.residency.apply(batch.events)
        if self._capture is not None:
            self._capture.write(seq, batch)
        t_us = self._time(batch.ts_s)
        if not self._silent:
            for record in telling.transitions(self._engine, changes, self.residency, t_us):
                self._send(record)
        self._last_t_us = t_us
        if batch.unknown:
            self._odd(f"{batch.unknown} events of a kind that is not known")

    def _gave_up(self, seq: int) -> None:
        """Batches before ``seq`` that are not to be had: what was known before them need not be true any more."""
        missing = self._sequence.skip_to(seq)
        if not missing:
            return
        self.lost += missing
        forgotten = self.residency.forget()
        log.warning("%d batches of KV events were lost; where blocks are is found out anew", missing)
        self._send(
            Loss(
                t=telling.now_us(), where="zmq", count=missing, of=f"batches of KV events of {self._engine}",
                since_us=self._last_t_us or None,
            )
        )  # fmt: skip
        for record in telling.transitions(self._engine, forgotten, self.residency, telling.now_us()):
            self._send(record)

    def _time(self, ts_s: float) -> int:
        """The engine's time of a batch; ours where its clock is far from ours."""
        now_s = time.time()
        good = now_s - _CLOCK_BEHIND_S <= ts_s <= now_s + _CLOCK_AHEAD_S
        if not good and not self._odd_clock:
            text = f"engine {self._engine}: its clock differs from this host's by {ts_s - now_s:+.0f} s; ours is used"
            log.warning("%s", text)
            self._send(Note(t=telling.now_us(), text=text, by="engine"))
        self._odd_clock = not good
        return round(ts_s * 1e6) if good else telling.now_us()

    def _odd(self, what: str) -> None:
        self._rubbish += 1
        if self._rubbish & (self._rubbish - 1) == 0:  # the first, second, fourth, eighth ...
            text = f"KV events at {self._address}: {what} ({self._rubbish} times so far)"
            log.warning("%s", text)
            self._send(Note(t=telling.now_us(), text=text, by="engine"))
