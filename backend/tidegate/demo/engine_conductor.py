"""The demo of both planes: starts a real engine and a gateway, then agents that ask it, and ends all of them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.demo import engine
from tidegate.demo.conductor import Options, agent_command, bursts, play, temporary_directory, wait_for_collector
from tidegate.demo.tiny_model import DEEP, Size
from tidegate.demo.workshop import MIB
from tidegate.errors import UnavailableError
from tidegate_collectors import paths
from tidegate_collectors.engine.decision import Rule
from tidegate_collectors.records import KvMode

LOG = "vllm.log"

_STAGGER_S = 0.7
_GATEWAY_TIMEOUT_S = 20.0
_GATEWAY_URL = re.compile(r"ANTHROPIC_BASE_URL=(http://\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """What engine the demo shall have.

    Attributes:
        python: of an environment with vLLM; None finds one.
        mode: of the plugin.
        rule: by which it decides.
        pool_blocks: size of the KV pool, in blocks of 32 tokens.
        host_bytes: size of the host tier; 0 for none, None for that of two pools.
        size: of the model.
    """

    python: Path | None = None
    mode: KvMode = "enforce"
    rule: Rule = "four-state"
    pool_blocks: int = 128
    host_bytes: int | None = None
    size: Size = DEEP

    def host_tier_bytes(self) -> int:
        """The size of the host tier in bytes."""
        if self.host_bytes is not None:
            return self.host_bytes
        return 2 * self.pool_blocks * engine.BLOCK_TOKENS * self.size.kv_bytes_per_token


def run(options: Options, choice: EngineChoice) -> int:
    """Play the demo. Returns 0 when every agent ended with exit code 0, 130 after Ctrl-C, else 1.

    Raises:
        UnavailableError: there is no vLLM or no collector, or the engine or the gateway did not start.
    """
    python = engine.find_python(choice.python)
    wait_for_collector(paths.agent_socket())
    try:
        with temporary_directory() as work, running_engine(python, choice, work) as running:
            code = play_agents(options, running, work)
            print("the agents have ended; ending the engine", flush=True)
    except KeyboardInterrupt:
        return 130
    return code


def play_agents(options: Options, running: engine.Engine, work: Path) -> int:
    """Start a gateway before the engine, and the agents, and wait for them. Returns as :func:`run` does.

    Raises:
        UnavailableError: the gateway did not start, or the engine has ended meanwhile.
    """
    with _running_gateway(running.url, work) as gateway_url:
        print(f"{options.agents} agents, through the gateway at {gateway_url}", flush=True)
        burst_bytes = bursts(options)
        commands = [
            agent_command(
                options, number, work, burst_bytes, "tidegate.demo.engine_agent",
                run=["--gateway", gateway_url], more=["--engine", running.url],
            )
            for number in range(options.agents)
        ]  # fmt: skip
        code = play(commands, _STAGGER_S * options.pace)
    if running.process.poll() is not None:
        raise UnavailableError(
            f"the engine ended with {running.process.returncode}; the last lines of its log:\n"
            f"{engine.log_tail(work / LOG)}"
        )
    return code


@contextlib.contextmanager
def running_engine(python: Path, choice: EngineChoice, work: Path) -> Iterator[engine.Engine]:
    """The demo's engine, for as long as the context lasts; says what is going on. ``work``: for its log and sockets.

    Raises:
        UnavailableError: it did not start.
    """
    print("making the tiny model, where it is not there yet (6 s)", flush=True)
    model = engine.make_model(python, engine.cache_directory(), choice.size)
    options = engine.EngineOptions(
        python=python,
        log=work / LOG,
        pool_blocks=choice.pool_blocks,
        host_bytes=choice.host_tier_bytes(),
        max_tokens=min(4096, choice.pool_blocks * engine.BLOCK_TOKENS),
        environment={
            "TIDEGATE_ENGINE_MODE": choice.mode,
            "TIDEGATE_ENGINE_RULE": choice.rule,
            paths.RUNTIME_ENV: str(paths.runtime_dir()),
            "TMPDIR": str(work),  # vLLM leaves sockets and caches there
        },
    )
    with engine.running_engine(options, model, waiting=_Progress()) as running:
        host = f"a host tier of {options.host_bytes / MIB:g} MiB" if options.host_bytes else "no host tier"
        print(
            f"vLLM serves it at {running.url}: {choice.pool_blocks} blocks of {engine.BLOCK_TOKENS} tokens and {host}, "
            f"plugin in mode {choice.mode} with rule {choice.rule}",
            flush=True,
        )
        yield running


class _Progress:
    """Says now and then that the engine is starting: on a terminal on one line."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, passed_s: float) -> None:
        if passed_s < self._next_s:
            return
        terminal = sys.stdout.isatty()
        self._next_s = passed_s + (1.0 if terminal else 10.0)
        end = "\r" if terminal else "\n"
        print(f"starting vLLM, which takes about 40 s: {passed_s:.0f} s", end=end, flush=True)


@contextlib.contextmanager
def _running_gateway(upstream: str, work: Path) -> Iterator[str]:
    """A gateway before the engine, on a free port; its URL."""
    log = work / "gateway.log"
    link = paths.link_socket()
    # A runtime directory of its own: the file by which others find their gateway is not to be overwritten.
    own = work / "gateway"
    own.mkdir(mode=0o700)
    command = [
        sys.executable, "-m", "tidegate", "gateway", "--upstream", upstream, "--port", "0", "--link", str(link)
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | {paths.RUNTIME_ENV: str(own)}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield _gateway_url(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _gateway_url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _GATEWAY_TIMEOUT_S
    while True:
        found = _GATEWAY_URL.search(log.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found[1]
        if process.poll() is not None or time.monotonic() > deadline:
            raise UnavailableError(f"the gateway did not start; the last lines of its log:\n{engine.log_tail(log)}")
        time.sleep(0.05)
