"""A scripted agent CLI that treats its hooks and its shell as Claude Code does; started as a program, with a plan.

``python hooked_cli.py SETTINGS PLAN``: for each step of the plan, a list of tool uses that run at once, it calls the
hook commands that SETTINGS has for PreToolUse (a shell runs them, JSON on standard input), runs the tool, and calls
those for PostToolUse, or PostToolUseFailure. Bash runs in a real shell, within a script of its own, as Claude Code
writes it; other tools work in this process. At the end come the hooks for Stop. Prints one JSON line with what the
hooks did.

A tool use: ``{"tool": "Bash", "input": {"command": ...}, "id": "toolu_1"}``. Keys of the plan's ``options``: ``ids``
(false: an old version that gives no tool_use_id), ``failures`` (false: no word of a tool that failed), ``shell`` (how
Bash is started: wrapped, plain or none), ``statusline`` (a command that the CLI runs on its own account in between),
``stagger_s`` (between tools that run at once), ``linger_s`` (how long it goes on after the end).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

SESSION = "7a4d0cbe-52a9-4dd5-a0b4-6e8d8f0b1c11"


class Cli:
    """One run of the plan."""

    def __init__(self, settings: dict[str, Any], options: dict[str, Any], directory: Path) -> None:
        self._hooks = settings.get("hooks", {})
        self._options = options
        self._directory = directory
        self.hook_runs: list[dict[str, Any]] = []
        self._snapshot = directory / "snapshot-bash-1764558123456-abc123.sh"
        self._snapshot.write_text("# Snapshot file\nunalias -a 2>/dev/null || true\n")

    def hooks(self, event: str, payload: dict[str, Any], tool: str = "") -> None:
        """Call the hooks of an event one after another, as the settings say."""
        common = {
            "session_id": SESSION,
            "transcript_path": str(self._directory / f"{SESSION}.jsonl"),
            "cwd": str(self._directory),
            "permission_mode": "default",
            "hook_event_name": event,
        }
        for group in self._hooks.get(event, []):
            if tool and not re.fullmatch(group.get("matcher") or ".*", tool):
                continue
            for hook in group["hooks"]:
                began = time.monotonic()
                done = subprocess.run(
                    ["/bin/sh", "-c", hook["command"]],
                    input=json.dumps({**common, **payload}).encode(),
                    capture_output=True,
                    timeout=hook.get("timeout", 60),
                )
                self.hook_runs.append(
                    {
                        "event": event,
                        "code": done.returncode,
                        "output": (done.stdout + done.stderr).decode(),
                        "took_s": time.monotonic() - began,
                    }
                )

    def use(self, use: dict[str, Any]) -> None:
        """One tool use with its hooks."""
        payload: dict[str, Any] = {"tool_name": use["tool"], "tool_input": use["input"]}
        if self._options.get("ids", True):
            payload["tool_use_id"] = use["id"]
        self.hooks("PreToolUse", payload, use["tool"])
        if use.get("refused"):
            return
        if use["tool"] == "Bash":
            done = self._bash(use["input"]["command"])
            if done.returncode != 0:
                if self._options.get("failures", True):
                    error = f"Exit code {done.returncode}\n{done.stderr}"
                    self.hooks("PostToolUseFailure", {**payload, "error": error, "is_interrupt": False}, use["tool"])
                return
            response: Any = {"stdout": done.stdout, "stderr": done.stderr, "interrupted": False, "isImage": False}
        else:
            response = self._inside(use["tool"], use["input"])
        self.hooks("PostToolUse", {**payload, "tool_response": response}, use["tool"])

    def _bash(self, command: str) -> subprocess.CompletedProcess[str]:
        quoted = "'" + command.replace("'", "'\\''") + "'"
        script = (
            f"source {self._snapshot} 2>/dev/null || true && eval {quoted} \\< /dev/null && "
            f"pwd -P >| {self._directory}/cwd"
        )
        argv = {
            "wrapped": ["/bin/bash", "-l", "-c", script],
            "plain": ["bash", "-lc", command],
            "none": command.split(),
        }[self._options.get("shell", "wrapped")]
        return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=self._directory)

    def _inside(self, tool: str, arguments: dict[str, Any]) -> Any:
        if tool == "Read":
            text = Path(arguments["file_path"]).read_text()
            return {"type": "text", "file": {"filePath": arguments["file_path"], "content": text, "numLines": 1}}
        if tool == "Grep":
            done = subprocess.run(["grep", "-rn", arguments["pattern"], "."], capture_output=True, text=True,
                                  cwd=self._directory)  # fmt: skip
            return {"mode": "content", "content": done.stdout}
        time.sleep(0.05)
        return {"ok": True}

    def statusline(self) -> None:
        """What the CLI runs for itself."""
        if command := self._options.get("statusline"):
            subprocess.run(command, capture_output=True, cwd=self._directory)


def main() -> None:
    settings, plan = (json.loads(Path(name).read_text()) for name in sys.argv[1:3])
    cli = Cli(settings, plan.get("options", {}), Path(sys.argv[2]).parent)
    cli.hooks("Notification", {"message": "Claude needs your permission to use Bash"})
    for step in plan["steps"]:
        threads = [threading.Thread(target=cli.use, args=(use,)) for use in step]
        for thread in threads:
            thread.start()
            time.sleep(plan.get("options", {}).get("stagger_s", 0))
        cli.statusline()
        for thread in threads:
            thread.join()
    cli.hooks("Stop", {"stop_hook_active": False})
    time.sleep(plan.get("options", {}).get("linger_s", 0))
    print(json.dumps(cli.hook_runs))


if __name__ == "__main__":
    main()
