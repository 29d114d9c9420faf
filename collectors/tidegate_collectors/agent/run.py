"""``tidegate run``: start an agent, or any command, as a session.

The launcher forks. The child registers itself with the collector, which puts it into its group before a single
instruction of the agent runs, and then becomes the agent. The parent stays to pass on signals and the exit code.
Without a collector the command runs all the same. Where a gateway runs on this machine, the agent's requests are sent
through it, as those of the session.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from typing import Any, NoReturn

from tidegate_collectors import paths
from tidegate_collectors.agent import client, shim
from tidegate_collectors.agent.commands import (
    EXIT_REFUSED,
    CommandError,
    exec_error,
    find_program,
    say,
    strip_separator,
)
from tidegate_collectors.agent.gateway.exporting import gateway_urls
from tidegate_collectors.agent.launchers import agent_name, runtime_depth
from tidegate_collectors.names import check_id, safe_id_part

_PASSED_ON = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGWINCH,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCONT,
    }
)
_WATCHED = _PASSED_ON | {signal.SIGCHLD}
_SI_KERNEL = 0x80
"""Origin of a signal that the terminal sent: it went to the whole foreground group, so the child has it already."""

_ENDED_TIMEOUT_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``tidegate run``."""
    from tidegate_collectors.hints import parse_size

    def size(text: str) -> int:
        try:
            return parse_size(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    parser.add_argument("--session", metavar="ID", help="id of the session (default: made from the agent's name)")
    parser.add_argument("--title", default="", help="a name for people")
    parser.add_argument(
        "--priority", choices=("high", "normal", "low"), default="normal", help="who yields first (default: normal)"
    )
    parser.add_argument("--budget", type=size, metavar="SIZE", help="memory the session may take, for example 2g")
    parser.add_argument(
        "--shim",
        action="store_true",
        help="put shells of our own first in PATH, which register what they run: for agents that start their tools by "
        "a shell's name and have no hooks",
    )
    parser.add_argument(
        "--gateway",
        metavar="URL|none",
        help="send the agent's requests to the engine through this gateway, or through none (default: the one that "
        "runs on this machine, for addresses that are not set to something else)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="the agent to start")


def main(ns: argparse.Namespace) -> int:
    """Run the command as a session; returns its exit code (128 + n when signal n ended it).

    Own failures: 125 the collector refused or the arguments are wrong, 126 not executable, 127 not found.
    """
    command = strip_separator(list(ns.command or []))
    if not command:
        say("run", "there is no command; write: tidegate run -- COMMAND [ARGUMENTS]")
        return EXIT_REFUSED
    try:
        session = check_id("session", ns.session) if ns.session else new_session_id(command)
        program = find_program(command[0])
        urls, said = gateway_urls(ns.gateway, session, os.environ)
    except ValueError as error:
        say("run", error)
        return EXIT_REFUSED
    except CommandError as error:
        say("run", error)
        return error.code
    fields = {
        "session": session,
        "title": (ns.title or "")[:200],
        "priority": ns.priority or "normal",
        "agent": agent_name(command)[:200],
        "runtime_depth": runtime_depth(command),
        "budget_bytes": ns.budget,
    }
    if said:
        say("run", said)
    shims = _shims() if ns.shim else None
    sys.stdout.flush()
    sys.stderr.flush()
    # Whoever ignores it has the kernel throw exit statuses away; the command gets it back as it was.
    on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(read_end)
        signal.signal(signal.SIGCHLD, on_child)
        _become(program, command, fields, write_end, before, shims, urls)
    os.close(write_end)
    try:
        status = _wait(child)
    finally:
        if shims is not None:
            shim.remove_shims(shims[0])
        # What came for the child and found it gone must not strike us now: our part is to tell its exit code.
        while signal.sigtimedwait(_WATCHED, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, on_child)
    registered = os.read(read_end, 1) == b"r"
    os.close(read_end)
    if registered:
        _report(session, status)
    return exit_code(status)


def _shims() -> tuple[str, str] | None:
    """The directory of the shims, and the PATH that has it first; None when they cannot be made, which is said."""
    directory = shim.new_directory()
    try:
        return directory, shim.write_shims(directory, os.environ.get("PATH", os.defpath))
    except OSError as error:
        shim.remove_shims(directory)
        say("run", f"no shims of shells: {error.strerror or error}; the command runs without them")
        return None


def new_session_id(command: list[str]) -> str:
    """``<agent>-<hhmmss>-<4 hex digits>``."""
    return f"{safe_id_part(agent_name(command))}-{time.strftime('%H%M%S')}-{os.urandom(2).hex()}"


def exit_code(status: int) -> int:
    """The exit code that a shell gives for a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(
    program: str, command: list[str], fields: dict[str, Any], pipe: int, mask: set[int],
    shims: tuple[str, str] | None, urls: dict[str, str],
) -> NoReturn:  # fmt: skip
    """In the child: register, then become the command. Never returns into the parent's code."""
    code = EXIT_REFUSED
    try:
        try:
            client.request("register_session", **fields)
        except client.NoCollectorError as error:
            say("run", f"{error}; the command runs unobserved")
        except client.RefusedError as error:
            say("run", error)
            os._exit(EXIT_REFUSED)
        else:
            os.write(pipe, b"r")
            os.environ[client.SESSION_ENV] = str(fields["session"])
            os.environ[paths.AGENT_SOCKET_ENV] = str(paths.agent_socket())
            if shims is not None:
                os.environ["PATH"] = shims[1]
        if urls:
            os.environ[client.SESSION_ENV] = str(fields["session"])
            os.environ.update(urls)
        # Python ignores these two; a program that writes to a closed pipe is meant to die of it.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # in the background of a script it stays ignored
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            os.execv(program, command)  # noqa: S606 - no shell is the point
        except OSError as error:
            failure = exec_error(program, error)
            say("run", failure)
            code = failure.code
    finally:
        os._exit(code)


def _wait(child: int) -> int:
    """Wait for the child, passing signals on; returns its wait status."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return status
        info = signal.sigwaitinfo(_WATCHED)
        if info.si_signo in _PASSED_ON and info.si_code != _SI_KERNEL:
            os.kill(child, info.si_signo)  # not reaped yet, so the number is still the child's


def _report(session: str, status: int) -> None:
    """Tell the collector how the session ended; it may have no other way to know."""
    code = os.waitstatus_to_exitcode(status)
    ended: dict[str, int] = {"exit_code": code} if code >= 0 else {"signal": -code}
    # It may have gone away meanwhile, or have known before us.
    with contextlib.suppress(client.NoCollectorError, client.RefusedError):
        client.request("ended", timeout_s=_ENDED_TIMEOUT_S, session=session, **ended)
