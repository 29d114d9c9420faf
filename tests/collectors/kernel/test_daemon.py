"""The collector as a whole: real processes in, records out, in every way of looking that this host allows."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bpf import Loader, needs_bcc, needs_root
from tests.support.daemon_rig import TIDEGATE, DaemonRig, environment_for, running_daemon
from tests.support.own_cgroups import cgroup_root, new_root_name, once_placed, remove_root
from tests.support.record_sink import RecordSink
from tidegate_collectors.kernel import cgroup_layout
from tidegate_collectors.kernel.daemon import Daemon
from tidegate_collectors.kernel.options import CollectError, Config
from tidegate_collectors.records import (
    AnyRecord,
    CallEnd,
    CallStart,
    Capability,
    HostSample,
    MemBurst,
    MemSample,
    Note,
    ProcExit,
    SchedSample,
    SessionEnd,
    SessionStart,
)

ROOT = os.geteuid() == 0
LOADERS = [
    "procfs",
    pytest.param("libbpf", marks=[pytest.mark.kernel, pytest.mark.skipif(not ROOT, reason="BPF needs root")]),
]
BCC = pytest.param("bcc", marks=[pytest.mark.kernel, needs_root, needs_bcc])


@pytest.fixture(params=LOADERS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DaemonRig]:
    with running_daemon(tmp_path, request.param) as made:
        yield made


def over(records: list[AnyRecord]) -> bool:
    return any(isinstance(record, SessionEnd) for record in records)


def ends(rig: DaemonRig) -> list[CallEnd]:
    return [record for record in rig.sink.records if isinstance(record, CallEnd)]


def starts(rig: DaemonRig) -> list[CallStart]:
    return [record for record in rig.sink.records if isinstance(record, CallStart)]


@pytest.mark.parametrize("rig", [*LOADERS, BCC], indirect=True)
def test_a_session_from_start_to_end(rig: DaemonRig) -> None:
    program = f"{once_placed('s1', 'c1') if ROOT else 'import time'}\na = bytearray(100 << 20)\ntime.sleep(1.2)"
    done = rig.run(
        "run", "--session", "s1", "--title", "A title", "--priority", "high", "--budget", "1.5g", "--",
        "sh", "-c", f"{sys.executable} -c '{program}'; sh -c 'sleep 0.3; exit 3'; exit 4",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (4, "")
    rig.sink.wait_for(over)
    (start,) = [record for record in rig.sink.records if isinstance(record, SessionStart)]
    assert (start.session, start.title, start.priority, start.agent) == ("s1", "A title", "high", "sh")
    assert start.budget_bytes == 3 << 29
    (end,) = [record for record in rig.sink.records if isinstance(record, SessionEnd)]
    assert (end.session, end.exit_code, end.reason) == ("s1", 4, "error")
    assert end.t > start.t
    first, second = starts(rig)
    assert (first.category, first.session, second.call) == ("python", "s1", "c2")
    assert start.t <= first.t < second.t
    one, two = ends(rig)
    assert one.peak_bytes is not None
    assert 97 << 20 <= one.peak_bytes < 140 << 20
    assert one.spike_bytes is not None
    assert 95 << 20 <= one.spike_bytes < 140 << 20
    assert one.duration_us is not None
    assert one.duration_us >= 600_000
    assert (one.kept_bytes, one.left_behind) == (0, 0)
    if rig.daemon.observer.name == "bpf":
        assert (one.exit_code, two.exit_code) == (0, 3)
        assert (two.processes, one.cpu_us is not None) == (2, True)
    if ROOT and cgroup_layout.discover().memory_version:
        assert first.cgroup_id is not None
        assert one.charged_peak_bytes is not None
        assert one.charged_peak_bytes >= 100 << 20
    samples = [record for record in rig.sink.records if isinstance(record, MemSample)]
    assert {sample.subject for sample in samples} == {"runtime", "call", "session"}
    assert max(s.anon_bytes for s in samples if s.subject == "call" and s.call == "c1") >= 97 << 20
    assert any(isinstance(record, SchedSample) for record in rig.sink.records)


def test_nothing_is_left_in_the_tree_after_a_session(rig: DaemonRig) -> None:
    assert rig.run("run", "--session", "s1", "--", "sh", "-c", "sleep 0.3; true").returncode == 0
    rig.sink.wait_for(over)
    until = time.monotonic() + 5
    layout = cgroup_layout.discover()
    places = [base / rig.cgroup_root / "s1" for base in (layout.v2, layout.memory) if base is not None]
    while any(place.exists() for place in places) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(place.exists() for place in places)
    assert rig.run("run", "--session", "s1", "--", "sh", "-c", "sleep 0.2; true").returncode == 0, (
        "the id is free again"
    )
    rig.sink.wait_for(lambda records: sum(isinstance(record, SessionEnd) for record in records) == 2)
    assert [start.call for start in starts(rig)] == ["c1", "c2"], "numbers go on"


def test_a_child_that_outlives_its_call_is_left_behind(rig: DaemonRig) -> None:
    script = "sh -c 'sleep 1.5 & sleep 0.4'; sleep 2; true"
    assert rig.run("run", "--session", "s1", "--", "sh", "-c", script).returncode == 0
    rig.sink.wait_for(over)
    first = ends(rig)[0]
    assert (first.call, first.left_behind) == ("c1", 1)
    late = [r for r in rig.sink.records if isinstance(r, ProcExit) and r.left_behind]
    assert [gone.call for gone in late] == ["c1"]


def test_a_hint_in_the_environment_of_a_call_is_read(rig: DaemonRig) -> None:
    script = "AGENT_RESOURCE_HINT=memory:1.5g sleep 0.3; AGENT_RESOURCE_HINT=lots sleep 0.3; sleep 0.2"
    rig.run("run", "--session", "s1", "--", "sh", "-c", script)
    rig.sink.wait_for(over)
    assert [(start.hint, start.hint_bytes) for start in starts(rig)][:2] == [("memory:1.5g", 3 << 29), ("lots", None)]


def test_an_explicit_boundary_names_the_call(rig: DaemonRig) -> None:
    script = f"{TIDEGATE} exec --tool mine --hint memory:300m -- sh -c 'sleep 0.5; exit 5'; true"
    done = rig.run("run", "--session", "s1", "--", "sh", "-c", script)
    assert done.stderr == ""
    rig.sink.wait_for(over)
    (start,) = starts(rig)
    assert (start.tool, start.boundary, start.hint_bytes) == ("mine", "wrapper", 300 << 20)
    (end,) = ends(rig)
    if rig.daemon.observer.name == "bpf":
        assert end.exit_code == 5


def test_two_sessions_at_once_do_not_mix(rig: DaemonRig) -> None:
    both = [rig.popen("run", "--session", f"s{n}", "--", "sh", "-c", "sleep 0.5; true") for n in (1, 2)]
    assert [one.wait(20) for one in both] == [0, 0]
    rig.sink.wait_for(lambda records: sum(isinstance(record, SessionEnd) for record in records) == 2)
    assert sorted((start.session or "", start.call or "") for start in starts(rig)) == [("s1", "c1"), ("s2", "c1")]


def test_an_id_in_use_and_a_bad_id_are_refused(rig: DaemonRig) -> None:
    first = rig.popen("run", "--session", "s1", "--", "sleep", "1.5")
    rig.sink.wait_for(lambda records: any(isinstance(record, SessionStart) for record in records))
    second = rig.run("run", "--session", "s1", "--", "touch", "/nonexistent/x")
    assert second.returncode == 125
    assert "session s1 is running; choose another --session" in second.stderr
    bad = rig.run("run", "--session", "../x", "--", "true")
    assert bad.returncode == 125
    assert "is refused" in bad.stderr
    assert first.wait(20) == 0


def test_killed_by_a_signal(rig: DaemonRig) -> None:
    done = rig.run("run", "--session", "s1", "--", "sh", "-c", "sleep 0.3; kill -9 $$")
    assert done.returncode == 137
    rig.sink.wait_for(over)
    (end,) = [record for record in rig.sink.records if isinstance(record, SessionEnd)]
    assert (end.reason, end.signal, end.exit_code) == ("killed", 9, None)


def test_hostile_names_are_kept_as_text(rig: DaemonRig, tmp_path: Path) -> None:
    name = "</script>\x1b[2J'\"\u202e"
    directory = tmp_path / "bin"
    directory.mkdir()
    tool = directory / "x".join(name.split("/"))
    tool.write_text("#!/bin/sh\nsleep 0.4\n")
    tool.chmod(0o755)
    title = name + "b" * 10_000
    done = rig.run("run", "--session", "s1", "--title", title, "--", "sh", "-c", '"$0"; true', str(tool))
    assert done.returncode == 0
    rig.sink.wait_for(over)
    (start,) = [record for record in rig.sink.records if isinstance(record, SessionStart)]
    assert title.startswith(start.title)
    assert start.title.startswith(name)
    assert len(starts(rig)) == 1


@pytest.mark.kernel
@pytest.mark.skipif(not ROOT, reason="BPF needs root")
def test_short_calls_are_all_seen_by_events(tmp_path: Path, loader: Loader) -> None:
    with running_daemon(tmp_path, loader, record_args=True) as rig:
        script = (
            "for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true $i; done; /bin/echo a | /bin/cat | /usr/bin/tr a b; exit 0"
        )
        rig.run("run", "--session", "s1", "--", "sh", "-c", script)
        rig.sink.wait_for(over)
        commands = [start.command or "" for start in starts(rig)]
        assert commands[:10] == [f"/bin/true {n}" for n in range(1, 11)]
        assert sorted(commands[10:]) == ["/bin/cat", "/bin/echo a", "/usr/bin/tr a b"]
        assert sorted(end.call or "" for end in ends(rig)) == sorted(start.call or "" for start in starts(rig))


@pytest.mark.kernel
@pytest.mark.skipif(not ROOT, reason="BPF needs root")
def test_a_burst_is_told_while_it_happens(tmp_path: Path, loader: Loader) -> None:
    with running_daemon(tmp_path, loader, burst_bytes=8 << 20) as rig:
        program = "import time; time.sleep(0.3); a = bytearray(300 << 20); time.sleep(1.5)"
        run = rig.popen("run", "--session", "s1", "--", "sh", "-c", f"{sys.executable} -c '{program}'; true")
        rig.sink.wait_for(lambda records: any(isinstance(record, MemBurst) for record in records))
        # A machine under load pages slowly: the threshold is low enough for any.
        late_us = time.time_ns() // 1000 - next(r for r in rig.sink.records if isinstance(r, MemBurst)).t
        assert run.poll() is None
        assert late_us < 500_000
        assert run.wait(20) == 0


# --- start, stop, and what surrounds it ----------------------------------------------------------------------------


def test_abilities_and_the_host_are_told_from_the_start(tmp_path: Path) -> None:
    with running_daemon(tmp_path, probe=True) as rig:
        rig.sink.wait_for(lambda records: any(isinstance(record, HostSample) for record in records))
        names = {record.name: record for record in rig.sink.records if isinstance(record, Capability)}
        assert names["observer.bpf"].reason == "not asked for (--loader procfs)"
        assert {"kernel.release", "psi.host", "cgroups"} <= names.keys()
        hello = rig.sink.hellos[0]
        assert (hello["role"], hello["pid"]) == ("kernel", os.getpid())
        capabilities = hello["capabilities"]
        assert isinstance(capabilities, list)
        assert {item["name"] for item in capabilities} == names.keys()


def test_another_run_hears_what_is_open(tmp_path: Path) -> None:
    """GIVEN a backend that goes away and comes back with another run THEN open sessions and calls are told again."""
    with running_daemon(tmp_path) as rig:
        run = rig.popen("run", "--session", "s1", "--", "sh", "-c", "sleep 4; true")
        try:
            rig.sink.wait_for(lambda records: any(isinstance(record, CallStart) for record in records))
            told = starts(rig)[0]
            rig.sink.close()
            with RecordSink(rig.sink.path, run="run-2") as other:
                other.wait_for(lambda records: any(isinstance(record, CallStart) for record in records))
                again = [r for r in other.records if isinstance(r, SessionStart | CallStart)]
                assert [(type(record), record.t) for record in again][-1] == (CallStart, told.t)
                assert again[-2].session == "s1"
                assert any(isinstance(record, Capability) for record in other.records)
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(10)


def test_a_second_collector_is_refused(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as rig:
        config = Config(runtime_dir=tmp_path, link=tmp_path / "link.sock", loader="procfs", probe=False)
        with pytest.raises(CollectError, match=rf"another collector \(process {os.getpid()}\) serves"):
            Daemon(config)
        if ROOT:
            elsewhere = tmp_path / "elsewhere"
            same_tree = Config(elsewhere, tmp_path / "link.sock", "procfs", cgroup_root=rig.cgroup_root, probe=False)
            with pytest.raises(CollectError, match="give this one its own --cgroup-root"):
                Daemon(same_tree)
        assert rig.run("run", "--", "true").returncode == 0, "the first one serves on"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"burst_bytes": 0}, "--burst-bytes"), ({"window_us": 1}, "--window-ms"), ({"group": "tgtest-none"}, "no group")],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, settings: dict[str, int], reason: str) -> None:
    with pytest.raises(CollectError, match=reason), running_daemon(tmp_path, **settings):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """GIVEN a running session WHEN the collector is told to stop THEN it says what it will not see, and cleans up."""
    root = new_root_name()
    environment = environment_for(tmp_path)
    try:
        with RecordSink(tmp_path / "link.sock") as sink:
            collector = subprocess.Popen(
                [TIDEGATE, "collect", "--loader", "procfs", "--cgroup-root", root],
                env=environment, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            try:
                until = time.monotonic() + 20
                while not (tmp_path / "agent.sock").exists() and time.monotonic() < until:
                    time.sleep(0.02)
                session = subprocess.Popen(
                    [TIDEGATE, "run", "--session", "s1", "--", "sh", "-c", "sleep 3; exit 6"], env=environment
                )
                sink.wait_for(lambda records: any(isinstance(record, CallStart) for record in records), 20)
                collector.send_signal(number)
                _, errors = collector.communicate(timeout=20)
            finally:
                collector.kill()
                collector.wait()
            assert (collector.returncode, "Traceback" in errors) == (0, False)
            sink.wait_for(lambda records: any(isinstance(record, SessionEnd) for record in records))
            (end,) = sink.of(SessionEnd)
            assert isinstance(end, SessionEnd)
            assert end.lost
            (lost,) = sink.of(CallEnd)
            assert isinstance(lost, CallEnd)
            assert lost.lost
            assert not (tmp_path / "agent.sock").exists()
            assert session.wait(20) == 6, "the agent is not touched"
    finally:
        remove_root(root)


@pytest.mark.kernel
@pytest.mark.skipif(not ROOT, reason="making cgroups needs root")
def test_a_killed_collector_leaves_sessions_that_the_next_one_reports(tmp_path: Path) -> None:
    with cgroup_root() as root, RecordSink(tmp_path / "link.sock") as sink:
        environment = environment_for(tmp_path)
        command = [TIDEGATE, "collect", "--loader", "procfs", "--cgroup-root", root]
        first = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        session: subprocess.Popen[bytes] | None = None
        try:
            until = time.monotonic() + 20
            while not (tmp_path / "agent.sock").exists() and time.monotonic() < until:
                time.sleep(0.02)
            session = subprocess.Popen([TIDEGATE, "run", "--session", "s1", "--", "sleep", "60"], env=environment)
            sink.wait_for(lambda records: any(isinstance(record, SessionStart) for record in records), 20)
            first.kill()
            first.wait()
            second = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
            try:
                sink.wait_for(lambda records: any(isinstance(record, Note) for record in records), 20)
                (note,) = sink.of(Note)
                assert isinstance(note, Note)
                assert "processes of session s1 outlived an earlier collector" in note.text
                assert session.poll() is None
            finally:
                second.terminate()
                second.wait(20)
        finally:
            first.kill()
            first.wait()
            if session is not None:
                session.terminate()
                session.wait(20)


@pytest.mark.parametrize("chosen", ["auto", BCC])
def test_it_is_small(tmp_path: Path, chosen: str) -> None:
    """The goal is 40 MB of resident memory."""
    with RecordSink(tmp_path / "link.sock") as sink:
        collector = subprocess.Popen(
            [TIDEGATE, "collect", "--loader", chosen, "--cgroup-root", new_root_name()],
            env=environment_for(tmp_path),
            stderr=subprocess.DEVNULL,
        )
        try:
            sink.wait_for(lambda records: sum(isinstance(record, HostSample) for record in records) >= 2, 30)
        finally:
            collector.terminate()
            assert collector.wait(20) == 0
        sizes = [r.own.rss_bytes for r in sink.records if isinstance(r, HostSample) and r.own]
        assert sizes[-1] < 40 << 20


def test_a_socket_for_the_owner_and_the_group_only(tmp_path: Path) -> None:
    with running_daemon(tmp_path):
        assert (tmp_path / "agent.sock").stat().st_mode & 0o777 == 0o660


# --- the agents' socket under abuse --------------------------------------------------------------------------------


def ask(rig: DaemonRig, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(rig.runtime_dir / "agent.sock"))
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        reply = b""
        while chunk := sock.recv(65536):
            reply += chunk
        return reply


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense\n", b"not a request"),
        (b'{"verb":"launch_missiles"}\n', b"launch_missiles"),
        (b'{"verb":"register_session"}\n', b"session"),
        (b'{"verb":"register_session","session":"a/b"}\n', b"is refused"),
        (b'{"verb":"register_session","session":"ok","pid":1}\n', b"unknown field"),
        (b'{"verb":"register_session","session":"ok","runtime_depth":-1}\n', b"runtime_depth"),
        (b'{"verb":"register_session","session":"ok","budget_bytes":1e400}\n', b"not a request"),
        (b'{"verb":"register_call","command":["x"]}\n', b"belongs to no session"),
        (b'{"verb":"register_call","command":[]}\n', b"command"),
        (b'{"verb":"ended","session":"s","exit_code":256}\n', b"exit_code"),
        (b"\xff\xfe\n", b"not a request"),
        (b"[" * 60_000 + b"\n", b"not a request"),
        (b'{"verb":"ended","x":' + b"[" * 60_000 + b"\n", b"not a request"),
        (b"x" * 70_000, b"longer than 65536"),
    ],
)
def test_what_is_no_request_is_refused_and_the_collector_lives(tmp_path: Path, line: bytes, reason: bytes) -> None:
    with running_daemon(tmp_path) as rig:
        reply = ask(rig, line)
        assert b'"ok":false' in reply
        assert reason in reply
        assert rig.run("run", "--", "true").returncode == 0


def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as rig:
        silent = []
        try:
            for _ in range(300):
                sock = socket.socket(socket.AF_UNIX)
                sock.connect(str(tmp_path / "agent.sock"))
                silent.append(sock)
            assert rig.run("run", "--", "true").stderr == ""
        finally:
            for sock in silent:
                sock.close()


def test_a_peer_speaks_for_itself_only(tmp_path: Path) -> None:
    """GIVEN a running session WHEN a stranger says that it ended THEN it is refused, and the session goes on."""
    with running_daemon(tmp_path) as rig:
        run = rig.popen("run", "--session", "s1", "--", "sleep", "1")
        rig.sink.wait_for(lambda records: any(isinstance(record, SessionStart) for record in records))
        assert b"did not launch session s1" in ask(rig, b'{"verb":"ended","session":"s1","exit_code":0}\n')
        assert run.wait(10) == 0


def test_a_defect_does_not_end_the_observation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN ticks that fail WHEN they work again THEN a session is observed as ever."""
    with running_daemon(tmp_path) as rig:
        failed = []

        def broken(now_us: int) -> None:
            failed.append(now_us)
            raise KeyError("a defect")

        with monkeypatch.context() as patch:
            patch.setattr(rig.daemon.collector, "tick", broken)
            until = time.monotonic() + 5
            while not failed and time.monotonic() < until:
                time.sleep(0.05)
        assert failed
        assert rig.run("run", "--session", "s1", "--", "true").returncode == 0
        rig.sink.wait_for(over)
