"""``tidegate hooks``: put our hooks into an agent's settings, show them, take them out."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import Any

from tidegate.errors import BadInputError, UsageError

_DESCRIPTION = """\
Let an agent that has hooks (Claude Code) name its tool calls: each call on the pages then shows the agent's own tool
and id, and tools that start no program (Read, Edit, ...) show at all. The settings file is shown before it is changed,
what else is in it stays, and a copy of the old one is kept beside it. Root acts as whoever owns the directory.
"""

_EPILOG = """\
examples:
  tidegate hooks install                     ~/.claude/settings.json, after asking
  tidegate hooks install --project --yes     .claude/settings.json of this directory
  tidegate hooks uninstall
  tidegate hooks status                      where they are, and whether they reach the collector

The hook never stops the agent: it prints nothing, always succeeds, takes some 20 ms, and gives up after 0.3 s.
It acts only in sessions that `tidegate run` has started.
"""

_ACTIONS = {
    "install": "put the hooks in, after showing what changes",
    "uninstall": "take them out again, after showing what changes",
    "show": "print the hooks as they would be installed; change nothing",
    "status": "say where they are installed and whether a collector listens",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "hooks",
        help="let an agent's hooks name its tool calls",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in _ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name != "show":
            where = action.add_mutually_exclusive_group()
            where.add_argument("--settings", type=Path, metavar="PATH", help="this settings file")
            default = "" if name == "status" else " (the default)"
            where.add_argument("--user", action="store_true", help=f"~/.claude/settings.json{default}")
            where.add_argument("--project", action="store_true", help=".claude/settings.json of this directory")
        if name in ("install", "uninstall"):
            action.add_argument("--yes", action="store_true", help="do not ask")
        if name in ("install", "show"):
            action.add_argument(
                "--failures",
                action="store_true",
                help="also PostToolUseFailure, by which later versions tell the end of a tool that failed; a version "
                "that does not know it refuses its whole settings file",
            )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Do it; returns 0, or 1 when the user says no."""
    from tidegate_collectors.agent import hook_settings

    try:
        if args.action == "show":
            print(hook_settings.render(_wanted(hook_settings, {}, failures=args.failures)), end="")
            return 0
        if args.action == "status":
            return _status(args)
        return _change(args)
    except hook_settings.SettingsError as error:
        raise BadInputError(f"{error}; nothing was changed") from error


def _wanted(module: Any, settings: dict[str, Any], *, failures: bool) -> dict[str, Any]:
    events = (*module.EVENTS, module.FAILURE_EVENT) if failures else module.EVENTS
    wanted: dict[str, Any] = module.with_hooks(settings, module.hook_command(), events)
    return wanted


def _change(args: argparse.Namespace) -> int:
    from tidegate_collectors.agent import hook_settings

    path = _path(args)
    before = hook_settings.read(path)
    settings = hook_settings.parse(before, str(path))
    if args.action == "install":
        wanted = _wanted(hook_settings, settings, failures=args.failures)
    else:
        wanted = hook_settings.without_hooks(settings)
    if wanted == settings:
        print(f"{path}: {'the hooks are there already' if args.action == 'install' else 'there are no hooks of ours'}")
        return 0
    after = hook_settings.render(wanted, before)
    target = Path(os.path.realpath(path))  # what is behind a link is what changes
    print(_printable(hook_settings.difference(before, after, str(target))))
    if not args.yes and not _agrees(target):
        print("nothing was changed")
        return 1
    if hook_settings.read(path) != before:
        raise BadInputError(f"{path} has changed meanwhile; run it once more. Nothing was changed")
    backup = hook_settings.write(path, after)
    print(f"{path}: changed" + (f"; the old one is {backup}" if backup is not None else ""))
    if args.action == "install":
        print("They act in sessions of `tidegate run`, from the agent's next start on.")
    return 0


def _path(args: argparse.Namespace) -> Path:
    if args.settings is not None:
        return Path(args.settings)
    return (Path.cwd() if args.project else Path.home()) / ".claude" / "settings.json"


def _agrees(path: Path) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"standard input is no terminal, so nobody can agree to the change of {path}; add --yes")
    return input(f"Change {path} so? [y/N] ").strip().lower() in ("y", "yes")


def _status(args: argparse.Namespace) -> int:
    from tidegate_collectors import paths
    from tidegate_collectors.agent import hook_settings

    places = [
        Path.home() / ".claude" / "settings.json",
        Path.cwd() / ".claude" / "settings.json",
        Path.cwd() / ".claude" / "settings.local.json",
    ]
    if args.settings is not None or args.user or args.project:
        places = [_path(args)]
    for path in dict.fromkeys(places):
        try:
            found = hook_settings.installed(hook_settings.parse(hook_settings.read(path), str(path)))
        except hook_settings.SettingsError as error:
            print(_printable(f"unreadable   {error}"))
            continue
        events = ", ".join(event for event, _ in found)
        print(_printable(f"{'installed' if found else 'none':<12} {path}{': ' + events if events else ''}"))
        for command in {command for _, command in found if command != hook_settings.hook_command()}:
            print(_printable(f"             of another installation, `tidegate hooks install` replaces it: {command}"))
    path = paths.agent_socket()
    print(f"{_reach(path):<12} collector at {path}")
    if "TIDEGATE_SESSION" not in os.environ:
        print("Here is no session around us; hooks act in what `tidegate run` starts.")
    return 0


def _reach(path: Path) -> str:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1.0)
            sock.connect(str(path))
    except OSError as error:
        return "not allowed" if isinstance(error, PermissionError) else "not there"
    return "listens"


def _printable(text: str) -> str:
    shown = (char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
    return "".join(shown)
