"""What the hub sends: the changes of the folded state, and of the collectors' connections, as a frame's JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tidegate.fold import views
from tidegate.web.hub import News
from tidegate.web.responses import encode

if TYPE_CHECKING:
    from tidegate.web.appstate import AppState


class Frames:
    """Makes frames of one backend's state; see :class:`tidegate.web.hub.Source`."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._told: list[tuple[object, object]] = []

    @property
    def ord(self) -> int:
        """Ordinal of the last record that is folded."""
        return self._state.state.ord

    @property
    def run(self) -> str:
        """Id of the run."""
        return self._state.opened.run.id if self._state.opened is not None else ""

    def news(self) -> News | None:
        """What changed since the last call; None when nothing did."""
        changes = self._state.state.changes()
        sources = self._state.sources()
        connected = [(source["src"], source["connected"]) for source in sources]
        if not changes and connected == self._told:
            return None
        self._told = connected
        if changes.overflow:
            return News(self.ord, None)
        now_us = self._state.state.last_t_us if self._state.replay else time.time_ns() // 1000
        view = views.frame_view(self._state.state, changes, now_us=now_us, sources=sources)
        return News(self.ord, encode(view))

    def forget(self) -> None:
        """Drop what changed."""
        self._state.state.changes()
