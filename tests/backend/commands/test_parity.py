"""``tidegate parity``, as somebody types it."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from tests.support.decisions import decision
from tests.support.scenes import scene_lines
from tidegate.commands import main
from tidegate_collectors.records import KvDecision, encode


def write(path: Path, decisions: list[KvDecision]) -> Path:
    lines = [*scene_lines()[:5], *map(encode, decisions)]
    data = b"".join(line + b"\n" for line in lines)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_a_recording_whose_decisions_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decisions = [decision(seq) for seq in range(50)]
    plain, packed = write(tmp_path / "a.jsonl", decisions), write(tmp_path / "b.jsonl.gz", decisions)

    assert main(["parity", str(plain), str(packed)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{plain}: 50 decisions, 0 of them differ when taken again"
    assert said[1] == said[3] and said[1].startswith("  sha256 ")


def test_the_first_that_differs_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decisions = [decision(seq) for seq in range(9)]
    decisions[4] = msgspec.structs.replace(decisions[4], margin_s=77.0, session="\x1b[31mx")
    path = write(tmp_path / "a.jsonl", decisions)

    assert main(["parity", str(path)]) == 1
    said = capsys.readouterr().out
    assert "9 decisions, 1 of them differ" in said
    assert f"first: {path}:10: seq 4, session '\\x1b[31mx', margin_s" in said


def test_a_file_without_decisions_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", str(write(tmp_path / "a.jsonl", []))]) == 4
    assert main(["parity", str(tmp_path / "none.jsonl")]) == 3
    assert "no KV decision in it" in capsys.readouterr().err
