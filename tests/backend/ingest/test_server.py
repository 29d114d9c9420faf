from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from tests.support.ingesting import Peer, backend, until
from tests.support.scenes import T0, scene, stamped
from tidegate.errors import UsageError
from tidegate.ingest import bind_link, server
from tidegate.store import StoreFullError, open_store
from tidegate_collectors.link import Backoff, Hello, LinkClient
from tidegate_collectors.policies import PolicyDocument
from tidegate_collectors.records import MAX_LINE_BYTES, CallStart, Loss, MemSample, Note, ProcExec, RunEnd, RunMeta


def samples(count: int, src: str = "k-1") -> list[bytes]:
    return stamped([MemSample(t=T0 + i, session="s", subject="runtime", anon_bytes=i) for i in range(count)], src=src)


def packed(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


async def test_records_of_a_real_client_are_committed_and_acknowledged(tmp_path: Path) -> None:
    runs: list[str] = []
    async with backend(tmp_path) as b:
        client = LinkClient(b.server.path, Hello(role="kernel", src="k-1", host="box"), on_run=runs.append)
        client.start()
        sent = scene()
        for record in sent:
            client.send(record)
        await asyncio.to_thread(client.close, 5.0)
        assert (client.stats.queued, client.stats.acked_seq) == (0, len(sent) - 1)
        assert runs == [b.run.id]
        (source,) = b.server.sources()
        assert (source["src"], source["records"], source["role"]) == ("k-1", len(sent), "kernel")
        await until(lambda: not b.server.sources()[0]["connected"])
        stored = [line async for line in b.store.reads.raw_lines(b.run.id)]
        assert stored[1:] == stamped(scene(), src="k-1", host="box")
        assert json.loads(stored[0])["type"] == "run.meta"
    assert b.of(RunEnd)[-1].last_seq == {"k-1": len(sent) - 1}


async def test_a_gap_is_a_loss_just_before_the_record_after_it_and_what_is_sent_twice_is_taken_once(
    tmp_path: Path,
) -> None:
    lines = samples(20)
    async with backend(tmp_path) as b:
        peer = await Peer.connect(b.server.path, "k-1")
        assert (await peer.answer())["welcome"] == {"protocol": 1, "run": b.run.id, "acked_seq": -1}
        peer.send(packed(lines[:5] + lines[3:5] + lines[12:]))
        await peer.acked(19)
        (loss,) = b.of(Loss)
        assert (loss.where, loss.count, loss.of, loss.since_us) == ("link", 7, "k-1", T0 + 4)
        flat = [record for batch in b.batches for _, record in batch.records]
        assert flat[flat.index(loss) + 1].seq == 12
        assert len(b.of(MemSample)) == 13
        assert b.ingest.status()["duplicates"] == 2
        await peer.close()
        again = await Peer.connect(b.server.path, "k-1")
        assert (await again.answer())["welcome"]["acked_seq"] == 19
        again.send(packed(lines))
        await again.acked(19)
        assert len(b.of(MemSample)) == 13
        await again.close()


async def test_records_missing_at_the_very_start_are_a_loss(tmp_path: Path) -> None:
    async with backend(tmp_path) as b:
        peer = await Peer.connect(b.server.path, "k-1")
        peer.send(packed(samples(6)[4:]))
        await peer.acked(5)
        assert [(loss.count, loss.since_us) for loss in b.of(Loss)] == [(4, None)]
        await peer.close()


async def test_a_broken_line_is_counted_once_and_named_with_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = samples(4)
    lines[2] = lines[2][:30] + b'"' + lines[2][30:]
    async with backend(tmp_path) as b:
        peer = await Peer.connect(b.server.path, "k-1")
        peer.send(packed(lines))
        await peer.acked(3)
        # one record is missing: as a broken line, not once more as a gap
        assert [(loss.where, loss.count, loss.of) for loss in b.of(Loss)] == [("link", 1, "k-1")]
        assert len(b.of(MemSample)) == 3
        await peer.close()
    assert any(f"k-1 (pid {os.getpid()}):4:" in message and "not JSON" in message for message in caplog.messages)


async def test_unknown_types_and_fields_are_kept_and_counted(tmp_path: Path) -> None:
    extra = b'{"type":"mem.sample","v":1,"seq":0,"src":"k","t":5,"subject":"host","anon_bytes":1,"colour":"red"}'
    new = b'{"type":"of.tomorrow","v":1,"seq":1,"src":"k","t":6,"session":"s","deep":{"a":[1]}}'
    async with backend(tmp_path) as b:
        peer = await Peer.connect(b.server.path, "k")
        peer.send(packed([extra, new]))
        await peer.acked(1)
        status = b.ingest.status()
        assert status["unknown_types"] == {"of.tomorrow": 1}
        assert status["unknown_fields"] == {"mem.sample.colour": 1}
        assert [line async for line in b.store.reads.raw_lines(b.run.id)][1:] == [extra, new]
        (event,) = await b.store.reads.events(b.run.id, types=["of.tomorrow"])
        assert (event.session, event.body) == ("s", {"deep": {"a": [1]}})
        await peer.close()


async def test_a_clock_that_goes_back_is_noted_once(tmp_path: Path) -> None:
    times = [T0, T0 + 10**7, T0 + 10**7 - 500_000, T0, T0 + 1, T0 + 2 * 10**7]
    lines = stamped([MemSample(t=t, subject="host", anon_bytes=1) for t in times], src="k-1")
    async with backend(tmp_path) as b:
        peer = await Peer.connect(b.server.path, "k-1")
        peer.send(packed(lines))
        await peer.acked(5)
        assert len(b.of(MemSample)) == 6
        (note,) = b.of(Note)
        assert "clock of k-1 went back by 10.000 s" in note.text
        assert b.ingest.status()["clock_back"] == 2
        await peer.close()


async def test_a_program_told_of_long_after_its_fork_is_no_clock_that_went_back(tmp_path: Path) -> None:
    late = T0 + 10**7 - 2_300_000
    lines = stamped([
        MemSample(t=T0 + 10**7, subject="host", anon_bytes=1),
        CallStart(t=late, session="s", call="c", tool="pytest"),
        ProcExec(t=late, session="s", call="c", pid=7, comm="pytest"),
    ], src="k-1")  # fmt: skip
    async with backend(tmp_path) as b:
        peer = await Peer.connect(b.server.path, "k-1")
        peer.send(packed(lines))
        await peer.acked(2)
        assert len(b.of(ProcExec)) == 1
        assert b.of(Note) == []
        assert b.ingest.status()["clock_back"] == 0
        await peer.close()


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "no hello"),
        (b'{"hello":{"protocol":99,"role":"kernel","src":"k"}}\n', "link protocol 99"),
        (b'{"hello":{"role":"kernel"}}\n', "src"),
        (b"[1,2,3]\n", "no hello"),
        (b"\xff\xfe\x00\n", "no hello"),
        (b"x" * (600 * 1024), "bytes"),
    ],
)
async def test_a_stranger_is_refused_with_the_reason_and_others_are_not_disturbed(
    tmp_path: Path, first: bytes, reason: str
) -> None:
    async with backend(tmp_path) as b:
        good = await Peer.connect(b.server.path, "good")
        stranger = await Peer.connect(b.server.path)
        stranger.send(first)
        try:
            answer = await stranger.answer()
            assert reason in answer["refuse"]["reason"]
            assert await stranger.answer() == {}
        except ConnectionResetError:
            # closed while we were still sending
            assert len(first) > 256 * 1024
        good.send(packed(samples(3, "good")))
        await good.acked(2)
        assert b.ingest.status()["rejected"] == 1
        await good.close()
        await stranger.close()


async def test_a_line_without_end_and_a_stream_of_garbage_are_refused(tmp_path: Path) -> None:
    async with backend(tmp_path) as b:
        endless = await Peer.connect(b.server.path, "endless")
        await endless.answer()
        endless.send(b"x" * (MAX_LINE_BYTES + 600_000))
        garbage = await Peer.connect(b.server.path, "garbage")
        await garbage.answer()
        garbage.send(b"nonsense\n" * 150)

        async def refusal(peer: Peer) -> str:
            while True:
                answer = await peer.answer()
                if "refuse" in answer:
                    return str(answer["refuse"]["reason"])
                assert answer, "no refusal"

        assert "longer than" in await refusal(endless)
        assert "are no records" in await refusal(garbage)
        assert sum(loss.count for loss in b.of(Loss)) == 150
        await endless.close()
        await garbage.close()


async def test_a_user_who_is_not_allowed_is_refused(tmp_path: Path) -> None:
    async with backend(tmp_path) as b:
        b.server._allowed = frozenset({12345})  # the only way to be somebody else without a second account
        peer = await Peer.connect(b.server.path, "k")
        assert f"TIDEGATE_LINK_UIDS={os.geteuid()}" in (await peer.answer())["refuse"]["reason"]
        await peer.close()


async def test_a_sender_that_connects_again_replaces_its_dead_connection(tmp_path: Path) -> None:
    lines = samples(10)
    async with backend(tmp_path) as b:
        old = await Peer.connect(b.server.path, "k-1")
        old.send(packed(lines[:4]))
        await old.acked(3)
        new = await Peer.connect(b.server.path, "k-1")
        assert (await new.answer())["welcome"]["acked_seq"] == 3
        assert await old.answer() == {}
        new.send(packed(lines[4:]))
        await new.acked(9)
        assert len(b.of(MemSample)) == 10
        await old.close()
        await new.close()


async def test_policies_go_down(tmp_path: Path) -> None:
    got: list[PolicyDocument] = []
    document = PolicyDocument(id="soft-limit", plane="kernel", version=3, mode="observe", params={"share": 0.5})
    async with backend(tmp_path) as b:
        client = LinkClient(b.server.path, Hello(role="kernel", src="k-1"), on_policy=got.append)
        client.start()
        await until(lambda: client.stats.connected)
        assert b.server.send_policy(document, role="engine") == 0
        assert b.server.send_policy(document) == 1
        await until(lambda: got)
        assert got == [document]
        await asyncio.to_thread(client.close, 1.0)


async def test_the_socket_is_private_and_only_a_dead_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run" / "link.sock"
    async with backend(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(UsageError, match="already listens"):
            bind_link(path)
    assert not path.exists()
    bind_link(path).close()  # as after kill -9
    assert path.exists()
    async with backend(tmp_path) as b:
        assert b.server.listening
    path.write_text("precious")
    with pytest.raises(UsageError, match="not a socket"):
        bind_link(path)
    assert path.read_text() == "precious"
    with pytest.raises(UsageError, match="too long"):
        bind_link(tmp_path / ("x" * 120) / "link.sock")


async def test_a_full_disk_holds_senders_back_and_loses_nothing(tmp_path: Path) -> None:
    async with backend(tmp_path, retry_s=0.05) as b:
        client = LinkClient(b.server.path, Hello(role="kernel", src="k-1"), backoff=Backoff(first_s=0.01))
        client.start()
        await until(lambda: b.run.last_ord == 1)
        async with b.store.begin() as connection:
            pages = (await connection.exec_driver_sql("PRAGMA page_count")).scalar()
            await connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        sent = scene(sessions=8, ticks=400, end=False)
        for record in sent:
            client.send(record)
        await until(lambda: b.ingest.status()["state"] == "paused")
        assert "full" in b.ingest.status()["reason"]
        await asyncio.sleep(0.3)
        acked = client.stats.acked_seq
        assert acked < len(sent) - 1
        assert client.stats.queued == len(sent) - 1 - acked
        async with b.store.begin() as connection:
            await connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
        await asyncio.to_thread(client.close, 20.0)
        assert client.stats.acked_seq == len(sent) - 1
        assert b.ingest.status()["state"] == "running"
        assert len([line async for line in b.store.reads.raw_lines(b.run.id)]) == len(sent) + 1
        assert b.of(Loss) == []


async def test_a_run_that_could_not_be_written_at_the_end_is_not_closed_as_clean(tmp_path: Path) -> None:
    async with backend(tmp_path, retry_s=0.05) as b:
        await until(lambda: b.run.last_ord == 1)
        async with b.store.begin() as connection:
            pages = (await connection.exec_driver_sql("PRAGMA page_count")).scalar()
            await connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        peer = await Peer.connect(b.server.path, "k-1")
        peer.send(packed(samples(5000)))
        await until(lambda: b.ingest.status()["state"] == "paused")
        await peer.close()
    store = await open_store(tmp_path / "t.db", read_only=True)
    (run,) = await store.reads.runs()
    assert run.ended_us is None
    await store.close()
    assert StoreFullError.exit_code == 6


async def test_a_clean_end_begins_a_new_run_and_a_collector_that_stayed_is_no_gap(tmp_path: Path) -> None:
    lines = samples(10)
    async with backend(tmp_path) as b:
        first = b.run.id
        peer = await Peer.connect(b.server.path, "k-1")
        peer.send(packed(lines[:6]))
        await peer.acked(5)
        await peer.close()
    async with backend(tmp_path) as b:
        assert b.run.id != first
        assert isinstance(b.batches[0].records[0][1] if b.batches else RunMeta(t=0, run=""), RunMeta)
        peer = await Peer.connect(b.server.path, "k-1")
        assert (await peer.answer())["welcome"] == {"protocol": 1, "run": b.run.id, "acked_seq": 5}
        peer.send(packed(lines[4:]))
        await peer.acked(9)
        assert (len(b.of(MemSample)), b.of(Loss)) == (4, [])
        await peer.close()


async def test_senders_of_long_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that is started again and again is a new sender each time, and every frame names all of them."""
    monkeypatch.setattr(server, "_MAX_KNOWN", 3)
    async with backend(tmp_path) as b:
        first = await Peer.connect(b.server.path, "k-0")
        await first.answer()
        for number in range(1, 6):
            peer = await Peer.connect(b.server.path, f"k-{number}")
            await peer.answer()
            await peer.close()
            await until(lambda: sum(source["connected"] for source in b.server.sources()) == 1)
        assert [source["src"] for source in b.server.sources()] == ["k-0", "k-4", "k-5"]
        await first.close()


async def test_a_worker_that_ended_by_a_defect_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with backend(tmp_path) as b:
        b.ingest.check()
        with monkeypatch.context() as patch:
            patch.setattr(b.ingest.intake, "own", lambda batch, record: 1 / 0)
            b.ingest.record(Note(t=1, text="x"))
            await until(lambda: b.ingest._task is not None and b.ingest._task.done())
        with pytest.raises(ZeroDivisionError):
            b.ingest.check()
        b.ingest._task = None  # the test's own end closes the rest
