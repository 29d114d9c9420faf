"""Real engines for benches: several at once where they are compared, each with its plugin set up differently."""

from __future__ import annotations

import contextlib
import http.client
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench._report import progress
from bench._stack import BenchError
from tidegate.demo import engine
from tidegate.demo.engine import Engine, EngineOptions
from tidegate.demo.tiny_model import TINY, Size
from tidegate.errors import TidegateError


@contextlib.contextmanager
def running_engines(
    settings: Mapping[str, Mapping[str, str]],
    *,
    pool_blocks: int,
    max_tokens: int,
    host_bytes: Mapping[str, int],
    size: Size = TINY,
) -> Iterator[dict[str, Engine]]:
    """Start an engine for each name, wait until all answer, and end them again.

    Args:
        settings: by name, the plugin's settings: ``TIDEGATE_ENGINE_*`` without the prefix, in lower case. One without
            any has no plugin.
        pool_blocks: blocks of each one's pool.
        max_tokens: longest prompt and answer together.
        size: of the model.
        host_bytes: by name, the size of the host tier of those that have one.

    Raises:
        BenchError: there is no vLLM here, or one did not start.
    """
    started: list[Engine] = []
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        directory = Path(name)
        try:
            python = engine.find_python()
            model = engine.make_model(python, engine.cache_directory(), size)
            engines: dict[str, Engine] = {}
            for key, given in settings.items():
                options = EngineOptions(
                    python=python, log=directory / f"{key}.log", pool_blocks=pool_blocks, max_tokens=max_tokens,
                    plugin=bool(given), host_bytes=host_bytes.get(key, 0), environment={
                        # Nobody listens there: the plugin does all its work and keeps the newest records.
                        "TIDEGATE_RUNTIME_DIR": str(directory / "run"),
                        "TMPDIR": name,  # vLLM leaves sockets and caches there
                        "VLLM_SERVER_DEV_MODE": "1",  # for POST /reset_prefix_cache
                        **{f"TIDEGATE_ENGINE_{setting.upper()}": value for setting, value in given.items()},
                    },
                )  # fmt: skip
                engines[key] = engine.start(options, model)
                started.append(engines[key])
            progress(f"starting {len(engines)} engines, about 40 s each on one core")
            for key, running in engines.items():
                engine.wait_until_up(running, directory / f"{key}.log")
            yield engines
        except TidegateError as error:
            raise BenchError(str(error)) from None
        finally:
            for running in started:
                engine.stop(running)


def reset_prefix_cache(running: Engine) -> None:
    """Empty it. It is refused while requests still hold blocks, which ends by itself.

    Raises:
        BenchError: it goes on being refused.
    """
    for _ in range(50):
        if post(running, "/reset_prefix_cache") == 200:
            return
        time.sleep(0.1)
    raise BenchError("the engine does not reset its prefix cache")


def post(running: Engine, path: str) -> int:
    """The status of a POST without a body."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    try:
        connection.request("POST", path)
        with connection.getresponse() as response:
            response.read()
            return response.status
    finally:
        connection.close()


def counter(running: Engine, name: str) -> float:
    """A Prometheus counter of the engine, summed over its labels.

    Raises:
        BenchError: there is none of that name.
    """
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        with connection.getresponse() as response:
            lines = response.read().decode().splitlines()
    finally:
        connection.close()
    values = [float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name]
    if not values:
        raise BenchError(f"the engine has no metric {name}")
    return sum(values)
