"""Our hooks in an agent's ``settings.json``: what they are, putting them in, taking them out.

The file is Claude Code's: ``{"hooks": {EVENT: [{"matcher": "", "hooks": [{"type": "command", "command": ...}]}]}}``. It
belongs to its user: whatever else is in it stays as it is. A version of the agent that does not know an event refuses
the whole file, so by default only events are used that all versions with hooks know.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import os
import re
import shlex
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

EVENTS: Final = ("PreToolUse", "PostToolUse", "Notification", "Stop")
"""Known to all versions with hooks."""

FAILURE_EVENT: Final = "PostToolUseFailure"
"""Later versions tell the end of a tool that failed by it, older ones not at all."""

_ABOUT_TOOLS: Final = ("PreToolUse", "PostToolUse", FAILURE_EVENT)
_HOOK_FILE: Final = "/tidegate_collectors/agent/hook.py"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
TIMEOUT_S: Final = 5
MAX_FILE_BYTES: Final = 4 << 20


class SettingsError(Exception):
    """The settings cannot be used; the message names the file, and the place in it where that is known."""


def hook_command() -> str:
    """The command of our hook, for this Python and this installation."""
    path = Path(__file__).with_name("hook.py")
    return f"{shlex.quote(sys.executable)} -IS {shlex.quote(str(path))}"


def is_ours(command: object) -> bool:
    """Whether a command in the settings is our hook and nothing else, of this installation or of another one."""
    if not isinstance(command, str):
        return False
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    if len(words) == 3:
        return words[1] == "-IS" and words[2].endswith(_HOOK_FILE)
    return len(words) == 2 and words[0].rpartition("/")[2] == "tidegate" and words[1] == "hook"


def parse(text: str, place: str) -> dict[str, Any]:
    """The settings in ``text``; nothing is an empty file.

    Raises:
        SettingsError: it is no JSON object, or its hooks are not of the known shape; ``place`` is named.
    """
    if not text.strip():
        return {}
    try:
        settings = json.loads(text, object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{place}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise SettingsError(f"{place}: nested too deep") from None
    except ValueError as error:
        raise SettingsError(f"{place}: {error}") from None
    if not isinstance(settings, dict):
        raise SettingsError(f"{place}: holds no object at its top")
    for event, groups in _hooks(settings, place).items():
        if not isinstance(groups, list):
            raise SettingsError(f"{place}: hooks.{event} is no list")
        for number, group in enumerate(groups):
            if not isinstance(group, dict) or not isinstance(group.get("hooks", []), list):
                raise SettingsError(f"{place}: hooks.{event}[{number}] is no object with a list of hooks")
    return settings


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; writing the file again would lose a key that is there twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name[:80]!r} is there twice in one object")
        found[name] = value
    return found


def _finite(text: str) -> float:
    """A number that can be written again; JSON has no infinite ones."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:80]} is no number that JSON can hold")
    return value


def _hooks(settings: dict[str, Any], place: str) -> dict[str, Any]:
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise SettingsError(f"{place}: hooks is no object")
    return hooks


def with_hooks(settings: dict[str, Any], command: str, events: tuple[str, ...] = EVENTS) -> dict[str, Any]:
    """The settings with our hook for these events, once; ours of another installation are replaced."""
    changed = without_hooks(settings)
    hooks = dict(changed.get("hooks", {}))
    for event in events:
        entry: dict[str, Any] = {"matcher": ""} if event in _ABOUT_TOOLS else {}
        entry["hooks"] = [{"type": "command", "command": command, "timeout": TIMEOUT_S}]
        hooks[event] = [*hooks.get(event, []), entry]
    changed["hooks"] = hooks
    # What is there already, in its place and as it was written, is not moved for nothing.
    return settings if _has_exactly(settings, command, events) else changed


def without_hooks(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without our hooks; events and groups that had only those go too."""
    if "hooks" not in settings:
        return dict(settings)
    kept: dict[str, Any] = {}
    for event, groups in settings["hooks"].items():
        left = [group for group in map(_without_ours, groups) if group is not None]
        if left or not groups:
            kept[event] = left
    changed = {name: value for name, value in settings.items() if name != "hooks"}
    if kept or not settings["hooks"]:  # in its old place
        changed = {name: kept if name == "hooks" else value for name, value in settings.items()}
    return changed


def _without_ours(group: dict[str, Any]) -> dict[str, Any] | None:
    entries = group.get("hooks", [])
    left = [entry for entry in entries if not (isinstance(entry, dict) and is_ours(entry.get("command")))]
    if len(left) == len(entries):
        return group
    return {**group, "hooks": left} if left else None


def installed(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Our hooks in these settings, as ``(event, command)``."""
    return [
        (event, str(entry["command"]))
        for event, groups in settings.get("hooks", {}).items()
        for group in groups
        for entry in group.get("hooks", [])
        if isinstance(entry, dict) and is_ours(entry.get("command"))
    ]


def _has_exactly(settings: dict[str, Any], command: str, events: tuple[str, ...]) -> bool:
    return sorted(installed(settings)) == sorted((event, command) for event in events)


def render(settings: dict[str, Any], like: str = "") -> str:
    """The text of a settings file, indented as ``like`` is, or as the agent itself writes it."""
    indents = [line[: len(line) - len(line.lstrip(" \t"))] for line in like.splitlines()]
    indent = next((found for found in indents if found), "  ")
    end = "" if like.strip() and not like.endswith("\n") else "\n"
    text = json.dumps(settings, indent=indent, ensure_ascii=False) + end
    # Half a character can stand in a file as an escape only; it is within a string here, as all that is not ASCII.
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def difference(before: str, after: str, place: str) -> str:
    """What would change, line by line; empty when nothing does."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), place, f"{place} (new)", lineterm="")
    return "\n".join(lines)


def read(path: Path) -> str:
    """The text of a settings file; empty when there is none.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        with _as_owner(path):
            data = _content(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise SettingsError(f"{path}: settings have at most {MAX_FILE_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 at byte {error.start}") from None


def write(path: Path, text: str) -> Path | None:
    """Put ``text`` in place of the file in one step; who owns it and may read it stays.

    Returns:
        the copy of the old file, beside it; None when there was none.

    Raises:
        SettingsError: it cannot be written; then nothing has changed.
    """
    try:
        with _as_owner(path):
            return _replace(Path(os.path.realpath(path)), text)  # dotfiles are often links into another directory
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror or error}") from None


def _content(path: Path) -> bytes:
    """The file's bytes, no more than one over what is allowed. What is no plain file is not waited for."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "not a plain file")
        return file.read(MAX_FILE_BYTES + 1)


@contextlib.contextmanager
def _as_owner(path: Path) -> Iterator[None]:
    """As root, act as whoever owns the directory: between any two steps they may put a link to anything into it."""
    places = [parent.lstat() for parent in reversed(path.absolute().parents) if os.path.lexists(parent)]
    owner = next((place for place in places if place.st_uid != 0), None)  # the topmost: whoever can exchange the rest
    if os.geteuid() != 0 or owner is None:
        yield
        return
    groups = os.getgroups()
    try:
        os.setgroups([owner.st_gid])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def _replace(target: Path, text: str) -> Path | None:
    target.parent.mkdir(parents=True, exist_ok=True)
    status = target.stat() if target.exists() else None
    backup = _back_up(target, status) if status is not None else None
    with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=".tidegate-", delete=False) as file:
        try:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
            if status is not None:
                _like(file.fileno(), status)
            Path(file.name).replace(target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    return backup


def _back_up(target: Path, status: os.stat_result) -> Path:
    """A copy beside the file under a name that is free."""
    content = _content(target)
    for number in range(1000):
        backup = target.with_name(f"{target.name}.before-tidegate{f'-{number}' if number else ''}")
        try:
            descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            _like(file.fileno(), status)
        return backup
    raise OSError(0, "there are a thousand backups already")


def _like(descriptor: int, status: os.stat_result) -> None:
    """Give a file the owner and mode of another one."""
    if os.geteuid() == 0:
        os.fchown(descriptor, status.st_uid, status.st_gid)
    os.fchmod(descriptor, status.st_mode & 0o777)
