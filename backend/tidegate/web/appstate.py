"""What a request handler finds: the one object that holds everything of this backend."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import Scope

from tidegate.errors import UnavailableError
from tidegate.settings import Settings
from tidegate.web.cost import OwnCost
from tidegate.web.lookup import recorded_sources

if TYPE_CHECKING:
    from tidegate.fold import State
    from tidegate.ingest import Ingest, LinkServer
    from tidegate.runs.jobs import Jobs
    from tidegate.runs.library import Library
    from tidegate.store import Run, Store
    from tidegate.web.feed import Feed
    from tidegate.web.hub import Hub
    from tidegate.web.pages import Pages
    from tidegate.web.security import FailureLimit, LoginToken, SessionStore
    from tidegate.web.static import StaticFiles


@dataclass(slots=True)
class Live:
    """What only a live backend has: the ways to and from collectors. A replay has no such object."""

    ingest: Ingest
    link: LinkServer


@dataclass(slots=True)
class Opened:
    """The run that is shown by default."""

    store: Store
    run: Run
    live: Live | None
    report: dict[str, Any] | None
    """What was found wrong while a recording was read; none when live."""


@dataclass(slots=True, kw_only=True)
class AppState:
    """Everything of one backend. ``tidegate.app`` builds, opens and closes it."""

    settings: Settings
    static: StaticFiles
    sessions: SessionStore
    token: LoginToken
    failures: FailureLimit
    state: State
    feed: Feed = field(init=False)
    hub: Hub = field(init=False)
    pages: Pages = field(init=False)
    opened: Opened | None = None
    library: Library | None = None
    """All runs that there are; there when ``opened`` is."""
    jobs: Jobs | None = None
    """Imports under way; there when ``opened`` is."""
    records_read: int | None = None
    """Of a recording that is still being read, how many records so far."""
    cost: OwnCost = field(default_factory=OwnCost)
    started_us: int = field(default_factory=lambda: time.time_ns() // 1000)

    @property
    def replay(self) -> bool:
        """Whether a recording is shown."""
        return self.settings.replay is not None

    async def loaded(self) -> Opened:
        """The run, once the records from before the start are folded.

        Raises:
            UnavailableError: the backend is not open, or its recording is still being read.
        """
        if self.opened is None:
            raise UnavailableError(self._why_not_open())
        await self.feed.loaded.wait()
        return self.opened

    def runs(self) -> tuple[Library, Jobs]:
        """The runs and the imports; unlike :meth:`loaded` it does not wait for the fold.

        Raises:
            UnavailableError: the backend is not open, or its recording is still being read.
        """
        if self.library is None or self.jobs is None:
            raise UnavailableError(self._why_not_open())
        return self.library, self.jobs

    def _why_not_open(self) -> str:
        if self.records_read is not None:
            return f"the recording is being read: {self.records_read:,} records so far; try again"
        return "the backend is starting or ending; try again"

    def sources(self) -> list[dict[str, Any]]:
        """The collectors, whether they are connected, and when they last said something."""
        live = self.opened.live if self.opened is not None else None
        if live is not None:
            return live.link.sources()
        return recorded_sources(self.state)


def app_state(scope: Scope) -> AppState:
    """The state of the application that serves this request."""
    state: AppState = scope["app"].state.tidegate
    return state
