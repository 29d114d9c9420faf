"""Where sockets and state lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate_collectors import paths


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("TIDEGATE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("TIDEGATE_AGENT_SOCKET", raising=False)
    assert paths.runtime_dir() == tmp_path / "run"
    assert paths.state_dir() == tmp_path / "state"
    assert paths.link_socket() == tmp_path / "run" / "link.sock"
    assert paths.agent_socket() == tmp_path / "run" / "agent.sock"
    monkeypatch.setenv("TIDEGATE_AGENT_SOCKET", "/elsewhere.sock")
    assert paths.agent_socket() == Path("/elsewhere.sock")


def test_a_user_has_directories_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TIDEGATE_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert paths.runtime_dir() == tmp_path / "tidegate"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert paths.runtime_dir() == Path("/tmp/tidegate-4321")


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    made = paths.make_private_dir(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o755
    assert paths.make_private_dir(made) == made
    made.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod go-w"):
        paths.make_private_dir(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, -1)
    with pytest.raises(PermissionError, match="uid 65534"):
        paths.make_private_dir(theirs)
    assert paths.make_private_dir(theirs, owners=frozenset({65534})) == theirs


def test_programs_lie_where_the_web_process_may_not_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_STATE_DIR", str(tmp_path))
    assert paths.programs_dir() == tmp_path / "bpf"
    monkeypatch.delenv("TIDEGATE_STATE_DIR")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not paths.programs_dir().is_relative_to(paths.state_dir())
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.programs_dir() == tmp_path / ".cache" / "tidegate"


def test_a_directory_of_our_own_is_ours_alone(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    made = paths.own_dir(tmp_path / "link" / "own")
    assert made == tmp_path / "real" / "own"
    assert made.stat().st_mode & 0o777 == 0o700
    assert paths.own_dir(made) == made
    (made / "link").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is no directory"):
        paths.own_dir(made / "link")
    with pytest.raises(FileNotFoundError):
        paths.own_dir(tmp_path / "none" / "own")
    assert not (tmp_path / "none").exists()
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(PermissionError, match=r"may exchange what lies in .*real; run: chmod go-w"):
        paths.own_dir(made)
    (tmp_path / "real").chmod(0o1777)
    assert paths.own_dir(made) == made
    made.chmod(0o1777)
    with pytest.raises(PermissionError, match="others may write to it"):
        paths.own_dir(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("theirs", ["state", "state/bpf"])
def test_a_directory_that_another_user_could_exchange_is_not_ours(tmp_path: Path, theirs: str) -> None:
    (tmp_path / "state" / "bpf").mkdir(parents=True, mode=0o700)
    os.chown(tmp_path / theirs, 65534, -1)
    with pytest.raises(PermissionError, match="belongs to uid 65534"):
        paths.own_dir(tmp_path / "state" / "bpf")
