"""The self-check passes on programs that are right and names the truth that a wrong one misses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.bpf import Loader, needs_root
from tidegate_collectors.kernel import selfcheck
from tidegate_collectors.kernel.bpf_observer import BpfObserver
from tidegate_collectors.kernel.libbpf import BpfError
from tidegate_collectors.kernel.observer import Event, EventKind, SubjectStats

pytestmark = [pytest.mark.kernel, needs_root]


@pytest.fixture(scope="module", params=["rss_stat", "memcg"])
def observer(request: pytest.FixtureRequest, loader: Loader) -> Iterator[BpfObserver]:
    """Unchecked observers of both sources, by both loaders."""
    opened = BpfObserver(loader=loader, memory_source=request.param, check=False)
    yield opened
    opened.close()


def test_right_programs_pass_and_leave_nothing(observer: BpfObserver) -> None:
    assert 0 < selfcheck.run(observer) < 5_000_000
    assert observer.read_events() == []
    assert observer.stats(selfcheck.SUBJECT) is None
    assert list(observer._subjects.keys()) == []


class Liar:
    """The real observer, with one thing reported as a wrong layout would."""

    def __init__(
        self,
        truth: BpfObserver,
        *,
        event: Callable[[Event], Event | None] = lambda e: e,
        stats: Callable[[SubjectStats], SubjectStats] = lambda s: s,
        session: Callable[[SubjectStats], SubjectStats] = lambda s: s,
    ) -> None:
        self._truth, self._event, self._change, self._session = truth, event, stats, session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._truth, name)

    def fileno(self) -> int:
        return self._truth.fileno()

    def track_runtime(self, cgroup_id: int | None, subject: int, *, pid: int | None) -> None:
        self._truth.track_runtime(cgroup_id, subject, pid=pid)

    def untrack(self, cgroup_id: int | None, subject: int) -> None:
        self._truth.untrack(cgroup_id, subject)

    def read_events(self) -> list[Event]:
        return [changed for event in self._truth.read_events() if (changed := self._event(event)) is not None]

    def stats(self, subject: int) -> SubjectStats | None:
        stats = self._truth.stats(subject)
        return stats and self._change(stats)

    def session_stats(self, runtime_subject: int) -> SubjectStats | None:
        stats = self._truth.session_stats(runtime_subject)
        return stats and self._session(stats)


def _for(kind: EventKind, **changes: Any) -> Callable[[Event], Event]:
    return lambda event: dataclasses.replace(event, **changes) if event.kind is kind else event


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"event": _for(EventKind.CALL, pid=154417008)}, "ids of a call"),
        ({"event": _for(EventKind.CALL, comm="garbage")}, "was seen as 'garbage'"),
        ({"event": _for(EventKind.CALL, argv=("x",))}, "was seen as"),
        ({"event": _for(EventKind.CALL, t_us=1)}, "was seen at 1"),
        ({"event": lambda e: e if e.kind is not EventKind.FORK else None}, "ids of a call"),
        ({"event": _for(EventKind.EXIT, a=37)}, "was seen as"),
        ({"event": _for(EventKind.EXIT, b=5 << 20)}, "at most was seen to have had 5242880"),
        ({"event": _for(EventKind.CALL, cgroup_id=5)}, "was seen in 5"),
        ({"stats": lambda s: dataclasses.replace(s, anon_bytes=s.anon_bytes // 80)}, "was seen to grow by"),
        ({"stats": lambda s: dataclasses.replace(s, anon_bytes=5 << 20, shmem_bytes=0)}, "was seen to grow by"),
        ({"session": lambda s: dataclasses.replace(s, alive=1)}, "still counted"),
        ({"session": lambda s: dataclasses.replace(s, anon_bytes=99 << 20)}, "still counted"),
    ],
)
def test_a_lie_is_named(observer: BpfObserver, lie: dict[str, Any], words: str) -> None:
    with pytest.raises(BpfError, match="self-check") as caught:
        selfcheck.run(Liar(observer, **lie))
    assert words in str(caught.value)
    assert observer.stats(selfcheck.SUBJECT) is None


def test_wrong_times_are_named(observer: BpfObserver) -> None:
    seen = iter(range(10**9, 10**15, 10**9))

    def late(stats: SubjectStats) -> SubjectStats:
        return dataclasses.replace(stats, oncpu_us=next(seen))

    with pytest.raises(BpfError, match="time on a CPU was seen as"):
        selfcheck.run(Liar(observer, stats=late))


def test_times_that_differ_once_are_looked_at_again(observer: BpfObserver) -> None:
    late = iter([0, 10**9])  # between the first two readings; right ever after

    def once(stats: SubjectStats) -> SubjectStats:
        return dataclasses.replace(stats, oncpu_us=stats.oncpu_us + next(late, 0))

    selfcheck.run(Liar(observer, stats=once))
    assert next(late, None) is None


def test_events_that_do_not_come_are_named(observer: BpfObserver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "_TIMEOUT_S", 0.5)
    with pytest.raises(BpfError, match="an event did not come"):
        selfcheck.run(Liar(observer, event=lambda _event: None))


def test_a_helper_that_fails_is_named(observer: BpfObserver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "_HELPER", "raise SystemExit(3)")
    with pytest.raises(BpfError, match="the helper process failed: it said b''"):
        selfcheck.run(observer)
