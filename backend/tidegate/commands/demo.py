"""``tidegate demo``: scripted agents with real tools."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.errors import UsageError
from tidegate_collectors.engine.decision import RULES

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

MAX_AGENTS = 64
MAX_MINUTES = 24 * 60
MIN_POOL_BLOCKS = 96
MAX_POOL_BLOCKS = 65_536
MAX_HOST_MIB = 4096

_AGENTS = 3
_ENGINE_AGENTS = 5


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "demo",
        help="run scripted agents with real tools",
        description=(
            "Runs scripted agents, each in its own session. Their tools are real: git, a test suite, a compiler, "
            "searches, allocations of hundreds of MB, a command that fails again and again, a process that is left "
            "behind, calls that overlap. Takes about a minute and a half; all files are temporary and removed. With "
            "--engine the agents ask a real vLLM with Tidegate's plugin and a tiny model, made here, which tool to "
            "call; it starts within about 40 s, takes 2 GB of memory and ends with the demo."
        ),
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes", type=float, default=1.2, metavar="N", help="begin rounds for N minutes (default 1.2)"
    )
    length.add_argument("--rounds", type=int, metavar="N", help="play N rounds of work instead")
    parser.add_argument("--agents", type=int, metavar="N", help="agents at once (default 3, with --engine 5)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of all choices (default 1)")
    parser.add_argument(
        "--pace", type=float, default=1.0, metavar="F", help="factor on the pauses between calls (default 1)"
    )
    engine = parser.add_argument_group("with a real engine")
    engine.add_argument("--engine", action="store_true", help="start a vLLM, and agents that ask it")
    engine.add_argument(
        "--rule", choices=RULES, metavar="RULE", help=f"how KV is decided: {', '.join(RULES)} (default four-state)"
    )
    engine.add_argument(
        "--mode", choices=("off", "observe", "enforce"), help="what the plugin may do (default enforce)"
    )
    engine.add_argument(
        "--pool-blocks", type=int, metavar="N", help="blocks of 32 tokens in the KV pool (default 128: a small one)"
    )
    engine.add_argument(
        "--host-mib",
        type=int,
        metavar="N",
        help="size of the host tier in MiB, 0 for none (default: as large as two pools)",
    )
    engine.add_argument(
        "--vllm-python", type=Path, metavar="PATH",
        help="Python of an environment with vLLM and tidegate-collectors (default: $TIDEGATE_VLLM_PYTHON, or "
        ".venv-vllm, which scripts/install_vllm.sh makes)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play the demo; see :mod:`tidegate.demo.conductor` and :mod:`tidegate.demo.engine_conductor`."""
    agents = args.agents if args.agents is not None else _ENGINE_AGENTS if args.engine else _AGENTS
    if not 1 <= agents <= MAX_AGENTS:
        raise UsageError(f"--agents {agents}: expected 1 to {MAX_AGENTS}")
    if not 0 < args.minutes <= MAX_MINUTES or (args.rounds is not None and args.rounds < 1):
        raise UsageError(f"--rounds and --minutes must be above 0, minutes at most {MAX_MINUTES}")
    if not 0 <= args.pace < float("inf"):
        raise UsageError("--pace must not be negative")
    only_engine = {
        "--rule": args.rule, "--mode": args.mode, "--pool-blocks": args.pool_blocks, "--host-mib": args.host_mib,
        "--vllm-python": args.vllm_python
    }  # fmt: skip
    if not args.engine and any(value is not None for value in only_engine.values()):
        names = [name for name, value in only_engine.items() if value is not None]
        raise UsageError(f"{', '.join(names)}: only with --engine")
    from tidegate.demo.conductor import Options

    options = Options(agents=agents, rounds=args.rounds, minutes=args.minutes, seed=args.seed, pace=args.pace)
    if not args.engine:
        from tidegate.demo.conductor import run as play

        return play(options)
    pool_blocks = 128 if args.pool_blocks is None else args.pool_blocks
    if not MIN_POOL_BLOCKS <= pool_blocks <= MAX_POOL_BLOCKS:
        raise UsageError(
            f"--pool-blocks {pool_blocks}: expected {MIN_POOL_BLOCKS} (one conversation) to {MAX_POOL_BLOCKS}"
        )
    if args.host_mib is not None and not 0 <= args.host_mib <= MAX_HOST_MIB:
        raise UsageError(f"--host-mib {args.host_mib}: expected 0 to {MAX_HOST_MIB}")
    from tidegate.demo import engine_conductor

    choice = engine_conductor.EngineChoice(
        python=args.vllm_python,
        mode=args.mode or "enforce",
        rule=args.rule or "four-state",
        pool_blocks=pool_blocks,
        host_bytes=None if args.host_mib is None else args.host_mib << 20,
    )
    return engine_conductor.run(options, choice)
