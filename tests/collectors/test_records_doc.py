"""docs/records.md is what the structs say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate_collectors import records, records_doc


def test_the_document_is_current() -> None:
    assert records_doc.main(["--check"]) == 0, "run: python -m tidegate_collectors.records_doc"


def test_the_document_names_every_type_and_field() -> None:
    text = records_doc.document()
    for name, cls in records.TYPES.items():
        section = text.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]
        own = set(cls.__struct_encode_fields__) - set(records.Record.__struct_encode_fields__)
        for field in own:
            assert f"\n| `{field}` | " in section, f"{name}.{field}"
    assert "| `t` | integer | *required* | microseconds since the Unix epoch, UTC |" in text
    assert "[HostInfo](#object-hostinfo)" in text
    assert "| `from` | " in text


def test_links_within_the_document_lead_somewhere() -> None:
    text = records_doc.document()
    headings = {
        line[3:].lower().replace(" ", "-").replace(".", "") for line in text.splitlines() if line.startswith("## ")
    }
    targets = [part.split(")", 1)[0] for part in text.split("](#")[1:]]
    assert targets
    assert set(targets) <= headings


def test_a_document_that_is_not_current_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "docs" / "records.md"
    assert records_doc.main(["--check", str(path)]) == 1
    assert "is not current" in capsys.readouterr().err
    assert records_doc.main([str(path)]) == 0
    assert records_doc.main(["--check", str(path)]) == 0
    path.write_text(path.read_text(encoding="utf-8") + "x", encoding="utf-8")
    assert records_doc.main(["--check", str(path)]) == 1
