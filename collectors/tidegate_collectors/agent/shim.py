"""Shells of our own, first in an agent's PATH: each registers what it is to run as a call and becomes the real shell.

For agents without hooks that start their tools as ``bash -c COMMAND``. A shell that is named by its path (``/bin/sh``)
is not caught; the kernel sees it all the same, only with the first 512 bytes of its command. What runs afterwards finds
everything as it would be without us: arguments, input, signals, environment, and a PATH without the shims, so that no
shell below them registers once more. Without an answer of the collector the shell runs all the same.

Imports little: it runs before every tool.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

PREFIX = "tidegate-shim-"
SHELLS = ("sh", "bash", "zsh", "dash")
TIMEOUT_S = 0.5
_MAX_WORD_CHARS = 4096
_MAX_COMMAND_CHARS = 8192
_MAX_SHEBANG_BYTES = 250
_HINT_ENV = "AGENT_RESOURCE_HINT"

_SHIM = """\
#!{python} -IS
# Made by `tidegate run --shim`, and removed when it ends.
import sys

sys.path.append({package!r})
from tidegate_collectors.agent import shim

shim.main({name!r}, {directory!r})
"""


def main(name: str, directory: str) -> NoReturn:
    """Become the real shell ``name``; ``directory`` is where this shim lies. Exit code 127 when there is none."""
    environment = _original_environment()
    search = _without(os.environ.get("PATH", os.defpath), directory)
    environment[b"PATH"] = os.fsencode(search)
    command = [name, *sys.argv[1:]]
    _register(command)
    # Python ignores these two; a program that writes to a closed pipe is meant to die of it.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    problem = "command not found"
    for place in (*search.split(":"), "/bin", "/usr/bin"):
        try:
            os.execve(f"{place or '.'}/{name}", command, environment)  # noqa: S606 - no further shell is the point
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error.strerror or problem
    os.write(2, f"{name}: {problem}\n".encode())
    os._exit(127 if problem == "command not found" else 126)


def write_shims(directory: str, search: str) -> str:
    """Make ``directory`` with a shim for each shell that PATH ``search`` has; returns the PATH to use.

    Raises:
        OSError: it cannot be made, or the path of this Python is too long for the first line of a script.
    """
    python = sys.executable
    if " " in python or len(os.fsencode(python)) > _MAX_SHEBANG_BYTES:
        raise OSError(0, f"no script can be started with {python}")
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    os.mkdir(directory, 0o700)  # noqa: PTH102 - pathlib is not imported here
    for name in SHELLS:
        if any(os.access(f"{place or '.'}/{name}", os.X_OK) for place in search.split(":")):
            text = _SHIM.format(python=python, package=package, name=name, directory=directory)
            descriptor = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.fsencode(text))
    return f"{directory}:{search}"


def remove_shims(directory: str) -> None:
    """Remove what :func:`write_shims` made; whatever else is there stays."""
    try:
        for name in SHELLS:
            if os.path.exists(f"{directory}/{name}"):  # noqa: PTH110
                os.unlink(f"{directory}/{name}")  # noqa: PTH108
        os.rmdir(directory)  # noqa: PTH106
    except OSError:
        return


def new_directory() -> str:
    """A name for the directory of a session's shims."""
    return f"{os.environ.get('TMPDIR') or '/tmp'}/{PREFIX}{os.urandom(6).hex()}"  # noqa: S108 - made with mode 0700


def _without(search: str, directory: str) -> str:
    return ":".join(place for place in search.split(":") if place != directory)


def _original_environment() -> dict[bytes, bytes]:
    """As it was before this Python started: in a C locale it sets LC_CTYPE for its children."""
    environment = dict(os.environb)
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
            first = file.read()
    except OSError:
        return environment
    if not any(entry.startswith(b"LC_CTYPE=") for entry in first.split(b"\0")):
        environment.pop(b"LC_CTYPE", None)
    return environment


def _register(command: Iterable[str]) -> None:
    from tidegate_collectors.agent import wire

    if not wire.inside_a_session():
        return
    words: list[str] = []
    room = _MAX_COMMAND_CHARS
    for word in command:
        if room <= 0 or len(words) >= 1024:
            break
        words.append(word[: min(room, _MAX_WORD_CHARS)])
        room -= len(word) + 1
    message: dict[str, object] = {"verb": "register_call", "command": words, "nested": False}
    if hint := os.environ.get(_HINT_ENV):
        message["hint"] = hint[:200]
    wire.tell(message, TIMEOUT_S)
