"""``tidegate exec``: an explicit call boundary inside a session.

The process registers itself as a call and becomes the command; there is no second process to wait for it.
"""

from __future__ import annotations

import argparse
import os
import signal

from tidegate_collectors import hints
from tidegate_collectors.agent import client
from tidegate_collectors.agent.commands import (
    EXIT_REFUSED,
    CommandError,
    exec_error,
    find_program,
    say,
    strip_separator,
)

_MAX_ARGUMENT_CHARS = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``tidegate exec``."""
    parser.add_argument("--tool", metavar="NAME", help="name of the tool (default: that of the program)")
    parser.add_argument(
        "--hint",
        metavar="HINT",
        help=f"what it will need: memory:low, memory:medium, memory:high, memory:512m (default: ${hints.HINT_ENV})",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="the command of the call")


def main(ns: argparse.Namespace) -> int:
    """Become the command as a call of the session around us; returns only when that fails (125, 126, 127)."""
    command = strip_separator(list(ns.command or []))
    if not command:
        say("exec", "there is no command; write: tidegate exec -- COMMAND [ARGUMENTS]")
        return EXIT_REFUSED
    try:
        program = find_program(command[0])
    except CommandError as error:
        say("exec", error)
        return error.code
    hint = ns.hint or os.environ.get(hints.HINT_ENV)
    if hint and (problem := hints.parse(hint).error):
        say("exec", f"the hint is kept as text: {problem}")
    if ns.hint:
        os.environ[hints.HINT_ENV] = ns.hint
    if client.SESSION_ENV not in os.environ:
        say("exec", "not inside a session (start one with: tidegate run); the command runs unobserved")
    else:
        _register(command, hint, ns.tool)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execv(program, command)  # noqa: S606 - no shell is the point
    except OSError as error:
        failure = exec_error(program, error)
        say("exec", failure)
        return failure.code


def _register(command: list[str], hint: str | None, tool: str | None) -> None:
    """Tell the collector; whatever it answers, the command runs."""
    words, room = [], _MAX_ARGUMENT_CHARS
    for word in command:
        if room <= 0:
            break
        words.append(word[:room])
        room -= len(word) + 1
    try:
        client.request(
            "register_call",
            command=words,
            hint=hint[: hints.MAX_HINT_CHARS] if hint else None,
            tool=tool[:200] if tool else None,
        )
    except (client.NoCollectorError, client.RefusedError) as error:
        say("exec", f"{error}; the command runs without a boundary of its own")
