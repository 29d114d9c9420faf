"""What a request is about: which run, and which instant of it.

Every page and every GET of the API takes ``run`` (a run's id; without it the run that the backend was started with) and
``at`` (microseconds UTC; without it the live run's now, which is followed, or the end of the run). Both are hostile
text: ``run`` is only compared, ``at`` is read as a number and brought into the run's extent.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.errors import NotFoundError
from tidegate.fold import State
from tidegate.web.errors import SHOWN, Refusal
from tidegate.web.states import States
from tidegate.web.templates import short, visible

if TYPE_CHECKING:
    from tidegate.runs.history import History
    from tidegate.store import Run, Store
    from tidegate.web.appstate import AppState

MAX_AT_US: Final = 1 << 53
"""Later instants cannot be told apart by a browser; it is the year 2255."""

_HELD: Final = "tidegate.held"
"""Key of a request's scope: what is closed when it is over."""

_OPEN_RUNS: Final = "It may have been deleted. Open Runs to see those that there are."


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """A run, and its place in this backend.

    Attributes:
        store: holds the run.
        run: the run as its store knows it.
        history: the run at any instant.
        start_us: first instant of the run.
        end_us: last instant of the run; of one that is being written at least now.
        writing: whether the run is being written.
        default: whether it is the run that the backend was started with.
    """

    store: Store
    run: Run
    history: History
    start_us: int
    end_us: int
    writing: bool
    default: bool

    def within(self, at_us: int | None) -> int:
        """The instant, brought to the nearest end of the run; its end for None."""
        return self.end_us if at_us is None else min(max(at_us, self.start_us), self.end_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown(ShownRun):
    """A run at an instant. ``state`` is shared between requests: it is only looked at.

    Attributes:
        state: what the run's records say at ``at_us``.
        live: whether the live run is followed: ``state`` is of this moment.
        given_at_us: the instant that was asked for, within the run; None when live, and for the end of a run.
        at_us: the instant that is shown, within the run; the pages' now.
        ord: ordinal of the last record that is shown.
    """

    state: State
    live: bool
    given_at_us: int | None
    at_us: int
    ord: int
    _whole: Callable[[], Coroutine[Any, Any, State]] = field(repr=False)

    async def whole(self) -> State:
        """The state at the end of the run, now when it is being written; only to be looked at."""
        return await self._whole()

    @property
    def query(self) -> str:
        """The query string that shows the same again; empty for what is shown without one."""
        if self.given_at_us is None and self.default:
            return ""
        fields = {"run": self.run.id} | ({} if self.given_at_us is None else {"at": str(self.at_us)})
        return urlencode(fields)

    def playhead(self) -> dict[str, Any]:
        """The position, as the API tells it."""
        return {
            "at_us": self.at_us,
            "start_us": self.start_us,
            "end_us": self.end_us,
            "live": self.live,
            "ord": self.ord,
        }


class Positions:
    """Finds what requests are about. One for each backend."""

    def __init__(self, app: AppState) -> None:
        self._app = app
        self._states = States()

    async def run(self, run_id: str | None, held: contextlib.AsyncExitStack) -> ShownRun:
        """The run of that id; the one that the backend was started with for None.

        Args:
            run_id: the id, as it was sent.
            held: keeps the run open until it is closed.

        Raises:
            Refusal: 404, there is no such run.
            UnavailableError: the backend is starting or ending.
        """
        app = self._app
        opened = await app.loaded()
        wanted_id = run_id or opened.run.id
        try:
            found = await held.enter_async_context(app.runs()[0].hold(wanted_id))
        except NotFoundError:
            raise Refusal(404, f"There is no run {_quoted(wanted_id)}.", _OPEN_RUNS) from None
        default = found.run.id == opened.run.id
        writing = default and opened.live is not None
        start_us, end_us = await found.history.extent()
        if writing:
            end_us = max(end_us, app.state.last_t_us, time.time_ns() // 1000)
        return ShownRun(
            store=found.store, run=found.run, history=found.history, start_us=start_us, end_us=end_us, writing=writing,
            default=default,
        )  # fmt: skip

    async def at(self, run_id: str | None, at_us: int | None, held: contextlib.AsyncExitStack) -> Shown:
        """The run at an instant; None is the live run's now, or the end of a run. See :meth:`run`."""
        found = await self.run(run_id, held)
        at = found.within(at_us)

        async def whole() -> State:
            return self._app.state if found.default else await self._state(found, found.end_us)

        state = await whole() if at_us is None else await self._state(found, at)
        return Shown(
            store=found.store, run=found.run, history=found.history, start_us=found.start_us, end_us=found.end_us,
            writing=found.writing, default=found.default, state=state, live=found.writing and at_us is None,
            given_at_us=None if at_us is None else at, at_us=at, ord=state.ord, _whole=whole,
        )  # fmt: skip

    async def _state(self, found: ShownRun, at_us: int) -> State:
        history = found.history
        ord_ = await history.ord_at(at_us)

        async def make() -> State:
            # Not of `at_us`: more may have been committed meanwhile, and what is kept under the ordinal would have it.
            return await history.state_at(await history.at_of(ord_) if ord_ else 0)

        return await self._states.get((history, ord_), make)


class KeepOpen:
    """Lets a request keep the run open that it is about, to the end of its answer, however many others are opened."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.AsyncExitStack() as stack:
            scope[_HELD] = stack
            await self.app(scope, receive, send)


def positions(request: Request) -> Positions:
    """The positions of the backend that serves this request."""
    found: Positions = request.app.state.positions
    return found


async def shown_of(request: Request) -> Shown:
    """What the request is about.

    Raises:
        Refusal: 400, ``at`` is no instant; 404, there is no such run.
        UnavailableError: the backend is starting or ending.
    """
    run_id, at_us = wanted(request)
    shown = await positions(request).at(run_id, at_us, request.scope[_HELD])
    request.scope[SHOWN] = shown
    return shown


async def run_of(request: Request) -> ShownRun:
    """The run that the request is about, where the instant does not matter. Raises as :func:`shown_of`."""
    run_id, _ = wanted(request)
    return await positions(request).run(run_id, request.scope[_HELD])


def wanted(request: Request) -> tuple[str | None, int | None]:
    """``run`` and ``at`` of a request, None where they are not given.

    Raises:
        Refusal: 400, ``at`` is no instant.
    """
    query = request.query_params
    return query.get("run") or None, instant("at", query.get("at"))


def instant(name: str, text: str | None) -> int | None:
    """Microseconds UTC out of a query; None when it is not given or empty.

    Raises:
        Refusal: 400, it is none.
    """
    if not text:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise Refusal(
            400,
            f"{name}: expected an instant in microseconds UTC, a whole number, not {_quoted(text)}.",
            "Leave it out for the end of the run, or now where the run is live.",
        )
    # Too long a number is beyond every run; what is outside a run is brought to its nearest end.
    value = int(digits[:20])
    return 0 if text.startswith("-") else min(value, MAX_AT_US)


def _quoted(text: str) -> str:
    return f"“{visible(short(text))}”"
