"""Which processes become calls: real shells, pipelines, background jobs, exec chains, vfork and threads."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bpf import PYTHON, V2, Loader, calls, exits, group, names, needs_root, needs_v2, session
from tidegate_collectors.kernel.bpf_observer import BpfObserver
from tidegate_collectors.kernel.observer import FIRST_KERNEL_SUBJECT, EventKind

pytestmark = [pytest.mark.kernel, needs_root]


@pytest.fixture(scope="module")
def observer(loader: Loader) -> Iterator[BpfObserver]:
    """One observer for the module; each test has sessions of its own."""
    opened = BpfObserver(loader=loader, check=False)
    yield opened
    assert opened.lost() == {"bpf_ring": 0, "bpf_map": 0}
    opened.close()


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_program_that_the_runtime_starts_is_a_call(observer: BpfObserver, shell: str) -> None:
    before_us = time.time_ns() // 1000
    with session(observer, shell, "-c", "ls / >/dev/null; true; uname -s >/dev/null; :") as s:
        events = s.run()
        assert names(events) == ["ls", "uname"]  # true is a builtin
        for call in calls(events):
            fork = next(e for e in events if e.kind is EventKind.FORK and e.pid == call.pid)
            assert call.subject >= FIRST_KERNEL_SUBJECT
            assert (call.a, call.ppid, call.t_us) == (s.subject, s.pid, fork.t_us)
            assert before_us <= call.t_us <= time.time_ns() // 1000
            assert exits(events)[call.pid].subject == call.subject
        assert len({call.subject for call in calls(events)}) == 2
        assert exits(events)[s.pid].subject == s.subject


def test_the_command_line_is_reported_and_cut(observer: BpfObserver) -> None:
    hostile = "</script>\x1b[0m'; rm -rf ~; \u202e\udcff".encode(errors="surrogateescape").decode(errors="replace")
    script = 'env -- "$0" >/dev/null 2>&1; uname "$1" >/dev/null 2>&1; :'
    with session(observer, "bash", "-c", script, hostile, "x" * 5000) as s:
        first, second = calls(s.run())
        assert first.argv == ("env", "--", hostile)
        assert second.argv[0] == "uname"
        assert len("\0".join(second.argv)) == 512


def test_each_part_of_a_pipeline_is_a_call(observer: BpfObserver) -> None:
    with session(observer, "bash", "-c", "ls / | sort | wc -l >/dev/null; :") as s:
        assert sorted(names(s.run())) == ["ls", "sort", "wc"]


def test_a_shell_inside_a_call_is_no_second_call(observer: BpfObserver) -> None:
    with session(observer, "bash", "-c", "sh -c 'ls / >/dev/null; uname | cat >/dev/null; :'; :") as s:
        events = s.run()
        assert names(events) == ["sh"]
        (call,) = calls(events)
        inner = [e for e in events if e.kind is EventKind.EXEC and e.subject == call.subject]
        assert sorted(e.comm for e in inner) == ["cat", "ls", "uname"]
        stats = observer.stats(call.subject)
        assert stats is not None
        assert (stats.forks, stats.execs, stats.exits, stats.alive) == (3, 4, 4, 0)


def test_background_jobs_are_calls_of_their_own(observer: BpfObserver) -> None:
    with session(observer, "bash", "-c", "sleep 0.2 & sleep 0.1 & ls / >/dev/null; wait") as s:
        events = s.run()
        assert sorted(names(events)) == ["ls", "sleep", "sleep"]
        ended = exits(events)
        long, short = (next(c for c in calls(events) if c.argv == ("sleep", t)) for t in ("0.2", "0.1"))
        assert ended[long.pid].t_us - long.t_us >= 200_000
        assert ended[short.pid].t_us - short.t_us >= 100_000


def test_an_exec_chain_stays_one_call(observer: BpfObserver) -> None:
    with session(observer, "bash", "-c", "env nice sh -c 'exec env uname' >/dev/null; :") as s:
        events = s.run()
        assert names(events) == ["env"]
        (call,) = calls(events)
        assert [e.comm for e in events if e.kind is EventKind.EXEC and e.pid == call.pid] == [
            "nice",
            "sh",
            "env",
            "uname",
        ]


def test_the_root_may_exec_and_stays_runtime(observer: BpfObserver) -> None:
    with session(observer, "env", "sh", "-c", "exec bash -c 'ls / >/dev/null; :'") as s:
        events = s.run()
        assert names(events) == ["ls"]
        assert {e.subject for e in events if e.pid == s.pid} == {s.subject}


def test_a_child_without_exec_stays_runtime(observer: BpfObserver) -> None:
    with session(observer, "bash", "-c", "( : ); (ls / >/dev/null; :); :") as s:
        events = s.run()
        assert names(events) == ["ls"]
        forks = [e for e in events if e.kind is EventKind.FORK]
        assert len(forks) == 3
        assert {e.subject for e in forks} == {s.subject}


def test_a_launcher_passes_its_generations_on(observer: BpfObserver) -> None:
    script = "sh -c 'ls / >/dev/null; :'; :"
    with session(observer, "bash", "-c", script, runtime_depth=1) as s:
        events = s.run()
        assert names(events) == ["ls"]  # sh is the agent that the launcher started
        inner = next(e for e in events if e.kind is EventKind.EXEC and e.comm == "sh")
        assert inner.subject == s.subject


SUBPROCESS = """
import os, subprocess, threading
subprocess.run(["uname"], stdout=subprocess.DEVNULL)                     # vfork
os.waitpid(os.posix_spawnp("ls", ["ls", "/"], os.environ, file_actions=[(os.POSIX_SPAWN_CLOSE, 1)]), 0)
subprocess.run(["env", "true"], preexec_fn=lambda: None)                 # fork
threads = [threading.Thread(target=lambda: subprocess.run(["sleep", "0.05"])) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
"""


def test_python_subprocess_vfork_posix_spawn_and_threads(observer: BpfObserver) -> None:
    with session(observer, PYTHON, "-c", SUBPROCESS) as s:
        events = s.run()
        assert names(events) == ["uname", "ls", "env", "sleep", "sleep", "sleep", "sleep"]
        assert {call.ppid for call in calls(events)} == {s.pid}
        # Threads are no processes.
        assert len([e for e in events if e.kind is EventKind.FORK]) == 7
        total = observer.session_stats(s.subject)
        assert total is not None
        assert total.alive == 0
        assert total.used_bytes == 0


def test_rapid_forks_are_all_seen(observer: BpfObserver) -> None:
    script = "for i in $(seq 1 200); do /bin/true; done; for i in $(seq 1 100); do ( : ) & done; wait"
    with session(observer, "bash", "-c", script) as s:
        events = s.run()
        assert names(events) == ["seq", *["true"] * 200, "seq"]
        assert len(exits(events)) >= 1 + 2 + 200 + 100
        total = observer.session_stats(s.subject)
        assert total is not None
        assert total.exits == len(exits(events))
        assert (total.alive, total.used_bytes) == (0, 0)


def test_a_child_that_outlives_its_call_keeps_the_calls_subject(observer: BpfObserver) -> None:
    script = "sh -c 'sleep 0.4 & exit 0'; sleep 0.1; :"
    with session(observer, "bash", "-c", script) as s:
        s.go()
        events = s.wait_for(lambda seen: s.pid in exits(seen))
        call = calls(events)[0]
        left = observer.stats(call.subject)
        assert left is not None
        assert left.alive == 1
        assert left.used_bytes > 0
        events = s.wait_for(lambda seen: not s.alive(seen))
        orphan = next(e for e in exits(events).values() if e.subject == call.subject and e.pid != call.pid)
        assert orphan.comm == "sleep"
        assert orphan.t_us - exits(events)[call.pid].t_us > 250_000
        gone = observer.stats(call.subject)
        assert gone is not None
        assert (gone.alive, gone.used_bytes) == (0, 0)


STATUSES = """
import os, signal, threading, time
def child(act):
    pid = os.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "-c", act]) if isinstance(act, str) else act()
    return pid
def last_thread_exits():
    import ctypes
    def other():
        time.sleep(0.05)
        os._exit(5)
    threading.Thread(target=other).start()
    ctypes.CDLL(None).syscall(60, 0)  # only the leading thread ends
pids = {}
for name, act in {"zero": "exit 0", "seven": "exit 7", "many": "exit 255", "term": "kill -TERM $$",
                  "kill": "kill -KILL $$", "segv": "ulimit -c 0; kill -SEGV $$", "thread": last_thread_exits}.items():
    pid = child(act)
    _, status = os.waitpid(pid, 0)
    print(name, pid, status, flush=True)
"""


def test_exit_codes_and_signals_are_what_the_parent_sees(observer: BpfObserver) -> None:
    with session(observer, PYTHON, "-c", STATUSES) as s:
        s.go()
        told = dict(zip(["zero", "seven", "many", "term", "kill", "segv", "thread"], iter(s.hear, ""), strict=True))
        events = s.wait_for(lambda seen: not s.alive(seen))
        truth = {int(line.split()[1]): int(line.split()[2]) for line in told.values()}
        assert sorted(truth.values()) == sorted([0, 7 << 8, 255 << 8, 15, 9, 11, 5 << 8])
        assert {pid: exits(events)[pid].a for pid in truth} == truth


def test_an_exec_by_another_thread_keeps_the_process(observer: BpfObserver) -> None:
    code = (
        "import threading, os, time\n"
        "x = bytearray(b'x') * (20 << 20)\n"
        "threading.Thread(target=lambda: os.execvp('sleep', ['sleep', '0.2'])).start()\n"
        "time.sleep(5)"
    )
    with session(observer, "bash", "-c", f'{PYTHON} -c "$0"; :', code) as s:
        s.go()
        events = s.wait_for(lambda seen: any(e.kind is EventKind.EXEC and e.comm == "sleep" for e in seen))
        (call,) = calls(events)
        stats = observer.stats(call.subject)
        assert stats is not None
        assert stats.peak_bytes > 20 << 20
        assert stats.used_bytes < 5 << 20  # what the old program had is given back
        events = s.wait_for(lambda seen: not s.alive(seen))
        assert exits(events)[call.pid].a == 0
        stats = observer.stats(call.subject)
        assert stats is not None
        assert (stats.alive, stats.used_bytes) == (0, 0)


@needs_v2
def test_entering_a_tracked_group_is_enough(observer: BpfObserver) -> None:
    with group(V2) as cgroup, session(observer, "bash", "-c", "uname >/dev/null; :", cgroup=cgroup) as s:
        events = s.run()
        attach = next(e for e in events if e.kind is EventKind.ATTACH)
        assert (attach.pid, attach.subject, attach.cgroup_id) == (s.pid, s.subject, cgroup.stat().st_ino)
        (call,) = calls(events)
        assert call.cgroup_id == cgroup.stat().st_ino
        assert exits(events)[call.pid].cgroup_id == cgroup.stat().st_ino


@needs_v2
def test_moving_a_call_into_its_own_group_changes_nothing(observer: BpfObserver) -> None:
    script = "sh -c 'sleep 0.3; uname >/dev/null'; :"
    with group(V2) as runtime, group(V2) as tool, session(observer, "bash", "-c", script, cgroup=runtime) as s:
        s.go()
        sleeping = lambda seen: any(e.kind is EventKind.EXEC and e.comm == "sleep" for e in seen)  # noqa: E731
        events = s.wait_for(sleeping)
        (call,) = calls(events)
        observer.track_call(tool.stat().st_ino, call.subject, s.subject)
        before = observer.stats(call.subject)
        (tool / "cgroup.procs").write_text(str(call.pid))
        after = observer.stats(call.subject)
        assert before is not None
        assert after is not None
        assert (after.alive, after.forks) == (before.alive, before.forks)
        assert abs(after.used_bytes - before.used_bytes) < 1 << 20
        events = s.wait_for(lambda seen: not s.alive(seen))
        assert names(events) == ["sh"]
        assert exits(events)[call.pid].cgroup_id == tool.stat().st_ino
        observer.untrack(tool.stat().st_ino, call.subject)


def test_an_explicit_call_of_a_running_process(observer: BpfObserver) -> None:
    code = "x = bytearray(b'x') * (30 << 20); print('grown', flush=True); input()"
    with session(observer, PYTHON, "-c", code) as s:
        s.go()
        assert s.hear() == "grown"
        assert (observer.stats(s.subject) or pytest.fail("gone")).used_bytes > 30 << 20
        observer.track_call(None, 900, s.subject, pid=s.pid)
        call, runtime, total = observer.stats(900), observer.stats(s.subject), observer.session_stats(s.subject)
        assert call is not None
        assert runtime is not None
        assert total is not None
        assert call.used_bytes > 30 << 20  # it moved with the process
        assert runtime.used_bytes == 0
        assert total.used_bytes == call.used_bytes
        assert (call.alive, runtime.alive, total.alive) == (1, 0, 1)
        assert call.bursts == 0  # moving is no growth
        s.tell(b"\n")
        events = s.wait_for(lambda seen: not s.alive(seen))
        assert exits(events)[s.pid].subject == 900
        observer.untrack(None, 900)


def test_a_process_that_is_gone_cannot_be_tracked(observer: BpfObserver) -> None:
    with session(observer, "uname") as s:
        s.run()
        s.process.wait()
        with pytest.raises(ProcessLookupError):
            observer.track_runtime(None, 901, pid=s.pid)
        observer.untrack(None, 901)


def test_a_nested_session_takes_its_process_out_of_the_outer_one(observer: BpfObserver) -> None:
    with session(observer, "bash", "-c", "sleep 0.3; :") as s:
        s.go()
        events = s.wait_for(lambda seen: bool(calls(seen)))
        (call,) = calls(events)
        observer.track_runtime(None, 902, pid=call.pid)
        outer, inner = observer.session_stats(s.subject), observer.session_stats(902)
        assert outer is not None
        assert inner is not None
        assert (outer.alive, inner.alive) == (1, 1)
        assert inner.used_bytes > 0
        events = s.wait_for(lambda seen: not s.alive(seen))
        assert exits(events)[call.pid].subject == 902
        observer.untrack(None, 902)


def test_untracked_processes_make_no_events(observer: BpfObserver) -> None:
    import subprocess

    observer.read_events()
    subprocess.run(["bash", "-c", "ls / >/dev/null; uname >/dev/null"], check=True)
    assert observer.read_events() == []


def test_a_stopped_process_is_alive(observer: BpfObserver) -> None:
    with session(observer, "bash", "-c", "sleep 0.05; kill -STOP $$; :") as s:
        s.go()
        deadline = time.monotonic() + 10
        while Path(f"/proc/{s.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        stats = observer.stats(s.subject)
        assert stats is not None
        assert stats.alive == 1
        s.process.send_signal(signal.SIGCONT)
        s.wait_for(lambda seen: not s.alive(seen))
