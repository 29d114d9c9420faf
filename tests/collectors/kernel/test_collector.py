"""What the collector does beyond the tracker: what it undoes and what it frees."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import pytest

from tests.support.scripted_observer import ScriptedObserver
from tests.support.tracker_rig import naming
from tidegate_collectors.kernel import collector as collector_module
from tidegate_collectors.kernel.agent_protocol import RegisterSession
from tidegate_collectors.kernel.agent_server import Refused
from tidegate_collectors.kernel.clock import now_us
from tidegate_collectors.kernel.collector import Collector
from tidegate_collectors.kernel.ledger import CallLedger
from tidegate_collectors.kernel.observer import Event, EventKind, SubjectStats
from tidegate_collectors.kernel.sampler import Sampler
from tidegate_collectors.kernel.tracker import Tracker
from tidegate_collectors.link.peer import Peer
from tidegate_collectors.records import CallEnd, CallStart, MemSample, Record, SessionStart


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


def test_a_call_is_moved_only_when_it_has_lasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a new call THEN its move waits, and a call that was over meanwhile has none left to do."""
    monkeypatch.setattr(collector_module, "MOVE_AFTER_S", 60.0)  # a busy machine may need 15 ms to get here
    observer, sent = ScriptedObserver(), list[Record]()
    collector = collector_of(observer, tmp_path, sent)
    try:
        collector.handle(Peer(os.getpid(), 0, 0), RegisterSession(session="s"))
        assert collector.next_move_s is None
        now = now_us()
        fork = Event(EventKind.FORK, now, 1, pid=2_000_001, ppid=os.getpid())
        call = Event(EventKind.CALL, now, 1 << 32, pid=2_000_001, ppid=os.getpid(), a=1, argv=("git", "log"))
        observer.events = [fork, call]
        collector.drain()
        assert [type(record) for record in sent][:2] == [SessionStart, CallStart]
        assert collector.next_move_s is not None
        assert 0 < collector.next_move_s <= 60.0
        collector.move_due(0.0)
        assert collector.next_move_s is not None, "it is not due yet"
        collector.move_due(math.inf)
        assert collector.next_move_s is None
    finally:
        collector.shutdown()
        observer.close()


def test_a_call_that_was_seen_late_is_moved_at_once(tmp_path: Path) -> None:
    observer = ScriptedObserver()
    collector = collector_of(observer, tmp_path, [])
    try:
        collector.handle(Peer(os.getpid(), 0, 0), RegisterSession(session="s"))
        begun, pid = now_us() - 80_000, 2_000_001
        observer.events = [
            Event(EventKind.FORK, begun, 1, pid=pid, ppid=os.getpid()),
            Event(EventKind.CALL, begun, 1 << 32, pid=pid, ppid=os.getpid(), a=1, argv=("make",)),
        ]
        collector.drain()
        assert collector.next_move_s == 0.0
    finally:
        collector.shutdown()
        observer.close()


def test_a_call_between_two_samples_leaves_its_peak_and_the_sessions(tmp_path: Path) -> None:
    observer, sent = ScriptedObserver(), list[Record]()
    collector = collector_of(observer, tmp_path, sent)
    subject = 1 << 32
    try:
        collector.handle(Peer(os.getpid(), 0, 0), RegisterSession(session="s"))
        observer.by_subject[subject] = SubjectStats(peak_bytes=200, anon_bytes=0)
        observer.by_session[1] = SubjectStats(peak_bytes=230, anon_bytes=30)
        pid = 2_000_001
        observer.events = [
            Event(EventKind.FORK, 5, 1, pid=pid, ppid=os.getpid()),
            Event(EventKind.CALL, 5, subject, pid=pid, ppid=os.getpid(), a=1, argv=("ls",)),
            Event(EventKind.EXIT, 9, subject, pid=pid, a=0),
        ]
        collector.drain()
        samples = [record for record in sent if isinstance(record, MemSample)]
        assert [(one.subject, one.call, one.t, one.anon_bytes, one.peak_bytes) for one in samples] == [
            ("call", "c1", 9, 0, 200),
            ("session", None, 9, 30, 230),
        ]
        kinds = [type(record) for record in sent]
        assert kinds.index(MemSample) < kinds.index(CallEnd), "the end is the last word on a call"
    finally:
        collector.shutdown()
        observer.close()
