"""A real vLLM with the plugin, serving a tiny model on loopback, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

REPO = Path(__file__).resolve().parents[2]
PYTHON = REPO / ".venv-vllm" / "bin" / "python"
START_TIMEOUT_S = 180.0
POOL_BLOCKS = 64
BLOCK_TOKENS = 32

_QUIET = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}  # fmt: skip


def missing() -> str:
    """Why no server can be started; empty when one can."""
    # The stamp is written last: an installation that was refused half-way leaves a Python without a vLLM.
    done = PYTHON.parents[1] / ".tidegate-install"
    return "" if done.exists() else f"there is no vLLM in {done.parent}; run scripts/install_vllm.sh"


@contextlib.contextmanager
def running_vllm(directory: Path, runtime_dir: Path, **settings: str) -> Iterator[httpx.Client]:
    """Start it, with ``TIDEGATE_ENGINE_*`` settings, and end it again; a client of its API.

    Args:
        directory: for the model and the log.
        runtime_dir: where the backend's link is.
        settings: names without their prefix, in lower case: mode, rule, ...
    """
    model, log_path = directory / "model", directory / "vllm.log"
    environment = {**os.environ, **_QUIET, "TIDEGATE_RUNTIME_DIR": str(runtime_dir)}
    environment |= {f"TIDEGATE_ENGINE_{name.upper()}": value for name, value in settings.items()}
    subprocess.run(
        [PYTHON, REPO / "tests" / "support" / "tiny_model.py", model], env=environment, check=True, timeout=120,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024", "--enforce-eager",
        "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(POOL_BLOCKS + 1), "--max-num-seqs", "8",
        "--enable-prompt-tokens-details",
        "--scheduler-cls", "tidegate_collectors.engine.plugin.TidegateScheduler",
    ]  # fmt: skip
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
            _wait(process, client, log_path)
            yield client
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], client: httpx.Client, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        with contextlib.suppress(httpx.TransportError):
            if client.get("/health").status_code == 200:
                return
        assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.2)
