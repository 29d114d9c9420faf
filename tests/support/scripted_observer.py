"""An observer whose events and counters the test writes."""

from __future__ import annotations

import os
from typing import Literal

from tidegate_collectors.kernel.observer import Event, SubjectStats
from tidegate_collectors.records import Capability


class ScriptedObserver:
    """Implements the Observer protocol; ``calls`` notes what was asked of it."""

    name = "scripted"
    memory_source: Literal["memcg", "rss_stat", "procfs"] = "rss_stat"

    def __init__(self) -> None:
        self.capabilities: list[Capability] = []
        self.events: list[Event] = []
        self.by_subject: dict[int, SubjectStats] = {}
        self.by_session: dict[int, SubjectStats] = {}
        self.losses: dict[str, int] = {}
        self.run_us: int | None = None
        self.calls: list[tuple[object, ...]] = []
        self.refuse: OSError | None = None
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def read_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def track_runtime(
        self,
        cgroup_id: int | None,
        subject: int,
        *,
        pid: int | None = None,
        runtime_depth: int = 0,
        memcg_id: int | None = None,
    ) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.calls.append(("runtime", subject, pid, runtime_depth))

    def track_call(
        self,
        cgroup_id: int | None,
        subject: int,
        runtime_subject: int,
        *,
        pid: int | None = None,
        memcg_id: int | None = None,
    ) -> None:
        self.calls.append(("call", subject, runtime_subject, pid))

    def dead_calls(self) -> list[int]:
        return [subject for subject, stats in self.by_subject.items() if subject >= 1 << 32 and stats.alive <= 0]

    def untrack(self, cgroup_id: int | None, subject: int) -> None:
        self.calls.append(("untrack", subject))

    def stats(self, subject: int) -> SubjectStats | None:
        return self.by_subject.get(subject)

    def session_stats(self, runtime_subject: int) -> SubjectStats | None:
        return self.by_session.get(runtime_subject)

    def lost(self) -> dict[str, int]:
        return dict(self.losses)

    def run_time_us(self) -> int | None:
        return self.run_us

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
