"""Make the recording of both planes: ``sudo .venv/bin/python scripts/record_demo.py recordings/engine.jsonl.zst``.

Starts the engine first and then a backend and a collector of its own, so that the recording does not begin with a
minute of waiting; plays ``tidegate demo --engine``; ends the engine, and writes down the run. All else is removed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tidegate.demo import engine, engine_conductor
from tidegate.demo.conductor import Options, temporary_directory, wait_for_collector
from tidegate_collectors import paths

TIDEGATE = [sys.executable, "-m", "tidegate"]


def begin(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a part of Tidegate."""
    with log.open("wb") as output:
        return subprocess.Popen([*TIDEGATE, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a socket."""
    deadline = time.monotonic() + 30
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"it did not start:\n{engine.log_tail(log)}")
        time.sleep(0.05)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and wait."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def main() -> int:
    """Record. Returns the exit code of the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="file to write: .jsonl, .jsonl.gz or .jsonl.zst")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--agents", type=int, default=5)
    given = parser.parse_args()
    with temporary_directory() as work, tempfile.TemporaryDirectory(prefix="tidegate-record-") as name:
        root = Path(name)
        os.environ |= {"TIDEGATE_STATE_DIR": str(root / "state"), paths.RUNTIME_ENV: str(root / "run")}
        choice = engine_conductor.EngineChoice()
        with engine_conductor.running_engine(engine.find_python(), choice, work) as running:
            user = ["--user", "root"] if os.geteuid() == 0 else []
            backend = begin(root / "serve.log", "serve", "--port", str(engine.free_port()), *user)
            try:
                wait_for(paths.link_socket(), backend, root / "serve.log")
                collector = begin(root / "collect.log", "collect", "--cgroup-root", f"tidegate-record-{os.getpid()}")
                try:
                    wait_for_collector(paths.agent_socket())
                    options = Options(agents=given.agents, minutes=given.minutes)
                    code = engine_conductor.play_agents(options, running, work)
                    time.sleep(1)
                    engine.stop(running)
                    time.sleep(1)
                finally:
                    end(collector)
                subprocess.run([*TIDEGATE, "export", "-o", given.output.absolute()], check=True)
            finally:
                end(backend)
    return code


if __name__ == "__main__":
    sys.exit(main())
