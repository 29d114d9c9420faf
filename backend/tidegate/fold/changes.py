"""What changed since it was last asked: the material of a stream frame, bounded whether or not anybody asks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .events import EventView
from .spark import SparkPoint

MemPoint = tuple[int, int, dict[str, int]]
"""t_us, runtime_bytes, bytes of the calls by category."""

WaitPoint = tuple[int, float]
"""t_us, time runnable but waiting, in percent of one core."""


@dataclass(slots=True)
class NewPoints:
    """New points of a session's charts, in order of arrival. A point replaces an earlier one of the same time."""

    mem: list[MemPoint] = field(default_factory=list)
    wait: list[WaitPoint] = field(default_factory=list)


@dataclass(slots=True)
class Changes:
    """Everything that changed between two calls of :meth:`~tidegate.fold.state.State.changes`.

    Attributes:
        sessions: ids of changed sessions.
        calls: (session, call) of changed calls.
        hosts: names of changed hosts.
        engines: names of changed engines.
        spark: new points of the sparklines by session; one point a sampling tick, not yet thinned.
        series: new points of the charts by session.
        events: new events, oldest first.
        lost: whether the counts of lost records changed.
        sources: whether a sender said anything.
        run: whether the run's own description changed.
        overflow: whether more changed than was kept, so that a client has to fetch the whole state again.
    """

    sessions: set[str] = field(default_factory=set)
    calls: set[tuple[str, str]] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    engines: set[str] = field(default_factory=set)
    spark: dict[str, list[SparkPoint]] = field(default_factory=dict)
    series: dict[str, NewPoints] = field(default_factory=dict)
    events: list[EventView] = field(default_factory=list)
    lost: bool = False
    sources: bool = False
    run: bool = False
    overflow: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.sessions or self.calls or self.hosts or self.engines or self.series or self.events or self.lost
            or self.sources or self.run or self.overflow
        )  # fmt: skip


class Tracker:
    """Collects changes. ``open_mem`` and ``open_wait`` name the sessions whose newest tick nobody has been told."""

    __slots__ = (
        "_events", "_limit", "_mem", "_overflow", "_wait", "calls", "engines", "hosts", "lost", "open_mem",
        "open_wait", "run", "sessions", "sources",
    )  # fmt: skip

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._clear()

    def _clear(self) -> None:
        self.sessions: set[str] = set()
        self.calls: set[tuple[str, str]] = set()
        self.hosts: set[str] = set()
        self.engines: set[str] = set()
        self.open_mem: set[str] = set()
        self.open_wait: set[str] = set()
        self.lost = False
        self.sources = False
        self.run = False
        self._overflow = False
        self._mem: dict[str, deque[MemPoint]] = {}
        self._wait: dict[str, deque[WaitPoint]] = {}
        self._events: deque[EventView] = deque(maxlen=self._limit)

    def call(self, session: str, call: str) -> None:
        """A call changed, and with it its session."""
        self.sessions.add(session)
        if len(self.calls) < self._limit:
            self.calls.add((session, call))
        elif (session, call) not in self.calls:
            self._overflow = True

    def mem(self, session: str, point: MemPoint) -> None:
        """A tick of memory is complete."""
        points = self._mem.get(session)
        if points is None:
            points = self._mem[session] = deque(maxlen=self._limit)
        elif len(points) == self._limit:
            self._overflow = True
        points.append(point)

    def wait(self, session: str, point: WaitPoint) -> None:
        """A tick of waiting is complete."""
        points = self._wait.get(session)
        if points is None:
            points = self._wait[session] = deque(maxlen=self._limit)
        elif len(points) == self._limit:
            self._overflow = True
        points.append(point)

    def event(self, event: EventView) -> None:
        """An event for the feed."""
        if len(self._events) == self._limit:
            self._overflow = True
        self._events.append(event)

    def forget(self, session: str) -> None:
        """The session is gone or begins anew: drop what was not yet told of it."""
        self._mem.pop(session, None)
        self._wait.pop(session, None)
        self.open_mem.discard(session)
        self.open_wait.discard(session)
        self.sessions.discard(session)
        if self.calls:
            self.calls = {key for key in self.calls if key[0] != session}

    def take(self) -> Changes:
        """Everything collected, and begin anew."""
        series: dict[str, NewPoints] = {}
        spark: dict[str, list[SparkPoint]] = {}
        for session, mem in self._mem.items():
            series.setdefault(session, NewPoints()).mem = list(mem)
            spark[session] = [(t_us, runtime, sum(calls.values())) for t_us, runtime, calls in mem]
        for session, wait in self._wait.items():
            series.setdefault(session, NewPoints()).wait = list(wait)
        changes = Changes(
            sessions=self.sessions,
            calls=self.calls,
            hosts=self.hosts,
            engines=self.engines,
            spark=spark,
            series=series,
            events=list(self._events),
            lost=self.lost,
            sources=self.sources,
            run=self.run,
            overflow=self._overflow,
        )
        self._clear()
        return changes
