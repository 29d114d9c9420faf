"""The tracker on process trees that nobody thought of, with every event in place, some lost, or none of them sane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tracker_rig import C1, ROOT, Rig
from tidegate_collectors.kernel.observer import Event, EventKind
from tidegate_collectors.records import CallEnd, CallStart, ProcExit, SessionEnd, SessionStart

SEEDS = st.integers(0, 2**32)
"""Whole lives from one number: drawing each step by itself is fifty times slower."""


def life(choice: Random, steps: int) -> Iterator[Event]:
    """Forks, execs and exits of a tree below the root as a kernel would report them, until the last process is gone."""
    subject = {ROOT: 1}
    forked: set[int] = set()
    next_pid, next_subject, t = ROOT + 1, C1, 2000
    for _ in range(steps):
        t += choice.randrange(4)
        if not subject:
            return
        pid = choice.choice(sorted(subject))
        what = choice.choice(["fork", "fork", "exec", "exit"])
        if what == "fork":
            subject[next_pid] = subject[pid]
            forked.add(next_pid)
            yield Event(EventKind.FORK, t, subject[pid], next_pid, pid, comm="x")
            next_pid += 1
        elif what == "exec" and subject[pid] == 1 and pid in forked:
            subject[pid] = next_subject
            next_subject += 1
            forked.discard(pid)
            yield Event(EventKind.CALL, t, subject[pid], pid, ROOT, a=1, comm="x", argv=("x",))
        elif what == "exec":
            forked.discard(pid)
            yield Event(EventKind.EXEC, t, subject[pid], pid, ROOT, comm="y")
        else:
            yield Event(EventKind.EXIT, t, subject.pop(pid), pid, ROOT)
    for pid in sorted(subject):
        yield Event(EventKind.EXIT, t + 1, subject[pid], pid, ROOT)


def check(rig: Rig) -> None:
    """What holds for every session that is over."""
    starts, ends = Counter(s.call for s in rig.of(CallStart)), Counter(e.call for e in rig.of(CallEnd))
    assert starts == ends, "each call that began ended, once"
    assert not starts or max(starts.values()) == 1, "ids are unique"
    first = {record.call: at for at, record in enumerate(rig.records) if isinstance(record, CallStart)}
    assert all(first[r.call] < at for at, r in enumerate(rig.records) if isinstance(r, CallEnd)), "in this order"
    assert len(rig.of(SessionStart)) == len(rig.of(SessionEnd)) == 1
    assert rig.tracker.sessions == []
    assert rig.tracker.pids() == []
    assert len(rig.dropped) == len(set(rig.dropped)) == len(starts) + 1, "each subject is forgotten, once"


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 60), batch=st.integers(1, 20))
def test_every_life_is_told_to_its_end(seed: int, steps: int, batch: int) -> None:
    events = list(life(Random(seed), steps))
    one_by_one, batched = Rig(), Rig()
    one_by_one.feed(*events)
    for at in range(0, len(events), batch):
        batched.feed_batch(events[at : at + batch])
    for rig in (one_by_one, batched):
        check(rig)
        exits = [event for event in events if event.kind == EventKind.EXIT]
        assert [(e.pid, e.t) for e in rig.of(ProcExit)] == [(e.pid, e.t_us) for e in exits]
    calls = [event for event in events if event.kind == EventKind.CALL]
    assert [start.pid for start in one_by_one.of(CallStart)] == [event.pid for event in calls]
    # Processes of a call that were alive when its first one went are those whose exits say so.
    behind = Counter(e.call for e in one_by_one.of(ProcExit) if e.left_behind)
    for end in one_by_one.of(CallEnd):
        assert (end.left_behind or 0) <= behind[end.call]
    assert one_by_one.tracker.strays == 0


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 60))
def test_lost_events_leave_nothing_open(seed: int, steps: int) -> None:
    rig, choice = Rig(), Random(seed)
    for event in life(Random(seed + 1), steps):
        if choice.randrange(5):
            rig.feed(event)
    # What the daemon does once a second for processes that are not there any more.
    for pid in rig.tracker.pids():
        rig.carry_out(rig.tracker.lost_exit(pid, 9_000))
    rig.carry_out(rig.tracker.due(9_000 + 10_000_000))
    check(rig)


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 40))
def test_nonsense_neither_breaks_it_nor_is_kept(seed: int, count: int) -> None:
    rig, choice = Rig(), Random(seed)
    for _ in range(count):
        rig.feed(
            Event(
                choice.choice(list(EventKind)),
                choice.randrange(5000),
                choice.choice([0, 1, 2, C1, C1 + 1, C1 + 2]),
                choice.randrange(ROOT - 1, ROOT + 5),
                choice.randrange(ROOT - 1, ROOT + 5),
                choice.choice([-1, 0, 1, 9, 256, 1 << 40]),
                choice.choice([-1, 0, 4096]),
                choice.randrange(3),
                choice.choice(["", "a", "\x1b]"]),
                choice.choice([(), ("",), ("tidegate", "exec")]),
            )
        )
    for pid in rig.tracker.pids():
        rig.carry_out(rig.tracker.lost_exit(pid, 9_000))
    rig.carry_out(rig.tracker.due(100_000_000))
    check(rig)
