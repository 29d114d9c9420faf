"""Recognising our own programs by their command lines, while they have not spoken to us yet. Pure.

A program that is recognised is not believed: its call is held back for a moment, and announced like any other unless it
says on the agents' socket who it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

SHIM_PREFIX: Final = "tidegate-shim-"
"""How the name of the directory begins in which the shims of shells lie (see :mod:`tidegate_collectors.agent.shim`)."""

_HOOK_FILE: Final = "tidegate_collectors/agent/hook.py"
_SHELLS: Final = frozenset(["sh", "bash", "dash", "zsh", "ash", "ksh"])
_MAX_SCRIPT_CHARS: Final = 512


def is_exec_wrapper(argv: Sequence[str]) -> bool:
    """Whether this is ``tidegate exec``, however it was started; it says in a moment what it really runs."""
    words = [_base(word) for word in argv[:5]]
    return any(words[at : at + 2] == ["tidegate", "exec"] for at in range(len(words)))


def is_hook(argv: Sequence[str]) -> bool:
    """Whether this is our hook and nothing else: as such, or as the one command of a shell (that execs it)."""
    if len(argv) == 3 and argv[1] == "-c" and _base(argv[0]) in _SHELLS and len(argv[2]) <= _MAX_SCRIPT_CHARS:
        if any(char in argv[2] for char in ";&|<>()`$\n#"):
            return False
        try:
            argv = shlex.split(argv[2])
        except ValueError:  # an open quote
            return False
    if len(argv) == 3 and argv[1] == "-IS":
        return argv[2].endswith(_HOOK_FILE)
    alone = len(argv) == 2 or (len(argv) == 3 and _base(argv[0]).startswith("python"))
    return alone and _base(argv[-2]) == "tidegate" and argv[-1] == "hook"


def shim_at(argv: Sequence[str]) -> int | None:
    """At which word the shim of a shell stands, where this is one: the words from there on are what the agent wrote."""
    for at, word in enumerate(argv[:4]):
        directory, _, name = word.rpartition("/")
        if name in _SHELLS and _base(directory).startswith(SHIM_PREFIX):
            return at
    return None


def without_shim(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line as the agent wrote it."""
    at = shim_at(argv)
    return tuple(argv) if at is None else (_base(argv[at]), *argv[at + 1 :])


def _base(word: str) -> str:
    return word.rpartition("/")[2]
