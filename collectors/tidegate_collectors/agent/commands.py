"""Finding the program that a launcher shall run, and the exit codes that shells use for what went wrong."""

from __future__ import annotations

import os
import stat
import sys

EXIT_REFUSED = 125
"""The launcher itself failed, the command did not run."""
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class CommandError(Exception):
    """The command cannot be run. ``code`` is the exit code that a shell would give."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def strip_separator(command: list[str]) -> list[str]:
    """The words after an optional leading ``--``."""
    return command[1:] if command[:1] == ["--"] else command


def find_program(name: str, path: str | None = None) -> str:
    """The file that ``exec`` would run for ``name``; ``path`` defaults to ``$PATH``.

    Raises:
        CommandError: there is none (127), or it is not executable (126).
    """
    if "/" in name:
        candidates = [name]
    else:
        search = os.environ.get("PATH", os.defpath) if path is None else path
        candidates = [f"{directory or '.'}/{name}" for directory in search.split(":")] if name else []
    refused = ""
    for candidate in candidates:
        try:
            regular = stat.S_ISREG(os.stat(candidate).st_mode)  # noqa: PTH116 - pathlib is not imported here
        except OSError:
            continue
        if regular and os.access(candidate, os.X_OK):
            return candidate
        if regular or "/" in name:  # a directory that lies on the path is passed over, as shells do
            refused = refused or candidate
    if refused:
        raise CommandError(f"{refused}: not executable", EXIT_NOT_EXECUTABLE)
    raise CommandError(f"{name}: command not found", EXIT_NOT_FOUND)


def exec_error(program: str, error: OSError) -> CommandError:
    """What a failed ``exec`` of an existing file means."""
    code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE
    return CommandError(f"{program}: {error.strerror}", code)


def say(command: str, text: object) -> None:
    """One line for people on standard error."""
    print(f"tidegate {command}: {text}", file=sys.stderr, flush=True)
