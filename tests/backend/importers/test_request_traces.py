"""WEKA and Mooncake traces become modelled runs: exact on small ones, plausible and labelled on the real ones."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support import foreign_traces
from tests.support.importing import imported
from tidegate.errors import BadInputError
from tidegate.importers import Skipped, mooncake, weka
from tidegate.importers.weka import BEGIN_US
from tidegate_collectors.records import (
    EngineSample,
    EngineStart,
    KvTransition,
    Note,
    Record,
    RunMeta,
    SessionStart,
    TurnEnd,
)

T = TypeVar("T", bound=Record)
SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces" / "kv"
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/traces/kv is not beside the project")


def of(found: list[Record], kind: type[T]) -> list[T]:
    return [record for record in found if isinstance(record, kind)]


def turns(found: list[Record]) -> list[tuple[str | None, str | None, int | None, int | None]]:
    """Session, turn, tokens found in the cache, tokens computed again."""
    return [(end.session, end.turn, end.cached_tokens, end.recomputed_tokens) for end in of(found, TurnEnd)]


def test_a_conversation_is_modelled_and_says_so(tmp_path: Path) -> None:
    found = list(weka.read(foreign_traces.weka_trace(tmp_path / "trace.json"), Skipped()))

    assert isinstance(found[0], RunMeta) and found[0].source == "modelled"
    assert [record.t for record in found] == sorted(record.t for record in found)
    assert "nothing here was measured" in of(found, Note)[0].text
    assert [start.rule for start in of(found, EngineStart)] == ["lru"]
    assert {start.session for start in of(found, SessionStart)} == {"trace_1", "trace_1/agent_001"}
    # 200 + 70 tokens fill four blocks of 64, the fourth of which the next prompt shows to be the answer's.
    assert turns(found) == [
        ("trace_1", "1", 0, 0), ("trace_1/agent_001", "1", 0, 0), ("trace_1", "2", 256, 0), ("trace_1", "3", 320, 0),
    ]  # fmt: skip
    assert [end.t - BEGIN_US for end in of(found, TurnEnd)] == [2_000_000, 4_500_000, 11_000_000, 21_000_000]


def test_residency_adds_up_to_what_changed(tmp_path: Path) -> None:
    found = list(weka.read(foreign_traces.weka_trace(tmp_path / "trace.json"), Skipped()))

    last = [record for record in of(found, KvTransition) if record.session == "trace_1"][-1]
    assert (last.from_, last.to, last.cause) == ("device_active", "device_cached", "finished")
    assert last.residency == {"device_active": 0, "device_cached": 6, "gone": 0}


def test_a_request_that_goes_on_is_the_next_turn_of_its_session(tmp_path: Path) -> None:
    found = list(mooncake.read(foreign_traces.mooncake_trace(tmp_path / "t.jsonl"), Skipped()))

    assert turns(found) == [
        ("request-1", "1", 0, 0), ("request-2", "1", 512, 0), ("request-1", "2", 3 * 512, 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": []}', "timestamp"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": []}', "lengths"),
        ('{"timestamp": 1e300, "input_length": 5, "output_length": 1, "hash_ids": []}', "timestamp"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": ["a"]}', "int"),
        ("{", "not JSON"),
    ],
)
def test_a_bad_line_is_left_out_and_named(tmp_path: Path, line: str, reason: str) -> None:
    path = foreign_traces.mooncake_trace(tmp_path / "t.jsonl")
    path.write_text(path.read_text() + line + "\n")
    skipped = Skipped()

    assert len(turns(list(mooncake.read(path, skipped)))) == 3
    assert (skipped.total, skipped.kept[0].line) == (1, 4)
    assert reason in skipped.kept[0].reason


def _edit(path: Path, change: Callable[[dict[str, object]], object]) -> Path:
    trace = json.loads(path.read_text())
    change(trace)
    path.write_text(json.dumps(trace))
    return path


def test_bad_requests_and_files_of_a_folder_are_left_out_and_named(tmp_path: Path) -> None:
    foreign_traces.weka_trace(tmp_path / "a.json")
    _edit(foreign_traces.weka_trace(tmp_path / "b.json"), lambda trace: trace.update(block_size=32))
    _edit(foreign_traces.weka_trace(tmp_path / "c.json"), lambda trace: trace.update(block_size=0))
    _edit(
        foreign_traces.weka_trace(tmp_path / "d.json"),
        lambda trace: trace.update(id="d", requests=[{"t": -5.0, "in": 3}, {"t": 1.0, "in": 0}, {"t": 0.0, "in": 70}]),
    )
    (tmp_path / "e.json").write_text("{")
    skipped = Skipped()

    found = list(weka.read(tmp_path, skipped))

    assert {record.session for record in of(found, TurnEnd)} == {"trace_1", "trace_1/agent_001", "d"}
    assert [skip.place for skip in skipped.kept] == ["b.json", "c.json", "d.json", "d.json", "e.json"]


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    path = _edit(foreign_traces.weka_trace(tmp_path / "a.json"), lambda trace: trace.update(requests=[]))

    with pytest.raises(BadInputError, match="no request"):
        list(weka.read(path, Skipped()))


async def test_an_import_is_a_run_of_kind_modelled(tmp_path: Path) -> None:
    done = await imported(foreign_traces.weka_trace(tmp_path / "trace.json"), tmp_path / "recordings")

    stored = next((tmp_path / "recordings").glob("*.db"))
    with contextlib.closing(sqlite3.connect(stored)) as database:
        assert database.execute("SELECT id, source FROM runs").fetchall() == [(done.run_id, "modelled")]


@needs_traces
def test_real_conversations_find_what_their_blocks_say() -> None:
    skipped = Skipped()
    found = list(weka.read(SHARED / "weka_claude_code_traces", skipped))

    ends = of(found, TurnEnd)
    assert skipped.total == 0 and len(ends) == 177
    assert sum(end.prompt_tokens or 0 for end in ends) == 10_995_107
    sample = of(found, EngineSample)[-1]
    assert sample.prefix_hits_tokens == sum(end.cached_tokens or 0 for end in ends)
    # Nothing can be found that the session, or another of its trace, had not had before; and pressure is real.
    assert 0.5 < (sample.prefix_hits_tokens or 0) / 10_995_107 < 0.9
    assert any(record.cause == "lru" and record.victim_of for record in of(found, KvTransition))


@needs_traces
def test_the_real_mooncake_trace_is_read_whole() -> None:
    skipped = Skipped()
    found = list(mooncake.read(SHARED / "mooncake_conversation_first3000.jsonl", skipped))

    assert skipped.total == 0 and len(of(found, TurnEnd)) == 3000
    assert max(end.queue_us or 0 for end in of(found, TurnEnd)) < 1_000_000
