from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.ingesting import Peer, backend, until
from tests.support.scenes import T0
from tidegate.fold import State, fold
from tidegate.ingest import server
from tidegate.store import open_store
from tidegate_collectors.link import Backoff, Hello, LinkClient
from tidegate_collectors.records import Loss, MemSample, Note, SessionStart, decode

REPO = Path(__file__).resolve().parents[3]


def start(directory: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ingest_process", str(directory)],
        cwd=REPO,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def sample(i: int) -> MemSample:
    return MemSample(t=T0 + i, session=f"s{i % 7}", subject="runtime", anon_bytes=i)


async def test_kill_9_in_the_middle_loses_no_acknowledged_record_and_the_gap_is_shown(tmp_path: Path) -> None:
    # GIVEN a collector that sends without pause to a backend in another process
    process, run_id = start(tmp_path)
    path = tmp_path / "run" / "link.sock"
    client = LinkClient(path, Hello(role="kernel", src="k-1", host="box"), backoff=Backoff(first_s=0.02, max_s=0.1))
    client.start()
    sent = 0
    stop = threading.Event()

    def talk() -> None:
        nonlocal sent
        while not stop.is_set() and sent < 60_000:
            for _ in range(40):
                client.send(sample(sent))
                sent += 1
            time.sleep(0.002)

    talker = threading.Thread(target=talk)
    talker.start()
    try:
        # WHEN the backend is killed while it commits
        await until(lambda: client.stats.acked_seq > 3000)
        kill(process)
        acked = client.stats.acked_seq
        # THEN every acknowledged record is in the database
        store = await open_store(tmp_path / "t.db", read_only=True)
        stored = [decode(line) async for line in store.reads.raw_lines(run_id)]
        await store.close()
        seqs = [record.seq for record in stored if isinstance(record, MemSample)]
        assert seqs == list(range(len(seqs)))
        assert len(seqs) > acked
    finally:
        stop.set()
        talker.join()
    # AND a new backend goes on with the same run, shows that it was away, and gets what it had not committed
    async with backend(tmp_path) as b:
        assert b.run.id == run_id
        await until(lambda: client.stats.connected and client.stats.queued == 0, 20.0)
        seqs = [decode(line).seq async for line in b.store.reads.raw_lines(run_id) if b'"src":"k-1"' in line]
        assert seqs == list(range(sent))
        (away,) = b.of(Loss)
        assert (away.where, away.of, away.count) == ("store", "backend away", 0)
        assert away.since_us == stored[-1].t
        assert any("was away for" in note.text for note in b.of(Note))
        client.close()
    assert client.stats.reconnects == 1


async def test_what_a_full_queue_dropped_while_the_backend_was_away_is_a_loss(tmp_path: Path) -> None:
    client = LinkClient(
        tmp_path / "run" / "link.sock",
        Hello(role="kernel", src="k-1", host="box"),
        max_records=100,
        backoff=Backoff(first_s=0.02, max_s=0.1),
    )
    client.start()
    for i in range(50):
        client.send(Note(t=T0 + i, text=f"note {i}"))
    for i in range(300):
        client.send(sample(i))
    assert (client.stats.dropped_samples, client.stats.dropped_records, client.stats.queued) == (250, 0, 100)
    async with backend(tmp_path) as b:
        await until(lambda: client.stats.connected and client.stats.queued == 0)
        assert [note.text for note in b.of(Note)] == [f"note {i}" for i in range(50)]
        assert [record.anon_bytes for record in b.of(MemSample)] == list(range(250, 300))
        assert [(loss.count, loss.of, loss.since_us) for loss in b.of(Loss)] == [(250, "k-1", T0 + 49)]
        client.close()


SENDER = """
import sys, time
from pathlib import Path
from tidegate_collectors.link import Hello, LinkClient
from tidegate_collectors.records import CallStart, MemSample, SessionStart
client = LinkClient(Path(sys.argv[1]), Hello(role="kernel", src="kernel-1", host="box"))
client.start()
client.send(SessionStart(t=10, session="s"))
client.send(CallStart(t=20, session="s", call="c1", tool="python"))
client.send(MemSample(t=30, session="s", call="c1", subject="call", anon_bytes=5))
time.sleep(60)
"""


def start_sender(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SENDER, str(path)], cwd=REPO)


async def test_a_collector_killed_in_the_middle_of_a_call_is_told_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a call that runs WHEN its collector gets kill -9 THEN nobody goes on to show it as running."""
    monkeypatch.setattr(server, "GONE_CHECK_S", 0.05)
    async with backend(tmp_path) as b:
        collector = start_sender(b.server.path)
        try:
            await until(lambda: b.of(MemSample))
            state = fold(State(), [pair for batch in b.batches for pair in batch.records])
            assert state.sessions["s"].phase == state.sessions["s"].calls["c1"].phase == "running"
            assert b.of(Loss) == []
        finally:
            collector.kill()
            collector.wait()
        await until(lambda: b.of(Loss) and b.of(Note))
        (loss,) = b.of(Loss)
        assert (loss.where, loss.of, loss.count, loss.since_us) == ("link", "kernel-1", 0, b.of(MemSample)[-1].t)
        assert "kernel-1 is gone" in b.of(Note)[0].text
        state = fold(State(), [pair for batch in b.batches for pair in batch.records])
        assert state.sessions["s"].phase == state.sessions["s"].calls["c1"].phase == "lost"


async def test_a_collector_that_is_done_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a collector WHEN it closes its link and everything was said THEN there is no gap to report."""
    monkeypatch.setattr(server, "GONE_CHECK_S", 0.02)
    monkeypatch.setattr(server, "GONE_AFTER_S", 0.05)
    async with backend(tmp_path) as b:
        client = LinkClient(b.server.path, Hello(role="kernel", src="kernel-1", host="h", boot_id="b", pid=os.getpid()))
        client.start()
        client.send(SessionStart(t=1, session="s"))
        await until(lambda: b.of(SessionStart))
        await asyncio.to_thread(client.close)
        await asyncio.sleep(0.3)
        assert (b.of(Loss), b.of(Note)) == ([], [])
        assert b.ingest.status()["broken"] == 0


async def test_a_link_that_is_down_for_a_moment_makes_nobody_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GONE_CHECK_S", 0.02)
    async with backend(tmp_path) as b:
        peer = await Peer.connect(b.server.path, "kernel-1")
        await peer.answer()
        await peer.close()
        await asyncio.sleep(0.1)
        peer = await Peer.connect(b.server.path, "kernel-1")
        await peer.answer()
        await asyncio.sleep(0.1)
        assert b.of(Loss) == []
        monkeypatch.setattr(server, "GONE_AFTER_S", 0.05)
        await peer.close()
        await until(lambda: b.of(Loss))
