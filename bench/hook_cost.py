"""What an agent waits for at each hook: ms from starting its command to its end, median, inside a tracked session.

The hook is started as Claude Code does it: the installed command by ``/bin/sh -c``, the event as JSON on its standard
input, within a session under ``tidegate run`` with a collector and a backend. An agent pays it twice a tool call.
Reference, in the same run and session: the same shell with a Python that does nothing (``python -IS -c pass``), started
in turn with it. Details: a shell that runs ``true``, and the hook outside of any session.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench._report import Report, arguments, percentile
from bench._stack import BenchError, Stack, fail, require_root
from tidegate_collectors.agent.hook_settings import hook_command

GOAL_MS = 60.0

_AGENT = """
import json, os, subprocess, sys, time

commands, runs, result = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
payload = {
    "session_id": "7a4d0cbe-52a9-4dd5-a0b4-6e8d8f0b1c11", "transcript_path": "/t.jsonl", "cwd": "/",
    "tool_name": "Bash", "tool_input": {"command": "git status", "description": "x"},
}
took = {name: [] for name in commands}
for number in range(runs):
    for event in ("PreToolUse", "PostToolUse"):
        event_payload = {**payload, "hook_event_name": event, "tool_use_id": f"toolu_{number}"}
        if event == "PostToolUse":
            event_payload["tool_response"] = {"stdout": "x" * 2000, "stderr": ""}
        data = json.dumps(event_payload).encode()
        for name, command in commands.items():
            began = time.perf_counter()
            done = subprocess.run(["/bin/sh", "-c", command], input=data, capture_output=True)
            took[name].append((time.perf_counter() - began) * 1000)
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), (command, done)
with open(result, "w") as file:
    json.dump(took, file)
"""


def run_agent(stack: Stack, runs: int, session: str | None) -> dict[str, list[float]]:
    """Milliseconds of each command, in turn; in a session of this name or plainly."""
    python = sys.executable
    commands = {"hook": hook_command(), "python": f"exec '{python}' -IS -c pass", "shell": "true"}
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-out-") as name:
        result = Path(name) / "result.json"
        command = [python, "-c", _AGENT, json.dumps(commands), str(runs), str(result)]
        if session is not None:
            command = stack.run_command(*command, session=session)
        environment = {key: value for key, value in stack.environment.items() if key != "TIDEGATE_SESSION"}
        status = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode
        if status or not result.exists():
            raise BenchError(f"the agent ended with {status}")
        measured: dict[str, list[float]] = json.loads(result.read_text())
        return measured


def measure(runs: int) -> Report:
    """So many tool calls, two hooks each."""
    with Stack() as stack:
        stack.serve()
        stack.collect()
        run_agent(stack, 3, "hooks-warm")
        inside = run_agent(stack, runs, "hooks")
        outside = run_agent(stack, max(runs // 4, 5), None)
    return Report(
        bench="hook_cost",
        value=statistics.median(inside["hook"]),
        unit="ms",
        reference_name="a Python that does nothing, started the same way, median ms",
        reference_value=statistics.median(inside["python"]),
        runs=len(inside["hook"]),
        details={
            "hook_p95_ms": percentile(inside["hook"], 95),
            "hook_max_ms": max(inside["hook"]),
            "shell_true_ms": statistics.median(inside["shell"]),
            "outside_of_a_session_ms": statistics.median(outside["hook"]),
            "cpus": os.cpu_count(),
            "goal_ms": GOAL_MS,
        },
    )


def main() -> int:
    """Print the report; returns the exit code."""
    options = arguments("hook_cost", __doc__)
    try:
        require_root()
        print(measure(200 if options.full else 50).line())
    except BenchError as error:
        return fail("hook_cost", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
