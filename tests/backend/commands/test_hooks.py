"""``tidegate hooks`` as a program: it shows, asks, changes, and says what it cannot do."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.support.daemon_rig import TIDEGATE, environment_for
from tidegate_collectors.agent.hook_settings import hook_command


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**environment_for(tmp_path), "HOME": str(tmp_path / "home")}


def hooks(env: dict[str, str], *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TIDEGATE, "hooks", *arguments], env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=30,
    )  # fmt: skip


def test_install_and_uninstall_for_the_user(env: dict[str, str], tmp_path: Path) -> None:
    settings = tmp_path / "home" / ".claude" / "settings.json"
    done = hooks(env, "install", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "+" in done.stdout
    assert hook_command() in done.stdout
    assert set(json.loads(settings.read_text())["hooks"]) == {"PreToolUse", "PostToolUse", "Notification", "Stop"}
    again = hooks(env, "install", "--yes")
    assert "there already" in again.stdout
    assert [path.name for path in settings.parent.iterdir()] == ["settings.json"]
    assert "installed    " in hooks(env, "status").stdout
    gone = hooks(env, "uninstall", "--yes")
    assert gone.returncode == 0
    assert json.loads(settings.read_text()) == {}
    assert "no hooks of ours" in hooks(env, "uninstall", "--yes").stdout


def test_a_projects_settings_keep_what_is_in_them(env: dict[str, str], tmp_path: Path) -> None:
    settings = tmp_path / ".claude" / "settings.json"
    settings.parent.mkdir()
    before = '{\n    "permissions": {\n        "allow": [\n            "Bash(ls)"\n        ]\n    }\n}\n'
    settings.write_text(before)
    done = hooks(env, "install", "--project", "--yes", "--failures", cwd=tmp_path)
    assert done.returncode == 0
    removed = {line for line in done.stdout.splitlines() if line.startswith("-") and not line.startswith("---")}
    assert removed <= {"-    }"}, "at most a comma is added to what was there"
    assert "PostToolUseFailure" in json.loads(settings.read_text())["hooks"]
    assert settings.with_name("settings.json.before-tidegate").read_text() == before
    assert hooks(env, "uninstall", "--project", "--yes", cwd=tmp_path).returncode == 0
    assert settings.read_text() == before


def test_status_of_one_settings_file(env: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    assert hooks(env, "install", "--settings", str(other), "--yes").returncode == 0
    shown = hooks(env, "status", "--settings", str(other))
    assert shown.returncode == 0
    assert f"installed    {other}: PreToolUse" in shown.stdout
    assert shown.stdout.count("settings.json") == 0, "the others were not asked for"
    project = hooks(env, "status", "--project", cwd=tmp_path)
    assert f"none         {tmp_path}/.claude/settings.json" in project.stdout
    assert hooks(env, "status", "--project", "--user").returncode == 2


def test_a_link_is_shown_as_the_file_behind_it(env: dict[str, str], tmp_path: Path) -> None:
    behind, link = tmp_path / "dotfiles.json", tmp_path / "settings.json"
    behind.write_text("{}")
    link.symlink_to(behind)
    done = hooks(env, "install", "--settings", str(link), "--yes")
    assert done.stdout.startswith(f"--- {behind}\n")
    assert link.is_symlink()
    assert "Stop" in json.loads(behind.read_text())["hooks"]


def test_without_a_terminal_or_a_yes_nothing_changes(env: dict[str, str], tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    done = hooks(env, "install", "--settings", str(settings))
    assert done.returncode == 2
    assert "add --yes" in done.stderr
    assert hook_command() in done.stdout, "it is shown all the same"
    assert not settings.exists()


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"\n", 1), (b"no\n", 1)])
def test_it_asks_in_a_terminal(env: dict[str, str], tmp_path: Path, answer: bytes, code: int) -> None:
    settings = tmp_path / "settings.json"
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [TIDEGATE, "hooks", "install", "--settings", str(settings)],
            env=env, stdin=theirs, stdout=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            os.write(ours, answer)
            output, _ = child.communicate(timeout=30)
    finally:
        os.close(ours)
        os.close(theirs)
    assert child.returncode == code
    assert "[y/N]" in output
    assert settings.exists() == (code == 0)


def test_settings_that_are_broken_are_left_alone(env: dict[str, str], tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{\n  "a": 1,\n}')
    done = hooks(env, "install", "--settings", str(settings), "--yes")
    assert done.returncode == 4
    assert f"{settings}, line 3, column 1: not JSON" in done.stderr
    assert "nothing was changed" in done.stderr
    assert settings.read_text() == '{\n  "a": 1,\n}'
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


def test_show_and_status_change_nothing(env: dict[str, str], tmp_path: Path) -> None:
    shown = hooks(env, "show")
    assert json.loads(shown.stdout)["hooks"]["Stop"][0]["hooks"][0]["command"] == hook_command()
    project = tmp_path / ".claude" / "settings.json"
    project.parent.mkdir()
    project.write_text(
        '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "/o\\u001b[31m/tidegate hook"}]}]}}'
    )
    status = hooks(env, "status", cwd=tmp_path)
    assert status.returncode == 0
    assert "not there    collector at" in status.stdout
    assert "of another installation" in status.stdout
    assert "\x1b" not in status.stdout
    assert not (tmp_path / "home").exists()


def test_an_action_is_needed(env: dict[str, str]) -> None:
    assert hooks(env).returncode == 2
