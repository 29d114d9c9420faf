"""A real vLLM with Tidegate's plugin, serving the tiny model on loopback: found, started, waited for, ended again."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.demo import tiny_model
from tidegate.demo.tiny_model import TINY, Size
from tidegate.errors import UnavailableError, UsageError

PYTHON_ENV = "TIDEGATE_VLLM_PYTHON"
MODEL_NAME = "tiny"
BLOCK_TOKENS = 32
START_TIMEOUT_S = 240.0

_MODEL_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0
_SHUTDOWN_TIMEOUT_S = 5
_LOG_LINES = 25
_SCHEDULER = "tidegate_collectors.engine.plugin.TidegateScheduler"
_HOST_TIER = {
    "kv_connector": "TidegateHostTier",
    "kv_connector_module_path": "tidegate_collectors.engine.plugin.host_tier_connector",
    "kv_role": "kv_both",
}
QUIET = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    # One core is left to the engine's other process and to the agents. By itself vLLM leaves two where a KV connector
    # is configured, and where that is all there are none: then each step waits for threads that others keep waiting.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What engine shall be started.

    Attributes:
        python: of an environment with vLLM.
        log: file for what it prints.
        pool_blocks: blocks of its KV pool that can be used; few of them, so that sessions compete.
        max_tokens: longest prompt and answer together.
        max_requests: that run at once.
        plugin: whether Tidegate's plugin is on board.
        host_bytes: size of the plugin's host tier; 0 for none.
        environment: further variables: ``TIDEGATE_ENGINE_MODE`` and its like.
        arguments: further arguments of vLLM's server.
    """

    python: Path
    log: Path
    pool_blocks: int = 128
    max_tokens: int = 2048
    max_requests: int = 8
    plugin: bool = True
    host_bytes: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """One that runs. ``url`` has no slash at its end."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def find_python(given: Path | None = None) -> Path:
    """The Python of an environment with vLLM: the given one, $TIDEGATE_VLLM_PYTHON, or .venv-vllm beside the project.

    Raises:
        UnavailableError: there is none, with what to do.
        UsageError: the one that was named is no program.
    """
    named, by = (given, "--vllm-python") if given else (os.environ.get(PYTHON_ENV), PYTHON_ENV)
    if named:
        path = Path(named).absolute()  # not resolved: a venv's Python is a link to a Python without its packages
        if not os.access(path, os.X_OK) or path.is_dir():
            raise UsageError(f"{by}: {str(path)!a} is no program; give the Python of an environment with vLLM")
        return path
    for root in (Path(__file__).resolve().parents[3], Path.cwd()):
        # The stamp is written last: an installation that was refused half-way leaves a Python without a vLLM.
        if (root / ".venv-vllm" / ".tidegate-install").exists():
            return root / ".venv-vllm" / "bin" / "python"
    raise UnavailableError(
        "there is no vLLM here: run scripts/install_vllm.sh (about 10 s, 2 GB), or name the Python of an environment "
        f"that has vLLM and tidegate-collectors with --vllm-python or {PYTHON_ENV}"
    )


def cache_directory() -> Path:
    """Where the tiny model is kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"


def make_model(python: Path, directory: Path, size: Size = TINY) -> Path:
    """The tiny model, made below ``directory`` unless it is there already; about 6 s. Returns its directory.

    Raises:
        UnavailableError: it cannot be made, with the reason.
    """
    program = Path(tiny_model.__file__)
    model = directory / f"tiny-model-{size.hidden}x{size.layers}-{model_version()}"
    if (model / "config.json").exists():
        return model
    directory.mkdir(parents=True, exist_ok=True)
    # Made elsewhere and then named: one that was interrupted must not be taken for whole.
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=directory))
    try:
        made = subprocess.run(
            [python, program, unfinished, *map(str, size)], env=os.environ | QUIET, capture_output=True, text=True,
            errors="replace", timeout=_MODEL_TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if made.returncode:
            reason = made.stderr.strip().splitlines()[-1:] or [f"exit code {made.returncode}"]
            raise UnavailableError(f"{python} cannot make the tiny model: {reason[0][:300]}")
        with contextlib.suppress(FileExistsError, OSError):  # another one was faster
            unfinished.rename(model)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{python} cannot make the tiny model: {error}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return model


def model_version() -> str:
    """Changes with the program that makes the model."""
    return hashlib.sha256(Path(tiny_model.__file__).read_bytes()).hexdigest()[:12]


def free_port() -> int:
    """A TCP port on loopback that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running_engine(
    options: EngineOptions, model: Path, *, waiting: Callable[[float], None] | None = None
) -> Iterator[Engine]:
    """Start it, wait until it answers, and end it again.

    Args:
        options: what shall be started.
        model: directory of the model.
        waiting: is called now and then with the seconds that have passed.

    Raises:
        UnavailableError: it did not start, with the last lines of its log.
    """
    engine = start(options, model)
    try:
        wait_until_up(engine, options.log, waiting=waiting)
        yield engine
    finally:
        stop(engine)


def start(options: EngineOptions, model: Path) -> Engine:
    """Start it; it does not answer yet. :func:`stop` ends it."""
    port = free_port()
    with options.log.open("wb") as log:
        process = subprocess.Popen(
            command(options, model, port), env={**os.environ, **QUIET, **options.environment},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            # Its own group: Ctrl-C goes to us, who end the agents first.
            start_new_session=True,
        )  # fmt: skip
    return Engine(process, port)


def command(options: EngineOptions, model: Path, port: int) -> list[str]:
    """The command line of vLLM's server."""
    plugin = ["--scheduler-cls", _SCHEDULER] if options.plugin else []
    if options.host_bytes:
        plugin += [
            "--kv-transfer-config",
            json.dumps(_HOST_TIER | {"kv_connector_extra_config": {"host_bytes": options.host_bytes}}),
        ]
    return [
        str(options.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager",
        "--max-model-len", str(options.max_tokens), "--max-num-seqs", str(options.max_requests),
        # One block of the pool is vLLM's null block, which is nobody's.
        "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(options.pool_blocks + 1),
        # With 0, the default, the engine's process is killed before it can say goodbye to the backend.
        "--shutdown-timeout", str(_SHUTDOWN_TIMEOUT_S),
        "--enable-prompt-tokens-details", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        *plugin, *options.arguments,
    ]  # fmt: skip


def wait_until_up(engine: Engine, log: Path, *, waiting: Callable[[float], None] | None = None) -> None:
    """Wait for its first answer.

    Raises:
        UnavailableError: it ended, or does not answer in time, with the last lines of its log.
    """
    began = time.monotonic()
    while not answers(engine.port):
        passed_s = time.monotonic() - began
        code = engine.process.poll()
        if code is not None or passed_s > START_TIMEOUT_S:
            what = f"ended with {code}" if code is not None else f"does not answer after {passed_s:.0f} s"
            raise UnavailableError(f"the engine {what}; the last lines of its log:\n{log_tail(log)}")
        if waiting is not None:
            waiting(passed_s)
        time.sleep(0.2)


def answers(port: int) -> bool:
    """Whether ``GET /health`` is answered with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        with connection.getresponse() as response:
            return response.status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def log_tail(log: Path) -> str:
    """The last lines of a log, made harmless for a terminal."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    except OSError as error:
        return f"    ({error})"
    return "\n".join(
        "    " + "".join(letter if letter.isprintable() else "?" for letter in line)[:300] for line in lines
    )


def stop(engine: Engine) -> None:
    """End it as Ctrl-C would, which lets it end its own processes; and by force where that takes too long."""
    process = engine.process
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # Not reaped yet, so the number of its group, in which its workers are, is still its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
