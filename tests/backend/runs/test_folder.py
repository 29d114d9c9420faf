"""Names in the folder of recordings, and what killed processes leave in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.databases import names_in
from tidegate.runs import folder


@given(st.text(max_size=300), st.lists(st.text(max_size=10)))
def test_whatever_an_id_is_made_of_it_is_the_name_of_one_file_in_the_folder(text: str, taken: list[str]) -> None:
    found = folder.free_id(text, taken)
    assert found not in taken
    path = folder.file_of(Path("/state/recordings"), folder.safe_id(text))
    assert path.parent == Path("/state/recordings")
    assert not path.name.startswith((".", "-"))
    assert path.name.isascii()
    assert len(path.name) < 100
    assert folder.safe_id(found) == found or len(found) > 80


@pytest.mark.parametrize("bad", ["", "..", "../x", "a/b", "a\0b", ".hidden", "live", "x" * 81, "é", "a b"])
def test_a_path_is_never_made_of_anything_else(bad: str) -> None:
    with pytest.raises(ValueError, match="is no id"):
        folder.file_of(Path("/state"), bad)


def test_leftovers_of_the_backend_before_are_removed_and_nothing_else(tmp_path: Path) -> None:
    old = time.time() - 60
    gone = [
        "import-00aa11bb.db.part",
        "import-00aa11bb.db.part-wal",
        "upload-00aa11bb.part",
        "import-1234abcd.db.part.lock",
    ]
    kept = ["x.db", "import-x.db.part", "import-00aa11bb.db", "upload.part", "notes.txt"]
    for name in (*gone, *kept):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (old, old))
    unpacked = tmp_path / "import-00aa11bb.db.part-unpacked"
    unpacked.mkdir()
    (unpacked / "link").symlink_to(tmp_path / "x.db")
    (tmp_path / "import-99999999.db.part").write_bytes(b"an import that has only begun")
    assert folder.remove_leftovers(tmp_path) == 3
    assert names_in(tmp_path) == {*kept, "import-99999999.db.part"}
    assert (tmp_path / "x.db").read_bytes() == b"x"
    assert folder.remove_leftovers(tmp_path / "nowhere") == 0


def test_a_private_folder_goes_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import sys, tempfile, time; tempfile.tempdir = sys.argv[1]\n"
        "from tidegate.runs.folder import PrivateFolder\n"
        "private = PrivateFolder(); print(private.path.name, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        theirs = process.stdout.readline().strip()
        old = time.time() - 60
        os.utime(tmp_path / theirs, (old, old))
        first = folder.PrivateFolder()
        assert names_in(tmp_path) == {theirs, first.path.name}
        process.kill()
        process.wait()
        second = folder.PrivateFolder()
        assert names_in(tmp_path) == {first.path.name, second.path.name}
        first.remove()
        second.remove()
        assert names_in(tmp_path) == set()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
