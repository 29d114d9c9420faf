"""Claude Code transcripts, written by us."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.foreign_traces import COMMAND, T0_US, claude_transcript, iso, transcript_lines, write_lines
from tidegate.errors import BadInputError
from tidegate.importers import Skipped, detect, read
from tidegate.importers.claude_code import read as read_claude
from tidegate_collectors import records
from tidegate_collectors.records import (
    CallEnd,
    CallMatch,
    CallStart,
    Note,
    Record,
    RunMeta,
    SessionEnd,
    SessionStart,
    TurnEnd,
    TurnStart,
)

SESSION = "11111111-2222-3333-4444-555555555555"
T = TypeVar("T", bound=Record)


def _of(found: list[Record], kind: type[T]) -> list[T]:
    return [record for record in found if isinstance(record, kind)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return claude_transcript(tmp_path / "session.jsonl")


def _changed(tmp_path: Path, number: int, **more: Any) -> Path:
    lines = transcript_lines()
    lines[number - 1] = {**lines[number - 1], **more}
    return write_lines(tmp_path / "changed.jsonl", lines)


def test_a_transcript_becomes_a_session(path: Path) -> None:
    known = detect(path)
    found = list(read(path, Skipped()))

    assert known is not None and known.name == "claude-code"
    assert isinstance(found[0], RunMeta)
    assert (found[0].t, found[0].source, found[0].title) == (T0_US + 500_000, "imported", "session")
    assert [record.t for record in found] == sorted(record.t for record in found)
    (start,) = _of(found, SessionStart)
    assert (start.session, start.agent, start.title) == (SESSION, "claude", "project")
    (end,) = _of(found, SessionEnd)
    assert (end.t, end.reason, end.lost) == (T0_US + 5_000_000, "answered", False)
    assert "model a-model-1, Claude Code 2.0.0" in [note.text for note in _of(found, Note)]


def test_a_streamed_message_is_one_turn_with_its_last_usage(path: Path) -> None:
    found = list(read(path, Skipped()))
    (first, *_) = _of(found, TurnEnd)

    assert [turn.turn for turn in _of(found, TurnStart)] == ["m1", "m2", "m3"]
    assert [(turn.t - T0_US) / 1e6 for turn in _of(found, TurnStart)] == [0.5, 3.5, 3.5]
    assert (first.t, first.prompt_tokens, first.output_tokens) == (T0_US + 1_500_000, 3210, 40)
    assert (first.cached_device_tokens, first.recomputed_tokens) == (3000, 210)
    assert [turn.finish_reason for turn in _of(found, TurnEnd)] == [None, None, "end_turn"]


def test_calls_have_their_results(path: Path) -> None:
    found = list(read(path, Skipped()))
    starts, ends = _of(found, CallStart), _of(found, CallEnd)

    assert [(s.call, s.turn, s.tool, s.category, s.command) for s in starts] == [
        ("c1", "m1", "Bash", "tests", "python -m pytest"), ("c2", "m2", "Read", "read", None)
    ]  # fmt: skip
    assert [(e.call, e.duration_us, e.exit_code, e.result_chars) for e in ends] == [
        ("c1", 2_000_000, 2, 25), ("c2", 250_000, None, 11)
    ]  # fmt: skip
    assert [(m.call, m.agent_tool, m.failed, m.confidence, m.began_us) for m in _of(found, CallMatch)] == [
        ("c1", "Bash", True, "none", T0_US + 1_500_000), ("c2", "Read", False, "none", T0_US + 4_000_000)
    ]  # fmt: skip


def test_arguments_prompts_and_results_are_not_stored(path: Path) -> None:
    stored = b"\n".join(records.encode(record) for record in read(path, Skipped()))

    assert "secret" in COMMAND
    assert b"python -m pytest" in stored
    assert b"secret" not in stored


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (False, "fine", 0),
        (True, "Exit code 137\nKilled", 137),
        (True, "Error: Exit code 1", 1),
        (True, "Exit code 999", None),
        (True, "Command timed out after 2m 0s", None),
        (None, "fine", None),
    ],
)
def test_exit_codes_are_believed_only_where_the_log_tells_them(
    error: bool | None, text: str, code: int | None, tmp_path: Path
) -> None:
    block = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": text}], "is_error": error}
    path = _changed(tmp_path, 5, message={"role": "user", "content": [block]})
    end = _of(list(read(path, Skipped())), CallEnd)[0]

    assert (end.exit_code, end.result_chars) == (code, len(text))


def test_several_files_of_a_folder_come_together(tmp_path: Path) -> None:
    """A sub-agent's file has the session of its parent; a resumed session repeats lines of the one before."""
    lines = transcript_lines()
    folder = tmp_path / "projects"
    (folder / "deep").mkdir(parents=True)
    write_lines(folder / "deep" / "agent-1.jsonl", [line for line in lines if line.get("isSidechain")])
    write_lines(folder / "main.jsonl", [line for line in lines if not line.get("isSidechain")])
    write_lines(folder / "other.jsonl", [*lines[1:3], *transcript_lines("ffffffff-0000-0000-0000-000000000000")[7:]])
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress((folder / "main.jsonl").read_bytes()))
    skipped = Skipped()
    found = list(read(folder, skipped))

    assert len(_of(found, SessionStart)) == 1  # the line of the other session has a uuid that was there before
    assert [record.call for record in _of(found, CallStart)] == ["c1", "c2"]
    assert len(_of(found, TurnEnd)) == 3
    assert skipped.reasons["a line that was read before (same uuid)"] == 3 + 5


def test_a_call_without_a_result_has_an_end_that_was_not_seen(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "cut.jsonl", transcript_lines()[:4])
    found = list(read(path, Skipped()))

    assert [(end.call, end.lost) for end in _of(found, CallEnd)] == [("c1", True)]
    assert _of(found, SessionEnd)[0].lost


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timestamp": "2026-02-06T17:47:12"}, "time zone"),
        ({"timestamp": 5}, "Expected `str"),
        ({"sessionId": None}, "sessionId"),
        ({"sessionId": "a\nb"}, "sessionId"),
        ({"message": "text"}, "Expected `object"),
        ({"isSidechain": "yes"}, "Expected `bool"),
    ],
)
def test_a_bad_line_is_told_with_its_number(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    skipped = Skipped()
    found = list(read(_changed(tmp_path, 8, **change), skipped))

    assert len(_of(found, TurnEnd)) == 2
    assert [skip.line for skip in skipped.kept if reason in skip.reason] == [8]


def test_an_answer_of_the_cli_itself_is_an_error_of_the_turn(tmp_path: Path) -> None:
    found = list(read(_changed(tmp_path, 8, isApiErrorMessage=True), Skipped()))

    assert _of(found, TurnEnd)[-1].error == "the request failed"
    assert _of(found, SessionEnd)[0].lost


def test_counts_that_are_none_are_left_out(tmp_path: Path) -> None:
    usage = {"input_tokens": -1, "output_tokens": 1e300, "cache_read_input_tokens": "many", "extra": None}
    message = {"id": "m9", "content": None, "usage": usage, "model": None}
    last = _of(list(read(_changed(tmp_path, 8, message=message), Skipped())), TurnEnd)[-1]

    assert (last.prompt_tokens, last.output_tokens, last.cached_device_tokens) == (None, None, None)


def test_a_turn_begins_no_later_than_it_ends(tmp_path: Path) -> None:
    found = list(read(_changed(tmp_path, 2, timestamp=iso(100)), Skipped()))
    first = {record.turn: record.t for record in _of(found, TurnStart)}

    assert all(first[record.turn] <= record.t for record in _of(found, TurnEnd))


def test_a_file_without_a_session_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"type": "summary"}) + "\n")

    assert detect(path) is None
    with pytest.raises(BadInputError, match="no line of a Claude Code session"):
        list(read_claude(path, Skipped()))


def test_a_packed_file_that_is_a_bomb_is_read_no_further_than_others_go(tmp_path: Path) -> None:
    """In an archive each of many small files could unpack to gigabytes of nothing."""
    path = tmp_path / "session.jsonl.gz"
    transcript = claude_transcript(tmp_path / "plain.jsonl").read_bytes()
    blank = (b" " * 1023 + b"\n") * (1 << 10)
    with gzip.open(path, "wb") as file:
        file.write(transcript)
        for _ in range(80):
            file.write(blank)
    skipped = Skipped()
    found = list(read(path, skipped))

    assert _of(found, SessionEnd)
    assert [skip.reason for skip in skipped.kept if "only" in skip.reason] == [
        f"only the first {64 << 20} bytes were read"
    ]
