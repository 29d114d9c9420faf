"""One scripted agent: a program that thinks (sleeps) and calls real tools, one after another or several at once.

Run as ``python -m tidegate.demo.agent --role ROLE --work DIR``, normally by :mod:`.conductor` under ``tidegate run``.
It needs no Tidegate around it: it starts its tools as any agent does, as child processes.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from tidegate.demo import scripts
from tidegate.demo.workshop import MIB, write_tools

SERVER_SECONDS = 180
"""A server that was left behind ends by itself after this long."""

_CONTEXT_START_BYTES = 48 * MIB
_CONTEXT_STEP_BYTES = MIB


class Agent:
    """What an agent can do: think, call a tool, call several at once, leave a process behind.

    Args:
        role: name used in the progress lines.
        work: empty directory of this agent, made by the caller; everything that it writes is in there.
        seed: of all choices, so that two demos with one seed do the same.
        pace: factor on the pauses; 1 is a demo to look at, 0 is for tests.
        burst_bytes: memory that one tool may take.
    """

    def __init__(self, role: str, work: Path, *, seed: int, pace: float, burst_bytes: int) -> None:
        self.role = role
        self.work = work
        self.rng = random.Random(seed)  # noqa: S311 - a script's choices, no secret
        self.pace = pace
        self.burst_mb = max(16, burst_bytes // MIB)
        self.python = sys.executable
        self.calls = 0
        self.started_s = time.monotonic()
        self._running: list[subprocess.Popen[bytes]] = []
        self._left_behind: list[int] = []
        # The runtime's own memory: what an agent framework and its conversation take, growing a little at each turn.
        self._context = [b"\x2e" * _CONTEXT_START_BYTES]
        home = work / "home"
        home.mkdir(parents=True)
        self.tools = work / "tools"
        write_tools(self.tools)
        # Nothing of the user's: no git identity or hooks, no site configuration.
        self.environment = os.environ | {
            "HOME": str(home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_AUTHOR_NAME": "Demo Agent",
            "GIT_AUTHOR_EMAIL": "demo@localhost",
            "GIT_COMMITTER_NAME": "Demo Agent",
            "GIT_COMMITTER_EMAIL": "demo@localhost",
            "GIT_TERMINAL_PROMPT": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            # The suites are plain; the plugins of somebody's environment would only make them slow.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "DEMO_FIXTURE_MB": str(self.burst_mb // 2),
        }

    def think(self, at_least_s: float = 0.3, at_most_s: float = 1.1) -> None:
        """The pause of a turn, in which the model would answer; the conversation grows by it."""
        self._context.append(b"\x2e" * _CONTEXT_STEP_BYTES)
        time.sleep(self.rng.uniform(at_least_s, at_most_s) * self.pace)

    def call(
        self, *command: str, cwd: Path | None = None, hint: str | None = None, output: IO[bytes] | None = None
    ) -> int:
        """One tool call, waited for. Returns its exit code, negative for a signal."""
        return self.together([command], cwd=cwd, hint=hint, output=output)[0]

    def together(
        self,
        commands: Sequence[Sequence[str]],
        *,
        cwd: Path | None = None,
        hint: str | None = None,
        stagger_s: float = 0.15,
        output: IO[bytes] | None = None,
    ) -> list[int]:
        """Several tool calls that overlap. Returns the exit codes.

        ``hint`` is their ``AGENT_RESOURCE_HINT``; ``output`` an open file for what they print.
        """
        environment = self.environment | ({"AGENT_RESOURCE_HINT": hint} if hint else {})
        started: list[tuple[Sequence[str], subprocess.Popen[bytes], float]] = []
        for number, command in enumerate(commands):
            if number:
                time.sleep(stagger_s * self.pace)
            process = subprocess.Popen(
                list(command),
                cwd=cwd or self.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if output is None else output,
                stderr=subprocess.DEVNULL if output is None else output,
            )
            self._running.append(process)
            started.append((command, process, time.monotonic()))
        # In the order in which they end, so that each is reported with its own duration.
        waiting = {os.pidfd_open(process.pid): entry for entry in started for process in [entry[1]]}
        poll = select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        while waiting:
            for descriptor, _ in poll.poll():
                command, process, since = waiting.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                code = process.wait()
                self._running.remove(process)
                self.calls += 1
                self._report(command, code, time.monotonic() - since)
        return [process.returncode for _, process, _ in started]

    def leave_behind(self) -> int:
        """A call whose child outlives it: a shell that starts a server in the background and returns.

        Returns the pid of the server; :meth:`close` ends it.
        """
        server, note = self.tools / "server.py", self.work / "server.pid"
        script = '"$0" "$1" "$2" >/dev/null 2>&1 & echo $! >"$3"'
        self.call("sh", "-c", script, self.python, str(server), str(SERVER_SECONDS), str(note))
        pid = int(note.read_text(encoding="ascii"))
        self._left_behind.append(pid)
        return pid

    def close(self) -> None:
        """End the processes that this agent started and that still run, and only those."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running.clear()
        for pid in self._left_behind:
            if self._is_our_server(pid):
                os.kill(pid, signal.SIGTERM)
        self._left_behind.clear()

    def _is_our_server(self, pid: int) -> bool:
        # A pid may be somebody else's by now; the path of our own temp dir in its command line is not.
        try:
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return os.fsencode(self.tools / "server.py") in command_line.split(b"\0")

    def _report(self, command: Sequence[str], code: int, seconds: float) -> None:
        words = " ".join(Path(word).name if word.startswith("/") else word for word in command)
        text = words if len(words) <= 60 else words[:59] + "…"
        at = time.monotonic() - self.started_s
        print(f"{at:6.1f} s  {self.role:<10} {text:<60}  exit {code:<3} {seconds:5.2f} s", flush=True)


def stop_on_signal(signum: int, _frame: FrameType | None) -> None:
    """A handler that ends the program with the exit code of the signal, by way of its ``finally``."""
    raise SystemExit(128 + signum)


def main(argv: Sequence[str] | None = None) -> int:
    """Play one role for a number of rounds or seconds. Returns 0."""
    parser = argparse.ArgumentParser(prog="python -m tidegate.demo.agent")
    parser.add_argument("--role", choices=sorted(scripts.ROLES), required=True)
    parser.add_argument("--work", type=Path, required=True, help="directory of this agent; must not exist yet")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="go on for so long instead of counting rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=1.0)
    parser.add_argument("--burst-mb", type=int, default=400)
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, stop_on_signal)
    arguments.work.mkdir(parents=True)
    agent = Agent(
        arguments.role,
        arguments.work,
        seed=arguments.seed,
        pace=arguments.pace,
        burst_bytes=arguments.burst_mb * MIB,
    )
    script = scripts.ROLES[arguments.role]
    deadline = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    try:
        script.prepare(agent)
        done = 0
        while (done < arguments.rounds) if deadline is None else (time.monotonic() < deadline):
            script.play(agent, done)
            done += 1
    except KeyboardInterrupt:
        return 130
    finally:
        agent.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
