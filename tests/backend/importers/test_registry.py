"""The list of formats, and what is told of what was skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import foreign_traces
from tests.support.scenes import scene_lines
from tidegate.errors import BadInputError, NotFoundError, UsageError
from tidegate.importers import FORMATS, Skipped, detect, format_named, read
from tidegate.importers._skipped import MAX_KEPT


def test_each_format_detects_its_own_and_no_other(tmp_path: Path) -> None:
    samples = {
        "agentcgroup": foreign_traces.agentcgroup_folder(tmp_path / "a"),
        "agentcgroup-wrapper": foreign_traces.wrapper_log(tmp_path / "w"),
        "claude-code": foreign_traces.claude_transcript(tmp_path / "c"),
        "weka": foreign_traces.weka_trace(tmp_path / "trace.json"),
        "mooncake": foreign_traces.mooncake_trace(tmp_path / "trace.jsonl"),
        "kv-events": foreign_traces.kv_events(tmp_path / "events.jsonl"),
        "continuum": foreign_traces.continuum_timestamps(tmp_path / "scheduler_timestamps"),
    }
    assert set(samples) == {known.name for known in FORMATS}
    for name, path in samples.items():
        # A trace folder has a transcript in it, so a folder may be of two formats: the first one gets it.
        claims = {known.name for known in FORMATS if known.detect(path)}
        found = detect(path)
        assert found is not None and found.name == name
        assert claims == ({name} if name != "agentcgroup" else {"agentcgroup", "claude-code"})


def test_our_own_recording_and_anything_else_is_of_no_foreign_format(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_bytes(b"\n".join(scene_lines()) + b"\n")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 100)

    for path in (own, tmp_path / "empty", tmp_path / "binary", tmp_path / "missing", tmp_path):
        assert detect(path) is None
    with pytest.raises(NotFoundError, match="none of the formats"):
        read(own, Skipped())
    with pytest.raises(NotFoundError, match="does not exist"):
        read(tmp_path / "missing", Skipped())


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("resources.json", "session.jsonl"):
        os.mkfifo(tmp_path / name)

    assert detect(tmp_path) is None
    for known in FORMATS:
        assert not known.detect(tmp_path / "session.jsonl")
        with pytest.raises((BadInputError, NotFoundError)):
            list(known.read(tmp_path / "session.jsonl", Skipped()))


def test_a_format_can_be_named(tmp_path: Path) -> None:
    assert format_named("claude-code") is FORMATS[2]
    with pytest.raises(UsageError, match="agentcgroup, agentcgroup-wrapper, claude-code"):
        format_named("csv")


def test_all_skips_are_counted_and_the_first_are_kept() -> None:
    skipped = Skipped()
    for line in range(1, 251):
        skipped.add("a\x1b[31m.json", line, "no sample" if line % 2 else "x" * 1000)

    assert (skipped.total, len(skipped.kept)) == (250, MAX_KEPT)
    assert str(skipped.kept[0]) == "a?[31m.json:1: no sample"
    assert len(skipped.kept[1].reason) == 300
    assert skipped.to_dict()["reasons"]["no sample"] == 125
    assert skipped.to_dict()["kept"][1]["line"] == 2


def test_the_kinds_of_reasons_are_bounded() -> None:
    skipped = Skipped()
    for line in range(1000):
        skipped.add("a", line, f"reason {line}")

    assert len(skipped.reasons) == 100
    assert skipped.total == 1000
