"""The observer as a whole: loading, losses, life time, and what it costs."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.bpf import PYTHON, Loader, calls, needs_root, session
from tidegate_collectors import paths
from tidegate_collectors.kernel import bpf_layout as layout
from tidegate_collectors.kernel.bpf_observer import BpfObserver
from tidegate_collectors.kernel.libbpf import BpfError
from tidegate_collectors.kernel.observer import EventKind, Observer

pytestmark = [pytest.mark.kernel, needs_root]


def test_it_is_an_observer_and_says_what_it_tried(loader: Loader) -> None:
    observer: Observer = BpfObserver(loader=loader, check=False)
    try:
        assert observer.name == "bpf"
        assert observer.memory_source == "rss_stat"
        found = {c.name: c for c in observer.capabilities}
        assert found["tp_btf.rss_stat"].available
        assert found["tp_btf.mark_victim"].available or found["tp_btf.mark_victim"].reason
        assert observer.lost() == {"bpf_ring": 0, "bpf_map": 0}
        assert observer.stats(1) is None
        assert observer.session_stats(1) is None
        observer.untrack(None, 1)
        observer.untrack(12345, 1)
    finally:
        observer.close()


def test_a_full_ring_is_counted_and_reading_goes_on(loader: Loader) -> None:
    observer = BpfObserver(loader=loader, check=False, ring_bytes=4096)
    try:
        script = "for i in $(seq 200); do /bin/true; done"
        with session(observer, "bash", "-c", script) as s:
            s.go()
            s.process.wait()
            time.sleep(0.05)
            lost = observer.lost()
            assert lost["bpf_ring"] > 400
            assert lost["bpf_map"] == 0
            stats = observer.session_stats(s.subject)
            assert stats is not None
            # Counters know nothing of the ring: 200 calls, each a fork and an exit, and what is in the substitution.
            assert stats.exits == stats.forks + 1 >= 202
            seen = observer.read_events()
            assert 0 < len(seen) < 100
            dead = observer.dead_calls()
            assert len(dead) >= 200, "calls of which every event was lost keep their counters until they are freed"
            for subject in dead:
                observer.untrack(None, subject)
            assert observer.dead_calls() == []
        with session(observer, "uname", subject=8) as s:
            assert [e.kind for e in s.run()][-1] is EventKind.EXIT
    finally:
        observer.close()


def test_every_event_is_delivered_or_counted(loader: Loader) -> None:
    observer = BpfObserver(loader=loader, check=False, ring_bytes=8192)
    try:
        with session(observer, "bash", "-c", "for i in $(seq 300); do /bin/true; done") as s:
            s.go()
            while s.process.poll() is None:
                select.select([observer.fileno()], [], [], 0.2)
                s.events.extend(observer.read_events())
                time.sleep(0.01)
            time.sleep(0.05)
            s.events.extend(observer.read_events())
            stats = observer.session_stats(s.subject)
            assert stats is not None
            happened = stats.forks + stats.execs + stats.exits
            assert len(s.events) + observer.lost()["bpf_ring"] == happened
    finally:
        observer.close()


def test_a_full_table_of_subjects_is_counted_and_the_call_stays_runtime(loader: Loader) -> None:
    observer = BpfObserver(loader=loader, check=False)
    try:
        with session(observer, "bash", "-c", "/bin/true; read x; :") as s:
            for subject in range(1000, 20_000):
                try:
                    observer._create(observer._subjects, subject)
                except BpfError as error:
                    assert error.errno == errno.E2BIG
                    break
            s.go()
            events = s.wait_for(lambda seen: any(e.kind is EventKind.EXIT and e.pid != s.pid for e in seen))
            assert calls(events) == []
            assert {e.subject for e in events} == {s.subject}
            assert observer.lost()["bpf_map"] >= 1
    finally:
        observer.close()


def test_nothing_stays_behind_after_close(loader: Loader) -> None:
    before = _programs()
    observer = BpfObserver(loader=loader, check=False)
    assert len(_programs()) > len(before)
    observer.close()
    observer.close()
    deadline = time.monotonic() + 5
    while _programs() - before and time.monotonic() < deadline:  # the kernel frees them a little later
        time.sleep(0.02)
    assert not _programs() - before


def _programs() -> set[str]:
    """Ids of programs that this process keeps open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if "bpf-prog" in str(descriptor.readlink()):
                found.add(descriptor.name)
        except OSError:
            continue
    return found


def test_two_observers_do_not_disturb_each_other(loader: Loader) -> None:
    one, two = BpfObserver(loader=loader, check=False), BpfObserver(loader=loader, check=False)
    try:
        with session(one, "bash", "-c", "uname >/dev/null; :") as s:
            assert len(calls(s.run())) == 1
        assert two.read_events() == []
    finally:
        one.close()
        two.close()


def test_a_wrong_object_is_refused_with_words(tmp_path: Path) -> None:
    path = tmp_path / "collector.bpf.o"
    path.write_bytes(b"\x7fELF nonsense")
    with pytest.raises(BpfError, match="cannot be opened"):
        BpfObserver(programs=path)


def test_a_descriptor_polls_when_there_are_events(loader: Loader) -> None:
    observer = BpfObserver(loader=loader, check=False)
    try:
        assert select.select([observer.fileno()], [], [], 0)[0] == []
        with session(observer, "uname") as s:
            s.go()
            assert select.select([observer.fileno()], [], [], 10)[0] == [observer.fileno()]
            s.wait_for(lambda seen: not s.alive(seen))
    finally:
        observer.close()


def test_run_time_is_counted_and_grows(loader: Loader) -> None:
    observer = BpfObserver(loader=loader, check=False)
    try:
        start = observer.run_time_us()
        if start is None:
            pytest.skip("the kernel does not time programs here")
        with session(observer, "bash", "-c", "for i in $(seq 50); do /bin/true; done") as s:
            s.run()
        assert (observer.run_time_us() or 0) > start
        assert observer.program_costs()["on_exec"][1] >= 50
    finally:
        observer.close()


def test_a_collector_with_it_stays_small(loader: Loader, tmp_path: Path) -> None:
    """Also with BCC, whose compiler alone takes 120 MB: it compiles anew here, and nothing of it is left."""
    code = (
        "import sys\n"
        "from tidegate_collectors.kernel.bpf_observer import BpfObserver\n"
        "o = BpfObserver(loader=sys.argv[1])\n"
        "print(open('/proc/self/status').read().split('VmRSS:')[1].split()[0])\n"
        "maps = open('/proc/self/maps').read()\n"
        "print('LLVM' in maps or 'clang' in maps or 'libbcc' in maps)\n"
        "print(open('/proc/thread-self/children').read().split())\n"
        "o.close()"
    )
    environment = {**os.environ, paths.STATE_ENV: str(tmp_path)}
    command = [sys.executable, "-c", code, loader]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
    resident_kib, compiler, children = done.stdout.splitlines()
    assert int(resident_kib) < 40 * 1024
    assert (compiler, children) == ("False", "[]")


def test_layouts_of_events_survive_hostile_bytes() -> None:
    head = layout.EVENT.pack(5, 1 << 32, 7, 0, 9, 4, 10, 11, 4, b"\xff\xfe\x1b]0;x\x07</a>")
    event = layout.event_of(head + b"a\0\xff\0" + bytes(508), 1_000_000)
    assert event.argv == ("a", "\ufffd")
    assert event.comm == "\ufffd\ufffd\x1b]0;x\x07</a>"
    assert event.t_us == 1000
    with pytest.raises(ValueError, match="99 is not a valid EventKind"):
        layout.event_of(layout.EVENT.pack(0, 0, 0, 0, 0, 99, 0, 0, 0, b""), 0)


def test_python_is_where_the_tests_think() -> None:
    assert subprocess.run([PYTHON, "-c", ""], check=False).returncode == 0
