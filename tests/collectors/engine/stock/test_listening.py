"""The whole collector on real sockets: KV events that are lost, late, repeated, rubbish, or another engine's."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.record_sink import RecordSink
from tests.support.stock_engine import (
    CLEARED,
    POOL_BLOCKS,
    Answers,
    Form,
    Publisher,
    batch,
    metrics_server,
    removed,
    stored,
)
from tests.support.stock_rig import last_of, of, sampled, settled, until, watching
from tidegate_collectors.records import (
    Capability,
    EngineEnd,
    EngineSample,
    EngineStart,
    KvTransition,
    Loss,
    Note,
    encode,
)


@pytest.mark.parametrize("form", ["map", "array"])
async def test_events_say_where_blocks_are(place: Path, sink: RecordSink, form: Form) -> None:
    with metrics_server(Answers()) as url, Publisher(place, form) as publisher:
        async with watching(sink, url, publisher):
            await sampled(sink)
            publisher.publish(stored([1, 2, 3], "a"))
            publisher.publish(stored([4], "b"), removed([2]))
            await until(sink, lambda found: of(found, EngineSample)[-1].blocks_cached == 3)
            sample = await sampled(sink)
            publisher.publish(CLEARED)
            await until(sink, lambda found: of(found, EngineSample)[-1].blocks_cached == 0)

    assert (sample.blocks_cached, sample.blocks_free, sample.blocks_used) == (3, POOL_BLOCKS - 3, 0)
    changes = [(r.session, r.from_, r.to, r.cause, r.blocks, r.tokens) for r in of(sink.records, KvTransition)]
    if form == "array":  # there were no sessions on events yet
        assert changes == [] and sample.sessions == 0
        return
    assert changes == [
        ("a", "gone", "device_cached", "computed", 3, 96), ("b", "gone", "device_cached", "computed", 1, 32),
        ("a", "device_cached", "gone", "lru", 1, 32), ("a", "device_cached", "gone", "reset", 2, 64),
        ("b", "device_cached", "gone", "reset", 1, 32),
    ]  # fmt: skip
    assert last_of(sink.records, "a") == {"gone": 3}
    residency = next(item for item in of(sink.records, Capability) if item.name == "engine.residency")
    assert residency.available and "pinned is not known" in residency.reason


async def test_what_was_stored_before_is_had_from_the_replay(place: Path, sink: RecordSink) -> None:
    with metrics_server(Answers()) as url, Publisher(place) as publisher:
        publisher.publish(stored([1, 2], "a"))
        publisher.publish(removed([1]))
        async with watching(sink, url, publisher):
            await settled(sink, "a", device_cached=1, gone=1)
            sample = await sampled(sink)

    assert sample.blocks_cached == 1
    assert [(r.from_, r.to, r.blocks) for r in of(sink.records, KvTransition)] == [("gone", "device_cached", 1)]


async def test_lost_events_are_fetched_again(place: Path, sink: RecordSink) -> None:
    with metrics_server(Answers()) as url, Publisher(place) as publisher:
        async with watching(sink, url, publisher):
            await sampled(sink)
            publisher.publish(stored([1], "a"))
            await settled(sink, "a", device_cached=1)
            publisher.publish(stored([2, 3], "a"), lose=True)
            publisher.publish(removed([1]), lose=True)
            publisher.publish(stored([4], "b"))
            await settled(sink, "b", device_cached=1)

    assert last_of(sink.records, "a") == {"device_cached": 2, "gone": 1}
    assert publisher.asked == [0, 1]
    assert not of(sink.records, Loss)


@pytest.mark.parametrize("replays", [True, False])
async def test_events_that_are_lost_for_good_are_told(place: Path, sink: RecordSink, replays: bool) -> None:
    with metrics_server(Answers()) as url, Publisher(place, replays=replays) as publisher:
        async with watching(sink, url, publisher, kv_replay=publisher.replay_address if replays else None):
            await sampled(sink)
            publisher.publish(stored([1, 2], "a"))
            await settled(sink, "a", device_cached=2)
            for number in range(3):
                publisher.publish(stored([10 + number], "a"), lose=True, forget=True)
            publisher.publish(stored([4], "b"))
            await settled(sink, "b", device_cached=1)
            sample = await sampled(sink, 2)

    (loss,) = of(sink.records, Loss)
    assert (loss.where, loss.count) == ("zmq", 3) and loss.since_us
    forgotten = of(sink.records, KvTransition)[-2]
    assert (forgotten.session, forgotten.cause, forgotten.blocks, forgotten.residency) == ("a", "forgotten", 2, {})
    assert sample.blocks_cached is None and sample.blocks_free is None  # nobody can know any more


async def test_late_and_repeated_batches_change_nothing(place: Path, sink: RecordSink) -> None:
    with metrics_server(Answers()) as url, Publisher(place) as publisher:
        async with watching(sink, url, publisher):
            await sampled(sink)
            publisher.publish(stored([1], "a"))
            publisher.publish(removed([1]))
            for seq, payload in publisher.buffer[::-1]:
                publisher.send(seq, payload)
            publisher.publish(stored([9], "b"))
            await settled(sink, "b", device_cached=1)

    assert [r.cause for r in of(sink.records, KvTransition)] == ["computed", "lru", "computed"]
    assert publisher.asked == [0]  # at the start, and never for what it had
    assert len(of(sink.records, EngineStart)) == 1 and not of(sink.records, Loss)


async def test_a_pool_in_which_nothing_was_stored_yet_is_empty(place: Path, sink: RecordSink) -> None:
    with metrics_server(Answers()) as url, Publisher(place) as publisher:
        async with watching(sink, url, publisher):
            sample = await sampled(sink)

    assert (sample.blocks_cached, sample.blocks_free) == (0, POOL_BLOCKS)


@pytest.mark.parametrize("first_seen", [0, 2])
async def test_numbers_that_begin_again_are_a_restart(place: Path, sink: RecordSink, first_seen: int) -> None:
    with metrics_server(Answers()) as url, Publisher(place) as publisher:
        async with watching(sink, url, publisher):
            await sampled(sink)
            for number in range(5):
                publisher.publish(stored([number], "a"))
            await settled(sink, "a", device_cached=5)
            publisher.restart()
            for number in range(3):
                publisher.publish(stored([100 + number], "b"), lose=number < first_seen)
            await until(
                sink, lambda found: len(of(found, EngineStart)) == 2 and of(found, EngineSample)[-1].sessions == 1
            )
            sample = await sampled(sink)

    assert len(of(sink.records, EngineEnd)) == 1 and not of(sink.records, Loss)
    assert (last_of(sink.records, "b"), sample.blocks_cached) == ({"device_cached": 3}, 3)
    ends = next(n for n, record in enumerate(sink.records) if isinstance(record, EngineEnd))
    assert not [r for r in of(sink.records[ends:], KvTransition) if r.session == "a"]


async def test_rubbish_among_events_is_counted_and_the_rest_is_taken(place: Path, sink: RecordSink) -> None:
    with metrics_server(Answers()) as url, Publisher(place) as publisher:
        async with watching(sink, url, publisher):
            await sampled(sink)
            publisher.send_frames(b"one part")
            publisher.send_frames(b"t", b"no number", b"x")
            publisher.send(-5, batch([stored([7], "x")]))
            publisher.send_frames(b"t", (0).to_bytes(8, "big"), b"\xc1\xff no msgpack")
            publisher.publish(stored([1], "a"))
            await settled(sink, "a", device_cached=1)

    notes = [note.text for note in of(sink.records, Note)]
    assert len(notes) == 3 and "(4 times so far)" in notes[-1]  # the first, the second, the fourth
    assert not last_of(sink.records, "x")


async def test_a_clock_that_is_far_off_is_not_believed(place: Path, sink: RecordSink) -> None:
    with metrics_server(Answers()) as url, Publisher(place) as publisher:
        async with watching(sink, url, publisher):
            await sampled(sink)
            publisher.publish(stored([1], "a"), ts_s=time.time() - 0.25)
            publisher.publish(stored([2], "a"), ts_s=time.time() + 9000)
            publisher.publish(stored([3], "a"), ts_s=time.time() + 9001)
            await settled(sink, "a", device_cached=3)

    first, second, third = of(sink.records, KvTransition)
    assert 200_000 < second.t - first.t < 10_000_000 and abs(third.t - second.t) < 10_000_000
    assert len([note for note in of(sink.records, Note) if "clock differs" in note.text]) == 1


async def test_prompts_without_events_make_one_wonder(place: Path, sink: RecordSink) -> None:
    with metrics_server(Answers()) as url, Publisher(place) as publisher:
        async with watching(sink, url, publisher):
            await until(sink, lambda found: any("no KV event has come" in note.text for note in of(found, Note)))


async def test_token_ids_are_nowhere(place: Path, sink: RecordSink) -> None:
    capture = place / "events.jsonl"
    with metrics_server(Answers()) as url, Publisher(place) as publisher:
        async with watching(sink, url, publisher, kv_capture=capture):
            await sampled(sink)
            publisher.publish(stored([1, b"\x02" * 32], "a"), removed([1]))
            await settled(sink, "a", device_cached=1, gone=1)

    lines = [json.loads(line) for line in capture.read_text().splitlines()]
    assert [(line["seq"], line["type"], line["block_hashes"]) for line in lines] == [
        (0, "BlockStored", [1, "02" * 32]), (0, "BlockRemoved", [1]),
    ]  # fmt: skip
    assert capture.stat().st_mode & 0o777 == 0o600
    assert "770077" not in capture.read_text()
    assert not any(b"770077" in encode(record) for record in sink.records)
