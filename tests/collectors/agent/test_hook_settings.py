"""Our hooks go into the settings of an agent and out again, and nothing else changes."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.bpf import needs_root
from tidegate_collectors.agent import hook_settings as module
from tidegate_collectors.agent.hook_settings import SettingsError

COMMAND = module.hook_command()
OTHER = {"matcher": "Edit|Write", "hooks": [{"type": "command", "command": "prettier --write"}]}
OLD = {"matcher": "", "hooks": [{"type": "command", "command": "/old/venv/bin/tidegate hook"}]}


def test_they_are_added_to_what_is_there() -> None:
    before: dict[str, Any] = {"model": "opus", "hooks": {"PreToolUse": [OTHER], "PreCompact": [OTHER]}, "env": {}}
    after = module.with_hooks(before, COMMAND)
    assert list(after) == ["model", "hooks", "env"]
    assert after["hooks"]["PreToolUse"][0] == OTHER
    assert after["hooks"]["PreToolUse"][1] == {
        "matcher": "", "hooks": [{"type": "command", "command": COMMAND, "timeout": module.TIMEOUT_S}],
    }  # fmt: skip
    assert module.installed(after) == [(event, COMMAND) for event in ("PreToolUse", *module.EVENTS[1:])]
    assert before["hooks"] == {"PreToolUse": [OTHER], "PreCompact": [OTHER]}, "the given settings are not touched"
    assert module.with_hooks(after, COMMAND) is after
    assert module.without_hooks(after) == before


def test_only_events_that_every_version_knows_unless_asked() -> None:
    """One unknown event makes an agent refuse its whole settings."""
    assert set(module.with_hooks({}, COMMAND)["hooks"]) == {"PreToolUse", "PostToolUse", "Notification", "Stop"}
    more = module.with_hooks({}, COMMAND, (*module.EVENTS, module.FAILURE_EVENT))
    assert "PostToolUseFailure" in more["hooks"]
    assert "PostToolUseFailure" not in module.with_hooks(more, COMMAND)["hooks"]


def test_another_installation_is_replaced() -> None:
    mixed = {**OTHER, "hooks": [*OLD["hooks"], *OTHER["hooks"]]}
    before: dict[str, Any] = {"hooks": {"PreToolUse": [OLD, mixed], "SessionStart": [OLD]}}
    after = module.with_hooks(before, COMMAND)
    assert {command for _, command in module.installed(after)} == {COMMAND}
    assert after["hooks"]["PreToolUse"][0] == OTHER
    assert "SessionStart" not in after["hooks"]


ENTRY = st.fixed_dictionaries({"type": st.just("command"), "command": st.sampled_from(["a", "b c", COMMAND, ""])})
GROUP = st.fixed_dictionaries({"hooks": st.lists(ENTRY, max_size=3)}, optional={"matcher": st.text(max_size=5)})
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "hooks": st.dictionaries(st.sampled_from([*module.EVENTS, "PreCompact"]), st.lists(GROUP, max_size=3)),
        "env": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    },
)


def foreign(settings_: dict[str, Any]) -> list[Any]:
    """Every hook that is not ours, with where it is."""
    return [
        (event, group.get("matcher"), entry)
        for event, groups in settings_.get("hooks", {}).items()
        for group in groups
        for entry in group["hooks"]
        if entry["command"] != COMMAND
    ]


@settings(max_examples=150, deadline=None)
@given(SETTINGS)
def test_in_and_out_keeps_all_that_is_not_ours(before: dict[str, Any]) -> None:
    after = module.with_hooks(before, COMMAND)
    assert sorted(module.installed(after)) == sorted((event, COMMAND) for event in module.EVENTS)
    assert foreign(after) == foreign(before) == foreign(module.without_hooks(after))
    assert after.get("env") == before.get("env")
    assert module.with_hooks(after, COMMAND) == after
    assert module.installed(module.without_hooks(after)) == []
    assert module.parse(module.render(after), "x") == after


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1,\n  }', r"s\.json, line 2, column 3: not JSON"),
        ("// comment\n{}", "line 1, column 1"),
        ("[]", "no object at its top"),
        ('{"hooks": []}', "hooks is no object"),
        ('{"hooks": {"Stop": {}}}', r"hooks\.Stop is no list"),
        ('{"hooks": {"Stop": [7]}}', r"hooks\.Stop\[0\] is no object"),
        ('{"hooks": {"Stop": [{"hooks": 7}]}}', r"hooks\.Stop\[0\]"),
        ('{"env": {"A": "1", "A": "2"}}', "'A' is there twice"),
        ("[" * 100_000, "nested too deep"),
        ('{"a": ' + "1" * 5000 + "}", "4300 digits"),
        ('{"a": 1e999}', "1e999 is no number"),
        ('{"a": NaN}', "NaN is no number"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place(text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        module.parse(text, "s.json")


def test_a_key_that_is_there_twice_is_found_at_once() -> None:
    text = "{" + ",".join(f'"{number}":0' for number in (*range(200_000), 199_999)) + "}"
    began = time.process_time()
    with pytest.raises(SettingsError, match="'199999' is there twice"):
        module.parse(text, "s.json")
    assert time.process_time() - began < 10, "comparing each with each takes minutes"


def test_half_characters_are_written_as_they_stood(tmp_path: Path) -> None:
    before = '{\n  "env": {\n    "A": "\\ud800é"\n  }\n}\n'
    after = module.render(module.parse(before, "x"), before)
    module.write(tmp_path / "settings.json", after)
    assert module.read(tmp_path / "settings.json") == before


def test_the_text_keeps_its_indentation() -> None:
    before = '{\n\t"env": {\n\t\t"A": "é"\n\t}\n}'
    settings_ = module.parse(before, "x")
    assert module.render(settings_, before) == before
    assert module.render({}, "") == "{}\n"
    after = module.render(module.with_hooks(settings_, COMMAND), before)
    assert module.render(module.without_hooks(module.parse(after, "x")), after) == before


def test_writing_keeps_a_copy_the_mode_and_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "settings.json"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o640)
    link = tmp_path / "settings.json"
    link.symlink_to(real)
    backup = module.write(link, "new")
    assert backup == real.with_name("settings.json.before-tidegate")
    assert link.is_symlink()
    assert (real.read_text(), backup.read_text()) == ("new", "old")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (real, backup)} == {0o640}
    assert module.write(link, "newer") == real.with_name("settings.json.before-tidegate-1")
    assert backup.read_text() == "old"
    assert sorted(path.name for path in real.parent.iterdir()) == [
        "settings.json", "settings.json.before-tidegate", "settings.json.before-tidegate-1",
    ]  # fmt: skip


def test_a_new_file_and_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    assert module.write(tmp_path / ".claude" / "settings.json", "x") is None
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be written"):
        module.write(tmp_path / "file" / "settings.json", "x")
    with pytest.raises(SettingsError, match="not UTF-8 at byte 1"):
        (tmp_path / "bad").write_bytes(b"{\xff")
        module.read(tmp_path / "bad")
    assert module.read(tmp_path / "absent") == ""
    assert not list(tmp_path.rglob(".tidegate-*"))


def test_our_command_is_known_as_ours_and_others_are_not() -> None:
    assert module.is_ours(COMMAND)
    assert module.is_ours("'/my venv/bin/tidegate' hook")
    for other in (
        f"my-logger && {COMMAND}",
        f"{COMMAND} && my-logger",
        "cat /x/tidegate_collectors/agent/hook.py",
        "tidegate hooks status",
        "echo tidegate hook",
        "prettier",
        "'",
        "",
        None,
        7,
    ):
        assert not module.is_ours(other), other
    assert json.loads(json.dumps(COMMAND)) == COMMAND


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    """A repository can hold a link to a file without end."""
    (tmp_path / "endless").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    for name in ("endless", "pipe"):
        with pytest.raises(SettingsError, match="not a plain file"):
            module.read(tmp_path / name)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(module.MAX_FILE_BYTES + 1)
    with pytest.raises(SettingsError, match="at most"):
        module.read(tmp_path / "large")


@needs_root
def test_root_acts_as_whoever_owns_the_directory() -> None:
    """GIVEN a directory of somebody else WHEN root writes there THEN the files are theirs, and a link shows nothing."""
    nobody = 65534
    root = Path(tempfile.mkdtemp())  # not below pytest's own, into which only root may look
    try:
        secret, home = root / "secret", root / "home"
        secret.write_text('{"password": 1}')
        secret.chmod(0o600)
        home.mkdir()
        for folder, owner in ((root, 0), (home, nobody)):
            folder.chmod(0o755)
            os.chown(folder, owner, owner)
        settings_path = home / ".claude" / "settings.json"
        assert module.write(settings_path, "1") is None
        backup = module.write(settings_path, "2")
        assert backup is not None
        for path in (settings_path.parent, settings_path, backup):
            assert (path.stat().st_uid, path.stat().st_gid) == (nobody, nobody), path
        settings_path.unlink()
        settings_path.symlink_to(secret)
        with pytest.raises(SettingsError, match="Permission denied"):
            module.read(settings_path)
        with pytest.raises(SettingsError, match="Permission denied"):
            module.write(settings_path, "3")
        assert secret.read_text() == '{"password": 1}'
        assert (os.geteuid(), os.getegid(), os.getuid()) == (0, 0, 0)
    finally:
        shutil.rmtree(root)
