"""``tidegate import``, ``runs`` and ``export`` on recordings, as somebody types them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import pty
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from tests.support.databases import derived_tables, names_in, table_rows
from tests.support.foreign_traces import claude_transcript
from tests.support.scenes import scene_lines
from tests.support.server import running_server
from tidegate.ingest.recording import load
from tidegate.store import open_store

DATA = b"".join(line + b"\n" for line in scene_lines())
ID = "20261130-2306-ab12"


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments], capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def in_a_terminal(*arguments: str) -> list[str]:
    """The lines of a command whose output is a terminal."""
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-m", "tidegate", *arguments], stdout=theirs, timeout=60, check=True)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # the end of a terminal is an error
        while block := os.read(ours, 4096):
            said += block
    os.close(ours)
    return said.decode().splitlines()


def test_the_words_are_those_of_the_runs_page(tmp_path: Path, source: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    source.write_bytes(DATA[:-20])
    assert tidegate("import", str(source), str(claude_transcript(tmp_path / "t.jsonl")), *state).returncode == 0
    rows = {row.split("\t")[-1]: row.split("\t") for row in tidegate("runs", *state).stdout.splitlines()}
    assert rows["r.jsonl"][2:4] == ["recorded", "cut off"]
    assert rows["t.jsonl"][2:4] == ["imported, claude-code", "ended"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "r.jsonl"
    path.write_bytes(DATA)
    return path


def test_import_list_export_rename_delete(tmp_path: Path, source: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress(DATA))
    (tmp_path / "bad.csv").write_text("a,b,c\n1,2,3\n")
    (tmp_path / "odd.jsonl").write_bytes(DATA + b"broken\nb\x1b[2J\n")
    done = tidegate("import", str(source), str(tmp_path / "bad.csv"), str(tmp_path / "r.jsonl.gz"), *state)
    assert done.returncode == 4
    assert done.stdout.splitlines() == [
        f"{source}: {len(scene_lines())} records (tidegate) as run {ID}",
        f"{source}.gz: {len(scene_lines())} records (tidegate) as run {ID}-2",
    ]
    assert f"tidegate: {tmp_path / 'bad.csv'}:1: this seems to be CSV" in done.stderr
    odd = tidegate("import", "--title", "an odd one", str(tmp_path / "odd.jsonl"), *state)
    assert (odd.returncode, f"as run {ID}-3" in odd.stdout) == (0, True)
    lines = odd.stderr.splitlines()
    assert lines[0] == f"{tmp_path / 'odd.jsonl'}: 2 lines or values were left out or corrected"
    assert lines[1].startswith(f"  {tmp_path / 'odd.jsonl'}:{len(scene_lines()) + 1}:1: not JSON")
    assert "\x1b" not in odd.stderr
    listed = [line.split("\t") for line in tidegate("runs", *state).stdout.splitlines()]
    assert [row[0] for row in listed] == [f"{ID}-3", f"{ID}-2", ID]
    assert listed[0][2:5] + listed[0][6:] == [
        "recorded",
        "ended",
        f"{len(scene_lines()) + 2} records",
        "an odd one",
        "odd.jsonl",
    ]
    header, first, *_ = in_a_terminal("runs", *state)
    assert header.split() == ["ID", "STARTED", "(UTC)", "KIND", "STATE", "RECORDS", "SIZE", "TITLE", "FILE"]
    assert first.split()[-4:] == ["an", "odd", "one", "odd.jsonl"] and "kB" in first and "bytes" not in first
    for name, unpack in (
        ("out.jsonl", bytes),
        ("out.jsonl.gz", gzip.decompress),
        ("out.jsonl.zst", lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
    ):
        done = tidegate("export", "--run", f"{ID}-2", "-o", str(tmp_path / name), *state)
        assert done.returncode == 0, done.stderr
        assert unpack((tmp_path / name).read_bytes()) == DATA
    assert tidegate("runs", "rename", ID, "the night", *state).returncode == 0
    assert "the night" in tidegate("runs", "list", *state).stdout
    assert tidegate("runs", "delete", ID, f"{ID}-3", *state).stdout == f"{ID} is deleted\n{ID}-3 is deleted\n"
    assert names_in(tmp_path / "state" / "recordings") == {f"{ID}-2.db"}


def test_what_cannot_be_done_is_said_in_words(tmp_path: Path, source: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    for arguments, code, text in (
        (("runs",), 6, "does not exist"),
        (("import", "--format", "nonsense", str(source)), 2, "is no format"),
        (("import", "--title", "x", str(source), str(source)), 2, "--title is for one file"),
        (("import", str(tmp_path / "no.jsonl")), 3, "no.jsonl does not exist"),
        (("import", "--format", "agentcgroup", str(source)), 4, "r.jsonl"),
        (("import", str(tmp_path)), 4, "nothing in it is of a format that can be read"),
    ):
        done = tidegate(*arguments, *state)
        assert (arguments, done.returncode) == (arguments, code), done.stderr
        assert text in done.stderr
        assert "Traceback" not in done.stderr
    (tmp_path / "state" / "recordings" / "foreign.db").write_text("x" * 5000)
    assert "foreign.db\t-\trecorded\tdamaged" in tidegate("runs", *state).stdout
    for action in (("runs", "rename", "x", "y"), ("runs", "delete", "x"), ("export", "--run", "x", "-o", "-")):
        done = tidegate(*action, *state)
        assert (done.returncode, "no run 'x'" in done.stderr) == (3, True)
    done = tidegate("export", "-o", "-", *state)
    assert (done.returncode, "no live run yet" in done.stderr) == (3, True)
    assert "tidegate, agentcgroup, " in " ".join(tidegate("import", "--help").stdout.split())


def test_live_runs_are_changed_only_while_no_backend_writes(tmp_path: Path, source: Path) -> None:
    async def fill() -> None:
        store = await open_store(tmp_path / "state" / "tidegate.db")
        await load(source, store, choose_id=lambda _: "past")
        await store.close()

    asyncio.run(fill())
    state = ("--state-dir", str(tmp_path / "state"))
    with running_server(tmp_path) as server, server.client() as client:
        assert tidegate("import", str(source), *state).returncode == 0  # its own database: nobody is in its way
        rows = {row["id"] for row in client.get("/api/runs").json()["runs"]}
        assert {"past", ID} < rows
        assert tidegate("runs", "rename", ID, "renamed", *state).returncode == 0
        titles = {row["title"] for row in client.get("/api/runs").json()["runs"]}
        assert "renamed" in titles
        for action in (("rename", "past", "x"), ("delete", "past")):
            done = tidegate("runs", *action, *state)
            assert done.returncode == 6
            assert f"is being written by process {server.process.pid}" in done.stderr
        assert tidegate("runs", "delete", ID, *state).returncode == 0
        assert client.get("/api/state", params={"run": ID}).status_code == 404
        assert client.delete("/api/runs/past").status_code == 204
    assert tidegate("runs", "delete", "past", *state).returncode == 3


def test_reindex_rebuilds_recordings_too(tmp_path: Path, source: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    tidegate("import", str(source), *state)
    path = tmp_path / "state" / "recordings" / f"{ID}.db"
    before, snapshots, rollups = derived_tables(path), table_rows(path, "snapshots"), table_rows(path, "rollups")
    done = tidegate("reindex", *state)
    assert (done.returncode, done.stdout) == (0, f"{ID}: {len(scene_lines())} records\n"), done.stderr
    assert derived_tables(path) == before
    assert (len(table_rows(path, "snapshots")) <= len(snapshots), len(table_rows(path, "rollups"))) == (
        True, len(rollups),
    )  # fmt: skip
    assert names_in(path.parent) == {path.name}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody can walk to."""
    with tempfile.TemporaryDirectory(prefix="tg-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_root_imports_belongs_to_the_user_of_the_backend(place: Path, source: Path) -> None:
    """GIVEN a file that only root can read WHEN root imports it THEN the unprivileged backend can read the run."""
    source.chmod(0o600)
    nobody = pwd.getpwnam("nobody")
    for state in (place / "new", place / "known"):
        if state.name == "known":
            state.mkdir(mode=0o700)
            os.chown(state, nobody.pw_uid, nobody.pw_gid)
        done = tidegate("import", str(source), "--state-dir", str(state))
        assert done.returncode == 0, done.stderr
        owner = state.stat().st_uid
        assert owner != 0
        for path in (state / "recordings", state / "recordings" / f"{ID}.db"):
            assert (path.stat().st_uid, path.stat().st_gid) == (owner, state.stat().st_gid)
        listed = subprocess.run(
            [sys.executable, "-c", "import os, sqlite3, sys; os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[3]))\n"
             "print(sqlite3.connect(sys.argv[1]).execute('SELECT id FROM runs').fetchall())",
             str(state / "recordings" / f"{ID}.db"), str(state.stat().st_gid), str(owner)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert listed.stdout.strip() == f"[('{ID}',)]", listed.stderr
