"""Plays a run for one client: folds on from an instant, as fast as the run was or as fast as was asked for."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from tidegate.fold import State, apply, views
from tidegate.runs.history import History
from tidegate.store import AnyLine

MIN_SPEED: Final = 0.25
MAX_SPEED: Final = 64.0
TICK_S: Final = 0.1
"""Time between two frames."""

_BUSY_S: Final = 0.06
"""Longest time a tick folds; what does not fit is shown later, and the playhead says so."""

_READ_AHEAD: Final = 4096


class Player:
    """An async iterator of frames (:func:`tidegate.fold.views.frame_view`), one a tick; ends at the end of the run.

    ``now_us`` of a frame is the playhead. Where more records lie between two ticks than can be folded in that time, the
    playhead falls behind the clock: it is where the fold is, and goes on from there at the speed that was asked for. A
    frame with ``gap`` does not hold all that changed: the whole state has to be fetched.

    Args:
        history: the run.
        at_us: where to begin, microseconds UTC; the first frame is of later.
        speed: microseconds of the run in one microsecond, from :data:`MIN_SPEED` to :data:`MAX_SPEED`.
        tick_s: time between two frames, seconds.
        clock: monotonic seconds.

    Attributes:
        state: what the frames are of; None before the first. The player goes on folding it.

    Raises:
        StoreError: (while iterating) the run cannot be read.
    """

    def __init__(
        self,
        history: History,
        at_us: int,
        speed: float,
        *,
        tick_s: float = TICK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state: State | None = None
        self._history = history
        self._at_us = at_us
        self._speed = min(max(speed, MIN_SPEED), MAX_SPEED)
        self._tick_s = tick_s
        self._clock = clock
        self._waiting: deque[tuple[int, AnyLine]] = deque()
        self._read_to = 0

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        state = self.state = await self._history.state_at(self._at_us, track=True)
        self._read_to = state.ord
        # The clock runs from the moment at which the playhead was `began_us`.
        began, began_us = self._clock(), self._at_us
        due = began
        while True:
            due = max(due + self._tick_s, self._clock())
            await asyncio.sleep(due - self._clock())
            self._history.touch()
            wanted_us = began_us + int((self._clock() - began) * 1_000_000 * self._speed)
            if await self._fold(state, wanted_us):
                at_us = wanted_us
            else:
                at_us = max(self._at_us, state.last_t_us)
                began, began_us = self._clock(), at_us
            at_end = not self._waiting and self._read_to >= self._history.run.last_ord
            if at_end:
                at_us = max(self._at_us, min(at_us, state.last_t_us))
            self._at_us = at_us
            changes = state.changes()
            frame = views.frame_view(state, changes, now_us=at_us)
            yield frame | {"gap": True} if changes.overflow else frame
            if at_end:
                return

    async def _fold(self, state: State, until_us: int) -> bool:
        """Fold what is shown at ``until_us``; false when the time of a tick was over before."""
        waiting = self._waiting
        over = self._clock() + _BUSY_S
        while True:
            if not waiting and not await self._read():
                return True
            for _ in range(min(256, len(waiting))):
                if waiting[0][1].t > until_us:
                    return True
                apply(state, *waiting.popleft())
            await asyncio.sleep(0)
            if self._clock() > over:
                return False

    async def _read(self) -> bool:
        """Read on; false at the end of what is committed."""
        first = self._read_to + 1
        if first > self._history.run.last_ord:
            return False
        self._read_to = min(self._history.run.last_ord, self._read_to + _READ_AHEAD)
        async for records in self._history.records(first, self._read_to):
            self._waiting += records
            await asyncio.sleep(0)
        return bool(self._waiting)
