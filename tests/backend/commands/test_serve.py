from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import table_rows
from tests.support.foreign_traces import agentcgroup_folder
from tests.support.scenes import scene_lines
from tidegate.commands import _privileges
from tidegate.errors import StoreError, UsageError
from tidegate_collectors.link import Hello, LinkClient
from tidegate_collectors.records import Note

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up root")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that every user can pass through, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="tidegate-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@contextlib.contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real `tidegate serve`, and its base URL; it is told to end, and must end well."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "tidegate", "serve", "--port", "0", "--state-dir", str(directory / "state"),
            "--runtime-dir", str(directory / "run"), *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    assert process.stdout is not None
    try:
        url = None
        for line in process.stdout:
            url = re.search(r"(http://[^/]+)/login\?token=", line)
            if url:
                break
        assert url, "it ended before it was ready"
        yield process, url[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        watchdog.cancel()


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


@root_only
def test_root_binds_and_is_given_up_for_good_and_the_link_works(directory: Path) -> None:
    user = pwd.getpwnam("nobody")
    with serving(directory, "--user", "nobody") as (process, url):
        status = status_of(process.pid)
        assert set(status["Uid"].split()) == {str(user.pw_uid)}
        assert set(status["Gid"].split()) == {str(user.pw_gid)}
        assert status["Groups"].split() == [str(user.pw_gid)]
        assert (int(status["CapEff"], 16), int(status["CapPrm"], 16), status["NoNewPrivs"]) == (0, 0, "1")
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            assert answer.read() == b'{"status":"UP"}'
        link = directory / "run" / "link.sock"
        assert (link.stat().st_uid, link.stat().st_gid, link.stat().st_mode & 0o777) == (0, user.pw_gid, 0o660)
        client = LinkClient(link, Hello(role="kernel", src="k-1"), server_uids=frozenset({0, user.pw_uid}))
        client.start()
        client.send(Note(t=1, text="hello"))
        client.close(10.0)
        assert client.stats.acked_seq == 0
    database = directory / "state" / "tidegate.db"
    assert (database.stat().st_uid, database.stat().st_mode & 0o777) == (user.pw_uid, 0o600)
    (run,) = table_rows(database, "runs")
    assert run[8] == 1  # clean
    # and root's command reads what the unprivileged one wrote
    listed = tidegate("runs", "--state-dir", str(directory / "state"))
    assert "3 records" in listed.stdout


def test_a_recording_is_served_without_a_link(directory: Path) -> None:
    recording = directory / "r.jsonl"
    recording.write_bytes(b"\n".join(scene_lines()) + b"\n")
    with serving(directory, "--replay", str(recording)) as (_, url):
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            assert answer.status == 200
        assert not (directory / "run").exists()
    folder = agentcgroup_folder(directory / "task_1" / "attempt_1").parent
    with serving(directory, "--replay", str(folder)) as (_, url), urllib.request.urlopen(f"{url}/health") as answer:
        assert answer.status == 200


def test_what_is_wrong_is_said_in_words_and_by_the_exit_code(directory: Path) -> None:
    places = ("--state-dir", str(directory / "state"), "--runtime-dir", str(directory / "run"))
    broken = directory / "broken.jsonl"
    broken.write_text("time,cpu,mem\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, code, text in (
            (("--port", port), 2, port),
            (("--port", "99999"), 2, "99999"),
            (("--replay", str(directory / "none.jsonl")), 3, "none.jsonl"),
            (("--port", "0", "--replay", str(broken)), 4, "CSV"),
            (("--user", "no such user"), 2, "no such user" if os.geteuid() == 0 else "only root"),
        ):
            done = tidegate("serve", *places, *arguments)
            assert (done.returncode, "Traceback" in done.stderr) == (code, False)
            assert text in done.stderr


@root_only
def test_a_directory_that_the_user_cannot_read_is_found_by_trying(directory: Path) -> None:
    user = pwd.getpwnam("nobody")
    secret = directory / "secret"
    secret.mkdir(mode=0o700)
    (directory / "open").mkdir()
    closed_file = directory / "closed"
    closed_file.mkdir()
    (closed_file / "a.py").touch(mode=0o600)
    assert _privileges.unreadable_by(user, [directory / "open", secret]) == secret
    assert _privileges.unreadable_by(user, [closed_file]) == closed_file
    assert _privileges.unreadable_by(user, [directory / "open"]) is None
    assert os.geteuid() == 0


@root_only
def test_the_state_directory_is_given_to_the_user_and_links_in_it_are_not_followed(directory: Path) -> None:
    user = pwd.getpwnam("nobody")
    state, victim = directory / "state", directory / "victim"
    victim.write_text("root's")
    _privileges.prepare_state_dir(state, user)
    assert (state.stat().st_uid, state.stat().st_mode & 0o777) == (user.pw_uid, 0o700)
    (state / "tidegate.db").write_text("left by root")
    (state / "tidegate.db-wal").symlink_to(victim)
    with pytest.raises(StoreError):
        _privileges.prepare_state_dir(state, user)
    assert victim.stat().st_uid == 0
    (state / "tidegate.db-wal").unlink()
    _privileges.prepare_state_dir(state, user)
    assert (state / "tidegate.db").stat().st_uid == user.pw_uid
    roots = directory / "roots"
    roots.mkdir(mode=0o755)
    with pytest.raises(StoreError, match="chown nobody"):
        _privileges.prepare_state_dir(roots, user)


def test_the_user_is_chosen_by_name_or_is_an_unprivileged_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_USER", raising=False)
    assert _privileges.choose_user("root").pw_uid == 0
    assert _privileges.choose_user(None).pw_name in ("tidegate", "nobody")
    with pytest.raises(UsageError, match="useradd"):
        _privileges.choose_user("no such user")
