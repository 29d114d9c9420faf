"""What the collector undoes when a registration fails half way."""

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
from tidegate_collectors.kernel.sampler import Sampler
from tidegate_collectors.kernel.tracker import Tracker
from tidegate_collectors.link.peer import Peer
from tidegate_collectors.records import Record


def test_a_session_that_the_observer_refuses_leaves_no_counters(tmp_path: Path) -> None:
    """GIVEN an observer that finds out late that the process is gone THEN what it made before is forgotten."""
    observer, sent = ScriptedObserver(), list[Record]()
    collector = Collector(
        observer=observer,
        tracker=Tracker(naming, window_us=100_000),
        sampler=Sampler(observer, kills_reported=True),
        tree=None,
        ledger=CallLedger(tmp_path),
        send=sent.append,
    )
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
