"""The demo's real vLLM with the plugin, for tests: smaller, and with the tests' settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx

from tidegate.demo import engine
from tidegate.demo.engine import BLOCK_TOKENS
from tidegate.errors import TidegateError

__all__ = ["BLOCK_TOKENS", "POOL_BLOCKS", "missing", "running_vllm"]

POOL_BLOCKS = 64


def missing() -> str:
    """Why no server can be started; empty when one can."""
    try:
        engine.find_python()
    except TidegateError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def running_vllm(directory: Path, runtime_dir: Path, *arguments: str, **settings: str) -> Iterator[httpx.Client]:
    """Start it, with ``TIDEGATE_ENGINE_*`` settings, and end it again; a client of its API.

    Args:
        directory: for the model and the log.
        runtime_dir: where the backend's link is.
        arguments: further arguments of vLLM's server.
        settings: names without their prefix, in lower case: mode, rule, ...
    """
    python = engine.find_python()
    options = engine.EngineOptions(
        python=python,
        log=directory / "vllm.log",
        pool_blocks=POOL_BLOCKS,
        max_tokens=1024,
        environment={
            "TIDEGATE_RUNTIME_DIR": str(runtime_dir),
            **{f"TIDEGATE_ENGINE_{name.upper()}": value for name, value in settings.items()},
        },
        arguments=arguments,
    )
    model = engine.make_model(python, directory)
    with (
        engine.running_engine(options, model) as running,
        httpx.Client(base_url=running.url, timeout=60.0) as client,
    ):
        yield client
