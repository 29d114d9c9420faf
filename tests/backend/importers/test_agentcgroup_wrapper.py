"""The wrapper's log, written by us."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.foreign_traces import COMMAND, T0_US, wrapper_log
from tidegate.errors import BadInputError
from tidegate.importers import Skipped, detect, read
from tidegate.importers.agentcgroup_wrapper import read as read_wrapper
from tidegate_collectors import records
from tidegate_collectors.records import CallEnd, CallStart, Record, RunMeta, SessionEnd, SessionStart

T = TypeVar("T", bound=Record)
LINE = (
    '{"ts":1790000000000000000,"pid":%s,"cgroup":"/s/session_high/tool_1","cmd":"ls","exit":%s,"duration_ms":%s,'
    '"peak_mem":"%s","current_mem":"1","hint":"memory:lots"%s}\n'
)


def _of(found: list[Record], kind: type[T]) -> list[T]:
    return [record for record in found if isinstance(record, kind)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return wrapper_log(tmp_path / "agentcg_tools.jsonl")


def test_sessions_are_the_folders_of_the_calls(path: Path) -> None:
    known = detect(path)
    found = list(read(path, Skipped()))

    assert known is not None and known.name == "agentcgroup-wrapper"
    assert isinstance(found[0], RunMeta)
    assert [record.t for record in found] == sorted(record.t for record in found)
    assert [(start.session, start.t - T0_US) for start in _of(found, SessionStart)] == [
        ("session_high", 0), ("session_low", 4_000_000)
    ]  # fmt: skip
    assert [(end.session, end.t - T0_US, end.lost) for end in _of(found, SessionEnd)] == [
        ("session_high", 3_500_000, True), ("session_low", 5_500_000, True)
    ]  # fmt: skip


def test_calls_have_what_the_wrapper_measured(path: Path) -> None:
    found = list(read(path, Skipped()))
    starts, ends = _of(found, CallStart), _of(found, CallEnd)

    assert [(s.category, s.command, s.hint, s.hint_bytes, s.boundary, s.pid) for s in starts] == [
        ("tests", "python -m pytest", "memory:2g", 2 << 30, "wrapper", 4000),
        ("edit", "cat", None, None, "wrapper", 4001),
        ("git", "git status", None, None, "wrapper", 4137),
    ]
    assert [(e.duration_us, e.exit_code, e.signal, e.oom, e.charged_peak_bytes) for e in ends] == [
        (1_500_000, 0, None, False, 104_857_600), (1_500_000, 1, None, False, None), (1_500_000, 137, None, False, 1000)
    ]  # fmt: skip


def test_broken_lines_are_told_with_their_number(path: Path) -> None:
    skipped = Skipped()
    list(read(path, skipped))
    with_lines = [skip for skip in skipped.kept if skip.line is not None]

    # The command with newlines is lines 2 to 4, put together; the one with quotes cannot be.
    assert [(skip.place, skip.line) for skip in with_lines] == [("agentcg_tools.jsonl", 6)]
    assert "does not escape" in with_lines[0].reason


def test_the_rest_of_a_broken_line_is_told_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LINE % (1, 0, 5, 1, "") + '{"ts":1,"cmd":"echo "a\nb"\n\nc"}\n' + LINE % (2, 0, 5, 1, ""))
    skipped = Skipped()
    found = list(read(path, skipped))

    assert len(_of(found, CallStart)) == 2
    assert [skip.line for skip in skipped.kept if skip.line] == [2, 3, 5]


def test_a_line_of_no_command_is_not_put_together_with_others(tmp_path: Path) -> None:
    """Hundreds of lines of megabytes each would need all memory."""
    path = tmp_path / "log"
    path.write_text(LINE % (1, 0, 5, 1, "") + '{"ts":1,"cmd":"' + "x" * 70_000 + "\n" + "y" * 10 + '","duration_ms":1}')
    skipped = Skipped()
    found = list(read(path, skipped))

    assert len(_of(found, CallStart)) == 1
    assert [skip.line for skip in skipped.kept if skip.line] == [2, 3]


def test_arguments_prompts_and_results_are_not_stored(path: Path) -> None:
    stored = b"\n".join(records.encode(record) for record in read(path, Skipped()))

    assert "secret" in COMMAND
    assert b"python -m pytest" in stored
    assert b"secret" not in stored


def test_the_local_variant_has_no_peak_of_the_call(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LINE % (1, 0, 5, 3788800, ',"mem_high":"max"'))
    skipped = Skipped()
    (end,) = _of(list(read(path, skipped)), CallEnd)

    assert end.charged_peak_bytes is None
    assert any("local variant" in skip.reason for skip in skipped.kept)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (LINE % (1, 0, -1, 1, ""), "out of range"),
        (LINE % (1, 0, 10**18, 1, ""), "out of range"),
        (LINE % (1, 0, '"5"', 1, ""), "Expected `int`"),
        (LINE.replace("1790000000000000000", "0") % (1, 0, 5, 1, ""), "out of range"),
    ],
)
def test_values_that_cannot_be_are_left_out(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LINE % (1, 0, 5, 1, "") + line)
    skipped = Skipped()

    assert len(_of(list(read(path, skipped)), CallEnd)) == 1
    assert [skip.line for skip in skipped.kept if reason in skip.reason] == [2]


def test_odd_values_within_a_line_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LINE % (1 << 40, 999, 5, "9" * 30, ""))
    found = list(read(path, Skipped()))
    (start,), (end,) = _of(found, CallStart), _of(found, CallEnd)

    assert (start.pid, start.hint, start.hint_bytes) == (None, "memory:lots", None)
    assert (end.exit_code, end.charged_peak_bytes) == (None, None)


def test_another_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"ts": 1, "level": "info"}\n')

    assert detect(path) is None
    with pytest.raises(BadInputError, match="no line of AgentCgroup's wrapper"):
        list(read_wrapper(path, Skipped()))
