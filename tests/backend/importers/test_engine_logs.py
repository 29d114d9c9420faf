"""What other people's engines wrote down: vLLM's KV events and Continuum's scheduler timestamps."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support import foreign_traces
from tests.support.foreign_traces import T0_S, T0_US, write_lines
from tests.support.importing import imported
from tests.support.stock_engine import Form, batch, removed, stored
from tidegate.errors import BadInputError, NotFoundError
from tidegate.importers import Skipped, continuum, kv_events
from tidegate_collectors.engine.stock import events as wire
from tidegate_collectors.engine.stock.capture import Capture
from tidegate_collectors.records import (
    EngineEnd,
    EngineStart,
    KvTransition,
    Loss,
    Note,
    Record,
    RunMeta,
    SessionStart,
    TurnEnd,
)

T = TypeVar("T", bound=Record)


def of(found: list[Record], kind: type[T]) -> list[T]:
    return [record for record in found if isinstance(record, kind)]


def changes(found: list[Record]) -> list[tuple[Any, ...]]:
    return [
        ((record.t - T0_US) / 1e6, record.session, record.from_, record.to, record.cause, record.blocks)
        for record in of(found, KvTransition)
    ]


def test_events_become_transitions(tmp_path: Path) -> None:
    skipped = Skipped()
    found = list(kv_events.read(foreign_traces.kv_events(tmp_path / "events.jsonl"), skipped))

    assert isinstance(found[0], RunMeta) and (found[0].source, found[0].block_tokens) == ("imported", 32)
    assert [record.t for record in found] == sorted(record.t for record in found)
    assert changes(found) == [
        (0, "a", "gone", "device_cached", "computed", 3), (1, "a", "device_cached", "gone", "lru", 2),
        (1, "b", "gone", "device_cached", "computed", 1), (4, "a", "device_cached", "gone", "forgotten", 1),
        (4, "b", "device_cached", "gone", "forgotten", 1), (4, "b", "gone", "device_cached", "computed", 1),
        (5, "b", "device_cached", "gone", "reset", 1),
    ]  # fmt: skip
    assert of(found, KvTransition)[1].residency == {"device_cached": 1, "gone": 2}
    assert [(loss.count, loss.where) for loss in of(found, Loss)] == [(1, "zmq")]
    assert skipped.total == 0


@pytest.mark.parametrize("form", ["map", "array"])
def test_batches_as_they_were_on_the_wire(tmp_path: Path, form: Form) -> None:
    lines = [
        {"topic": "kv", "seq": 0, "payload": base64.b64encode(batch([stored([1, 2], "a")], T0_S, form)).decode()},
        {"topic": "kv", "seq": 1, "payload": base64.b64encode(batch([removed([1])], T0_S + 1.5, form)).decode()},
    ]
    path = write_lines(tmp_path / "frames.jsonl", lines)

    assert kv_events.detect(path)
    found = list(kv_events.read(path, Skipped()))
    assert found[-1].t == T0_US + 1_500_000
    expected = [
        (0, "a", "gone", "device_cached", "computed", 2), (1.5, "a", "device_cached", "gone", "lru", 1),
    ]  # fmt: skip
    assert changes(found) == (expected if form == "map" else [])  # no sessions on the older form


def test_what_the_collector_captured_is_read_as_it_was(tmp_path: Path) -> None:
    capture = Capture(tmp_path / "captured.jsonl")
    for seq, events in enumerate(
        ([stored([1, b"\x07" * 32], "a"), stored([3], "b", "CPU")], [removed([b"\x07" * 32])])
    ):
        capture.write(seq, wire.decode(batch(events, T0_S + seq)))
    capture.close()

    assert changes(list(kv_events.read(tmp_path / "captured.jsonl", Skipped()))) == [
        (0, "a", "gone", "device_cached", "computed", 2), (0, "b", "gone", "host", "computed", 1),
        (1, "a", "device_cached", "gone", "lru", 1),
    ]  # fmt: skip


def test_numbers_that_begin_again_are_a_restart(tmp_path: Path) -> None:
    lines = [
        {
            "seq": seq,
            "ts": T0_S + at,
            "type": "BlockStored",
            "block_hashes": [seq],
            "block_size": size,
            "session_id": "a",
        }
        for at, (seq, size) in enumerate([(0, 32), (1, 32), (0, 64), (1, 64)])
    ]
    found = list(kv_events.read(write_lines(tmp_path / "e.jsonl", lines), Skipped()))

    assert len(of(found, EngineStart)) == 2 and len(of(found, EngineEnd)) == 2
    assert of(found, KvTransition)[-1].residency == {"device_cached": 2}
    assert of(found, KvTransition)[-1].tokens == 64


def test_events_without_times_get_some_and_it_is_said(tmp_path: Path) -> None:
    lines = [{"seq": n, "type": "BlockStored", "block_hashes": [n], "block_size": 32} for n in range(3)]
    found = list(kv_events.read(write_lines(tmp_path / "e.jsonl", lines), Skipped()))

    assert "no times" in of(found, Note)[0].text
    assert found[-1].t - found[0].t == 3000


def test_a_clock_that_jumps_back_is_held(tmp_path: Path) -> None:
    lines = [
        {"seq": n, "ts": ts, "type": "BlockStored", "block_hashes": [n], "block_size": 32, "session_id": "a"}
        for n, ts in enumerate([T0_S, T0_S + 5, T0_S + 2, T0_S + 6])
    ]
    skipped = Skipped()
    found = list(kv_events.read(write_lines(tmp_path / "e.jsonl", lines), skipped))

    assert [change[0] for change in changes(found)] == [0, 5, 5, 6]
    assert "before that of the batch" in skipped.kept[0].reason and skipped.kept[0].line == 3


def test_lines_that_are_none_are_told(tmp_path: Path) -> None:
    good = {"seq": 0, "ts": T0_S, "type": "BlockStored", "block_hashes": [1], "block_size": 32, "session_id": "a<b>"}
    path = write_lines(tmp_path / "e.jsonl", [good, {"type": "Other"}, {"gap": [1, 2]}, {"seq": 1, "payload": "!"}])
    with path.open("a") as file:
        file.write("{\n")
    skipped = Skipped()
    found = list(kv_events.read(path, skipped))

    assert [skip.line for skip in skipped.kept] == [2, 4, 5]
    assert [(start.session, start.title) for start in of(found, SessionStart)] == [("a-b", "a<b>")]


def test_two_sessions_whose_names_are_made_alike_stay_two(tmp_path: Path) -> None:
    lines = [
        {"seq": n, "ts": T0_S + n, "type": "BlockStored", "block_hashes": [n], "block_size": 32, "session_id": name}
        for n, name in enumerate(["a b", "a-b"])
    ]
    found = list(kv_events.read(write_lines(tmp_path / "e.jsonl", lines), Skipped()))

    assert len({start.session for start in of(found, SessionStart)}) == 2
    assert {tuple(record.residency.items()) for record in of(found, KvTransition)} == {(("device_cached", 1),)}


def test_continuum_says_what_its_scheduler_did(tmp_path: Path) -> None:
    skipped = Skipped()
    path = foreign_traces.continuum_timestamps(tmp_path / "scheduler_timestamps")
    found = list(continuum.read(path, skipped))

    assert isinstance(found[0], RunMeta) and found[0].source == "imported"
    assert [record.t for record in found] == sorted(record.t for record in found)
    ends = {(end.session, end.turn): end for end in of(found, TurnEnd)}
    second = ends["astropy__astropy-7746", "2"]
    assert (second.prompt_tokens, second.cached_tokens, second.queue_us) == (480, 320, 100_000)
    assert ends["job-two", "1"].preemptions == 1
    assert ends["job-two", "2"].cached_tokens == 64
    assert skipped.total == 0


def test_continuum_pins_and_what_came_of_them(tmp_path: Path) -> None:
    found = list(continuum.read(foreign_traces.continuum_timestamps(tmp_path / "t"), Skipped()))

    assert [change[:1] + change[2:] for change in changes(found) if change[1] == "astropy__astropy-7746"] == [
        (0.5, "gone", "device_active", "computed", 20), (2, "device_active", "device_cached", "finished", 20),
        (2, "device_cached", "device_pinned", "decision", 20), (3.1, "device_pinned", "device_active", "admitted", 20),
        (3.1, "gone", "device_active", "computed", 10), (4, "device_active", "device_cached", "finished", 30),
    ]  # fmt: skip
    assert [change[:1] + change[2:] for change in changes(found) if change[1] == "job-two"] == [
        (1, "gone", "device_active", "computed", 10), (1.5, "device_active", "gone", "preemption", 10),
        (2.5, "gone", "device_active", "computed", 10), (3, "device_active", "device_cached", "finished", 10),
        (3, "device_cached", "device_pinned", "decision", 10), (5, "device_pinned", "device_cached", "ttl", 10),
        (9, "device_cached", "gone", "lru", 6), (9, "device_cached", "device_active", "admitted", 4),
        (9, "gone", "device_active", "computed", 8), (10, "device_active", "device_cached", "finished", 12),
    ]  # fmt: skip


def test_continuum_with_damage(tmp_path: Path) -> None:
    path = tmp_path / "scheduler_timestamps"
    path.write_text(
        json.dumps(
            {
                "a": [
                    {"Request_arrival_time": T0_S}, {"waiting_to_running": T0_S - 5, "prompt_length": 5}, {"x": 1}, 7,
                    {"Request_departure_time": "soon"}, {"pinned_time": T0_S + 1}, {"Request_arrival_time": T0_S + 2},
                ],
                "b": "nothing", "c": [],
            }
        )
    )  # fmt: skip
    skipped = Skipped()
    found = list(continuum.read(tmp_path, skipped))

    assert {start.session for start in of(found, SessionStart)} == {"a"}
    assert skipped.total == 7
    path.write_text("{}")
    with pytest.raises(BadInputError, match="no request"):
        list(continuum.read(path, Skipped()))
    path.unlink()
    with pytest.raises(NotFoundError):
        list(continuum.read(path, Skipped()))


@pytest.mark.parametrize(
    ("make", "name"), [(foreign_traces.kv_events, "kv-events"), (foreign_traces.continuum_timestamps, "continuum")]
)
async def test_they_are_imported_into_a_run(tmp_path: Path, make: Callable[[Path], Path], name: str) -> None:
    done = await imported(make(tmp_path / "source.jsonl"), tmp_path / "recordings")

    assert (done.format, done.report["errors_total"], done.report["ended_clean"]) == (name, 0, True)
    assert done.records > 10
