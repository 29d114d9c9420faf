from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.databases import derived_tables, names_in
from tests.support.scenes import scene_lines
from tidegate.commands import COMMANDS, build_parser, main
from tidegate.errors import BadInputError, NotFoundError, StoreError, TidegateError, UnavailableError, UsageError
from tidegate.ingest.recording import load
from tidegate.store import open_store

HEAVY = ("fastapi", "sqlalchemy", "numpy", "uvicorn", "plotly", "alembic", "aiosqlite", "jinja2", "zstandard")


async def stored(tmp_path: Path) -> Path:
    """A state directory that holds one imported run."""
    (tmp_path / "r.jsonl").write_bytes(b"\n".join(scene_lines()) + b"\n")
    store = await open_store(tmp_path / "state" / "tidegate.db")
    await load(tmp_path / "r.jsonl", store)
    await store.close()
    return tmp_path / "state"


def tidegate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: tidegate {name}" in text
    assert len(text) > 120
    if name not in ("version", "demo"):
        assert "examples:" in text
        assert f"tidegate {name}" in text.split("examples:")[1]


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = capsys.readouterr().out
    assert all(f"    {name} " in text for name in COMMANDS)
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("tidegate 0")


def test_the_summaries_are_those_of_the_commands() -> None:
    for name in COMMANDS:
        if name == "demo":
            continue
        listed = build_parser(name).format_help()
        assert COMMANDS[name] in " ".join(listed.split())


@pytest.mark.parametrize("name", ["run", "exec", "collect", "doctor", "version"])
def test_what_runs_beside_agents_imports_nothing_heavy(name: str) -> None:
    code = (
        "import sys\nfrom tidegate.commands import main\n"
        f"try:\n    main([{name!r}, '--help'])\nexcept SystemExit:\n    pass\n"
        f"print('HEAVY', sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (NotFoundError("x"), 3),
        (BadInputError("x", source="f", line=3, column=4), 4),
        (UnavailableError("x"), 5),
        (StoreError("x"), 6),
        (TidegateError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_of_ours_become_a_message_and_an_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tidegate.commands import version

    def fail(_args: object) -> int:
        raise error

    monkeypatch.setattr(version, "run", fail)
    assert main(["version"]) == code
    assert capsys.readouterr().err == ("" if code == 130 else f"tidegate: {error}\n")


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.commands import version

    def fail(_args: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(version, "run", fail)
    with pytest.raises(ZeroDivisionError):
        main(["version"])


def test_a_wrong_command_line_ends_with_2() -> None:
    for arguments in (["nonsense"], ["serve", "--nonsense"], ["serve", "--port", "x"], ["export", "--ru", "x"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2


async def test_export_writes_what_came_in(tmp_path: Path) -> None:
    state = await stored(tmp_path)
    run = "20261130-2306-ab12"
    listed = tidegate("runs", TIDEGATE_STATE_DIR=str(state))
    assert listed.stdout.decode().split("\t")[0] == run
    piped = tidegate("export", "--run", run, "--state-dir", str(state))
    assert (piped.returncode, piped.stdout) == (0, (tmp_path / "r.jsonl").read_bytes())
    assert tidegate("export", "--run", run, "--state-dir", str(state), "-o", "-").stdout == piped.stdout
    out = tmp_path / "out.jsonl"
    done = tidegate("export", "--run", run, "--session", "s1", "-o", str(out), "--state-dir", str(state))
    assert done.returncode == 0
    assert f"{out}: " in done.stderr.decode()
    sessions = {json.loads(line).get("session") for line in out.read_bytes().splitlines()}
    assert sessions == {"s1", None}
    assert names_in(tmp_path) == {"r.jsonl", "state", "out.jsonl"}


async def test_export_says_what_does_not_exist(tmp_path: Path) -> None:
    state = str(await stored(tmp_path))
    for arguments, code, text in (
        (["--run", "../x"], 3, "no run '../x'"),
        ([], 3, "no live run yet"),
        (["--run", "20261130-2306-ab12", "--session", "../x"], 3, "no session '../x'"),
        (["--run", "20261130-2306-ab12", "-o", "/nowhere/x"], 2, "cannot be written"),
    ):
        done = tidegate("export", *arguments, "--state-dir", state)
        assert (done.returncode, done.stdout) == (code, b"")
        assert text in done.stderr.decode()
        assert b"Traceback" not in done.stderr
    done = tidegate("export", "--state-dir", str(tmp_path / "none"))
    assert done.returncode == 6
    assert b"does not exist" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_a_database_of_somebody_else_is_refused_in_words() -> None:
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory) / "state"
        state.mkdir(mode=0o700)
        (state / "tidegate.db").write_bytes(b"")
        Path(directory).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-m", "tidegate", "runs", "--state-dir", str(state)],
            capture_output=True,
            text=True,
            user=65534,
            group=65534,
            extra_groups=[],
            timeout=60,
        )
    assert done.returncode == 6, done.stderr
    assert "cannot be read by this user" in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    state = await stored(tmp_path)
    lines = scene_lines(sessions=10, ticks=100)
    (tmp_path / "big.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    store = await open_store(state / "tidegate.db")
    await load(tmp_path / "big.jsonl", store, choose_id=lambda _: "big")
    await store.close()
    export = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "tidegate", "export", "--run", "big", "--state-dir", str(state)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert export.stdout is not None
    assert export.stderr is not None
    export.stdout.read(10)
    export.stdout.close()
    errors = export.stderr.read()
    export.stderr.close()
    assert (export.wait(timeout=30), errors) == (141, b"")


async def test_reindex_rebuilds_and_is_refused_while_somebody_writes(tmp_path: Path) -> None:
    state = await stored(tmp_path)
    before = derived_tables(state / "tidegate.db")
    store = await open_store(state / "tidegate.db")
    async with store.begin() as connection:
        await connection.exec_driver_sql("DELETE FROM mem")
        await connection.exec_driver_sql("UPDATE calls SET tool = 'wrong'")
    done = tidegate("reindex", "--state-dir", str(state))
    assert done.returncode == 6
    assert f"process {os.getpid()}" in done.stderr.decode()
    await store.close()
    done = tidegate("reindex", "--state-dir", str(state))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"20261130-2306-ab12: {len(scene_lines())} records\n"
    assert derived_tables(state / "tidegate.db") == before
    assert tidegate("reindex", "--state-dir", str(tmp_path / "none")).returncode == 6
