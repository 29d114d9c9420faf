"""States of instants, which the requests of one page share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tidegate.fold import State

_MAX_STATES: Final = 16
_MAX_WEIGHT: Final = 60_000
"""Sessions and calls of all states that are kept, but for the newest one: some 60 MB."""

Key = tuple[object, int]
"""The history, which is another one when a run is opened anew, and the ordinal of the last record."""


class States:
    """States of instants, shared by the requests that ask for the same one; the last used are kept."""

    def __init__(self, most: int = _MAX_STATES, weight: int = _MAX_WEIGHT) -> None:
        self._most = most
        self._weight = weight
        self._tasks: OrderedDict[Key, asyncio.Task[State]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    async def get(self, key: Key, make: Callable[[], Coroutine[Any, Any, State]]) -> State:
        """The state of ``key``, made when nobody has asked for it lately."""
        task = self._tasks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._tasks[key] = asyncio.create_task(make(), name="tidegate-state")
        self._tasks.move_to_end(key)
        try:
            # Whoever began it may go before it is done; the others still want it.
            return await asyncio.shield(task)
        finally:
            self._make_room()

    def _make_room(self) -> None:
        ready = [(key, task) for key, task in self._tasks.items() if task.done()]
        weights = {key: _weight(task) for key, task in ready}
        total = sum(weights.values())
        for key, _ in ready[:-1]:
            if len(self._tasks) <= self._most and total <= self._weight:
                return
            total -= weights[key]
            del self._tasks[key]


def _weight(task: asyncio.Task[State]) -> int:
    if task.cancelled() or task.exception() is not None:
        return 0
    return sum(1 + len(session.calls) for session in task.result().sessions.values())
