from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_collectors import link, records
from tidegate_collectors.link import Backoff, Hello, LinkClient, Stamper, Unacked, listen_unix, make_runtime_dir
from tidegate_collectors.policies import PolicyDocument
from tidegate_collectors.records import CallEnd, HostSample, MemSample, Note

FAST = Backoff(first_s=0.01, max_s=0.05, refused_s=0.3)
HELLO = Hello(role="kernel", src="k-1", host="box", capabilities=[{"name": "tp_btf.rss_stat", "available": True}])


class Far:
    """The other end of the link: a test says what it answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = listen_unix(path)
        self.listener.setblocking(True)
        self.listener.settimeout(10)

    def accept(self, **welcome: Any) -> tuple[socket.socket, Any]:
        """Take a connection, read its hello, say welcome."""
        sock, _ = self.listener.accept()
        sock.settimeout(10)
        file = sock.makefile("rb")
        hello = json.loads(file.readline())["hello"]
        assert hello["src"] == "k-1"
        if welcome:
            sock.sendall(json.dumps({"welcome": {"protocol": 1, **welcome}}).encode() + b"\n")
        return sock, file

    def close(self) -> None:
        self.listener.close()
        self.path.unlink(missing_ok=True)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    end = Far(tmp_path / "link.sock")
    yield end
    end.close()


@contextlib.contextmanager
def client_of(path: Path, **options: Any) -> Iterator[LinkClient]:
    client = LinkClient(path, HELLO, backoff=options.pop("backoff", FAST), **options)
    client.start()
    try:
        yield client
    finally:
        client.close(0.0)


def until(condition: Callable[[], Any], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the awaited did not happen"
        time.sleep(0.005)


def note(i: int) -> Note:
    return Note(t=1000 + i, text=f"n{i}")


def sample(i: int) -> MemSample:
    return MemSample(t=1000 + i, subject="host", anon_bytes=i)


def read_seqs(file: Any, count: int) -> list[int]:
    return [json.loads(file.readline())["seq"] for _ in range(count)]


def test_records_are_stamped_sent_soon_and_forgotten_when_acknowledged(far: Far) -> None:
    runs: list[str] = []
    with client_of(far.path, on_run=runs.append) as client:
        sock, file = far.accept(run="r1", acked_seq=-1)
        until(lambda: client.stats.connected)
        time.sleep(0.05)
        started = time.monotonic()
        client.send(note(0))
        first = json.loads(file.readline())
        assert time.monotonic() - started < 0.1  # 2 ms where the machine is idle
        assert (first["v"], first["seq"], first["src"], first["host"], first["type"]) == (1, 0, "k-1", "box", "note")
        client.send(note(1))
        client.send(note(2))
        assert read_seqs(file, 2) == [1, 2]
        assert (client.stats.queued, client.stats.sent) == (3, 3)
        sock.sendall(b'{"ack":1}\n')
        until(lambda: client.stats.queued == 1)
        assert client.stats.acked_seq == 1
        assert runs == ["r1"]
        sock.close()


def test_close_waits_for_the_acknowledgement(far: Far) -> None:
    with client_of(far.path) as client:
        sock, file = far.accept(run="r1", acked_seq=-1)
        client.send(note(0))
        client.send(note(1))
        file.readline()
        timer = threading.Timer(0.2, lambda: sock.sendall(b'{"ack":1}\n'))
        timer.start()
        started = time.monotonic()
        client.close(5.0)
        assert 0.1 < time.monotonic() - started < 4.0
        assert client.stats.queued == 0
        timer.join()
        sock.close()


def test_what_was_not_acknowledged_is_sent_again_and_a_new_run_is_told(far: Far) -> None:
    runs: list[str] = []
    with client_of(far.path, on_run=runs.append) as client:
        sock, file = far.accept(run="r1", acked_seq=-1)
        for i in range(5):
            client.send(note(i))
        assert read_seqs(file, 5) == [0, 1, 2, 3, 4]
        sock.sendall(b'{"ack":1}\n')
        until(lambda: client.stats.acked_seq == 1)
        file.close()
        sock.close()
        client.send(note(5))
        sock, file = far.accept(run="r1", acked_seq=2)  # 2 was committed, its acknowledgement lost
        assert read_seqs(file, 3) == [3, 4, 5]
        file.close()
        sock.close()
        sock, file = far.accept(run="r2", acked_seq=-1)  # another database: what was forgotten stays forgotten
        assert read_seqs(file, 3) == [3, 4, 5]
        until(lambda: runs == ["r1", "r2"])
        assert client.stats.reconnects == 2
        sock.close()


def test_a_refusal_is_reported_and_followed_by_a_long_pause(far: Far, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(far.path) as client, caplog.at_level(logging.WARNING):
        for _ in range(2):
            started = time.monotonic()
            sock, _ = far.accept()
            sock.sendall(b'{"refuse":{"reason":"link protocol 1; this side speaks 2"}}\n')
            sock.close()
            until(lambda: "refused" in client.stats.last_error)
        assert time.monotonic() - started >= 0.14  # half of refused_s, the least that jitter gives
        assert client.stats.last_error == "refused: link protocol 1; this side speaks 2"
        assert not client.stats.connected
    assert len([m for m in caplog.messages if "refused" in m]) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "not a message of the link"),
        (b'{"ack":5}\n', "no welcome"),
        (b'{"welcome":{"protocol":2,"run":"r"}}\n', "speaks link protocol 2"),
        (b"x" * ((1 << 20) + 70_000), "too long"),
    ],
)
def test_a_server_that_is_no_backend_is_left_alone(far: Far, answer: bytes, reason: str) -> None:
    with client_of(far.path) as client:
        sock, _ = far.accept()
        with contextlib.suppress(ConnectionError):
            sock.sendall(answer)
        until(lambda: reason in client.stats.last_error)
        sock.close()


def test_a_server_of_another_user_is_not_trusted(far: Far) -> None:
    with client_of(far.path, server_uids=frozenset({54321})) as client:
        until(lambda: "who is not trusted" in client.stats.last_error)
        client.send(note(0))
        sock, _ = far.listener.accept()
        sock.settimeout(5)
        assert sock.recv(100) == b""  # not even a hello
        sock.close()


def test_without_a_backend_the_caller_goes_on_and_is_told_why(tmp_path: Path) -> None:
    with client_of(tmp_path / "nothing.sock") as client:
        started = time.monotonic()
        for i in range(1000):
            client.send(note(i))
        assert time.monotonic() - started < 1.0
        until(lambda: client.stats.last_error)
        assert "start one with: tidegate serve" in client.stats.last_error
        assert client.stats.queued == 1000


def test_a_backend_that_does_not_read_never_blocks_the_caller(far: Far) -> None:
    with client_of(far.path, max_records=2000) as client:
        sock, file = far.accept(run="r1", acked_seq=-1)
        text = "x" * 2000
        started = time.monotonic()
        for i in range(3000):
            client.send(Note(t=i, text=text))
        assert time.monotonic() - started < 5.0
        assert (client.stats.queued, client.stats.dropped_records) == (2000, 1000)
        file.close()
        sock.close()


def test_policies_and_commands_are_handed_on_and_a_failing_callback_ends_nothing(
    far: Far, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[Any] = []

    def on_policy(document: PolicyDocument) -> None:
        got.append(document)
        raise RuntimeError("a defect of the collector")

    with client_of(far.path, on_policy=on_policy, on_command=got.append) as client:
        sock, file = far.accept(run="r1", acked_seq=-1)
        policy = {"id": "p", "plane": "kernel", "version": 1, "mode": "off"}
        sock.sendall(json.dumps({"policy": policy}).encode() + b'\n{"command":{"verb":"status"}}\n')
        until(lambda: len(got) == 2)
        assert (got[0].id, got[1]) == ("p", {"verb": "status"})
        client.send(note(0))
        assert read_seqs(file, 1) == [0]
        sock.sendall(b'{"policy":{"id":"../x","plane":"kernel","version":1,"mode":"off"}}\n')
        until(lambda: "not a message of the link" in client.stats.last_error)
        assert len(got) == 2
        sock.close()
    assert "on_policy failed" in caplog.text


def test_a_record_too_long_for_the_link_is_left_out_and_counted(far: Far) -> None:
    with client_of(far.path) as client:
        sock, file = far.accept(run="r1", acked_seq=-1)
        client.send(Note(t=1, text="x" * records.MAX_LINE_BYTES))
        client.send(note(1))
        assert read_seqs(file, 1) == [1]
        assert client.stats.dropped_records == 1
        sock.close()


def test_many_threads_share_one_gap_free_sequence(far: Far) -> None:
    with client_of(far.path) as client:
        sock, file = far.accept(run="r1", acked_seq=-1)

        def talk(base: int) -> None:
            for i in range(250):
                client.send(note(base + i))

        threads = [threading.Thread(target=talk, args=(1000 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        assert read_seqs(file, 1000) == list(range(1000))
        for thread in threads:
            thread.join()
        sock.close()


def test_a_full_queue_gives_up_samples_first_then_the_oldest() -> None:
    queue, stamper = Unacked(4, 1 << 20), Stamper("k", "h")

    def add(record: records.Record) -> None:
        line = stamper.stamp(record)
        queue.add(record.seq, line, sample=isinstance(record, records.SAMPLE_TYPES))

    def kept() -> list[int]:
        queue.rewind(-1)
        return [json.loads(line)["seq"] for line in queue.take(1 << 20).splitlines()]

    for record in (note(0), sample(1), note(2), HostSample(t=1, mem_available_bytes=1, mem_total_bytes=2)):
        add(record)
    add(note(4))
    assert kept() == [0, 2, 3, 4]
    add(CallEnd(t=9))
    assert kept() == [0, 2, 4, 5]
    add(note(6))
    assert kept() == [2, 4, 5, 6]
    assert (queue.dropped_samples, queue.dropped_records) == (2, 1)
    add(sample(7))
    assert kept() == [2, 4, 5, 6]  # a sample never pushes a record out


def test_the_queue_is_bounded_in_bytes_too() -> None:
    queue = Unacked(1000, 100)
    for seq in range(10):
        queue.add(seq, b"x" * 30, sample=False)
    assert len(queue) == 3
    assert queue.dropped_records == 7


@given(
    st.lists(st.one_of(st.booleans(), st.integers(min_value=0, max_value=60), st.just("take")), max_size=120),
    st.integers(min_value=1, max_value=20),
)
def test_whatever_happens_the_queue_sends_in_order_without_doubles(steps: list[Any], room: int) -> None:
    queue, seq, sent = Unacked(room, 1 << 20), 0, -1
    for step in steps:
        if isinstance(step, bool):
            queue.add(seq, str(seq).encode(), sample=step)
            seq += 1
        elif step == "take":
            for line in queue.take(7).splitlines():
                assert int(line) > sent
                sent = int(line)
        else:
            queue.ack(min(step, sent))
        assert len(queue) <= room
    left = [int(line) for line in queue.take(1 << 20).splitlines()]
    assert not queue.has_unsent
    assert all(number > sent for number in left)


def test_the_runtime_directory_cannot_be_one_where_others_swap_sockets(tmp_path: Path) -> None:
    make_runtime_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) & 0o022 == 0
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="everybody may write"):
        make_runtime_dir(tmp_path / "open")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        make_runtime_dir(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_a_runtime_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to user 65534"):
        make_runtime_dir(tmp_path / "theirs")


def test_names_of_senders_are_unique() -> None:
    assert len({link.new_src("kernel") for _ in range(100)}) == 100
    assert link.new_src("kernel").startswith("kernel-")
