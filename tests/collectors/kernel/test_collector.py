"""What the collector does beyond the tracker: what it undoes and what it frees."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.scripted_observer import ScriptedObserver
from tests.support.tracker_rig import naming
from tidegate_collectors.kernel.agent_protocol import RegisterSession
from tidegate_collectors.kernel.agent_server import Refused
from tidegate_collectors.kernel.collector import Collector
from tidegate_collectors.kernel.ledger import CallLedger
from tidegate_collectors.kernel.observer import SubjectStats
from tidegate_collectors.kernel.sampler import Sampler
from tidegate_collectors.kernel.tracker import Tracker
from tidegate_collectors.link.peer import Peer
from tidegate_collectors.records import Record


def collector_of(observer: ScriptedObserver, directory: Path, sent: list[Record]) -> Collector:
    return Collector(
        observer=observer,
        tracker=Tracker(naming, window_us=100_000),
        sampler=Sampler(observer, kills_reported=True),
        tree=None,
        ledger=CallLedger(directory),
        send=sent.append,
    )


def test_a_session_that_the_observer_refuses_leaves_no_counters(tmp_path: Path) -> None:
    """GIVEN an observer that finds out late that the process is gone THEN what it made before is forgotten."""
    observer, sent = ScriptedObserver(), list[Record]()
    collector = collector_of(observer, tmp_path, sent)
    try:
        observer.refuse = ProcessLookupError(errno.ESRCH, "process is gone")
        with pytest.raises(Refused, match="is gone"):
            collector.handle(Peer(os.getpid(), 0, 0), RegisterSession(session="s"))
        assert observer.calls == [("untrack", 1)]
        assert collector.idle
        assert sent == []
        observer.refuse = None
        collector.handle(Peer(os.getpid(), 0, 0), RegisterSession(session="s"))
        assert len(sent) == 1
    finally:
        collector.shutdown()
        observer.close()


def test_counters_of_calls_that_nobody_heard_of_are_freed(tmp_path: Path) -> None:
    """GIVEN a ring that overflowed WHEN a call's every event was lost THEN its place in the kernel's table is freed."""
    observer = ScriptedObserver()
    collector = collector_of(observer, tmp_path, [])
    unheard, running = 1 << 32, (1 << 32) + 1
    try:
        observer.by_subject = {unheard: SubjectStats(alive=0), running: SubjectStats(alive=1), 7: SubjectStats(alive=0)}
        collector.tick(2_000_000)
        assert observer.calls == [], "nothing was lost, so nobody is unheard of"
        observer.losses = {"bpf_ring": 3}
        collector.tick(4_000_000)
        assert observer.calls == [("untrack", unheard)]
    finally:
        collector.shutdown()
        observer.close()
