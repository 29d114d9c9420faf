"""Starts the demo's agents under ``tidegate run``, waits for them, and removes what they made."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.demo.agent import stop_on_signal
from tidegate.demo.scripts import ROLES, compile_command
from tidegate.demo.workshop import MIB
from tidegate.errors import UnavailableError
from tidegate_collectors import paths

BURST_BYTES = 400 * MIB
"""Memory that one tool of an agent takes at most."""

_STAGGER_S = 1.5
_COLLECTOR_WAIT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the demo shall be. ``rounds`` wins over ``minutes``; ``pace`` is a factor on the agents' pauses.

    An agent ends its round before it looks at the time, so ``minutes`` is exceeded by some seconds.
    """

    agents: int = 3
    rounds: int | None = None
    minutes: float = 1.2
    seed: int = 1
    pace: float = 1.0


def run(options: Options) -> int:
    """Play the demo. Returns 0 when every agent ended with exit code 0, else 1.

    Raises:
        UnavailableError: no collector answers on the agents' socket.
    """
    wait_for_collector(paths.agent_socket())
    burst_bytes = bursts(options)
    runner = "pytest" if shutil.which("pytest", path=str(Path(sys.executable).parent)) else "unittest"
    compiler = " ".join(compile_command() or ["python -m compileall (no C compiler here)"])
    print(f"{options.agents} agents; tests by {runner}, compiling by {compiler}, bursts of {burst_bytes // MIB} MB")
    with temporary_directory() as work:
        commands = [
            agent_command(options, number, work, burst_bytes, "tidegate.demo.agent") for number in range(options.agents)
        ]
        code = play(commands, _STAGGER_S * options.pace)
    if code != 130:
        print(f"all {options.agents} agents have ended; their files are removed")
    return code


def bursts(options: Options) -> int:
    """Bytes that one tool may take, so that all agents together do not exhaust this host."""
    return min(BURST_BYTES, _available_bytes() // (3 * options.agents))


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory of the demo's; SIGTERM ends what is done in it, and it is removed whatever happens."""
    previous = signal.signal(signal.SIGTERM, stop_on_signal)
    work = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        signal.signal(signal.SIGTERM, previous)


def play(commands: Sequence[Sequence[str]], stagger_s: float) -> int:
    """Start the agents one after another and wait for them all; whatever happens, none is left.

    Returns 0 when every one ended with exit code 0, 130 when Ctrl-C ended them, else 1.
    """
    agents: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            if number:
                time.sleep(stagger_s)
            agents.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        codes = [agent.wait() for agent in agents]
    except KeyboardInterrupt:
        return 130
    finally:
        _end(agents)
    return 0 if not any(codes) else 1


def agent_command(
    options: Options, number: int, work: Path, burst_bytes: int, module: str, *, run: Sequence[str] = (),
    more: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """The command line of an agent under ``tidegate run``.

    Args:
        options: of the demo.
        number: of the agent, from 0.
        work: directory of the demo.
        burst_bytes: that one tool may take.
        module: the agent's program.
        run: further options of ``tidegate run``.
        more: further options of the program.
    """
    name = list(ROLES)[number % len(ROLES)]
    role = ROLES[name]
    if options.rounds is not None:
        length = ["--rounds", str(options.rounds)]
    else:
        length = ["--seconds", str(options.minutes * 60)]
    return [
        *(sys.executable, "-m", "tidegate", "run"),
        *("--session", f"demo-{name}-{secrets.token_hex(3)}", "--priority", role.priority, "--title", role.title),
        *run,
        *("--", sys.executable, "-m", module),
        *("--role", name, "--work", str(work / f"{name}-{number}")),
        *("--seed", str(options.seed * 1000 + number), "--pace", str(options.pace)),
        *("--burst-mb", str(burst_bytes // MIB), *length, *more),
    ]


def _end(agents: list[subprocess.Popen[bytes]]) -> None:
    """Ask those that still run to end, and end those that do not."""
    running = [agent for agent in agents if agent.poll() is None]
    for agent in running:
        agent.terminate()
    deadline = time.monotonic() + 5
    for agent in running:
        try:
            agent.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()


def wait_for_collector(path: Path) -> None:
    """The collector may have been started a moment ago, so it gets some seconds to open its socket.

    Raises:
        UnavailableError: none answers.
    """
    deadline = time.monotonic() + _COLLECTOR_WAIT_S
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError as error:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"no collector answers at {path} ({error.strerror}); start one with ./start_backend.sh"
                    ) from None
            else:
                return
        time.sleep(0.1)


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return BURST_BYTES
