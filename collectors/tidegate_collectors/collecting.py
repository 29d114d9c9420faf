"""``tidegate collect``: the kernel of this host, or with ``--engine`` an inference engine. Only one is imported."""

from __future__ import annotations

import argparse

from tidegate_collectors.engine.stock import options as stock
from tidegate_collectors.kernel import options as kernel

_ENGINE_ONLY = ("kv_events", "kv_replay", "kv_capture", "engine_name")
_USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of both."""
    kernel.add_arguments(parser)
    stock.add_arguments(parser)


def main(ns: argparse.Namespace) -> int:
    """Run the one that was asked for; returns its exit code."""
    if ns.engine is not None:
        return _kernel_options(ns) or _watch_engine(ns)
    for name in _ENGINE_ONLY:
        if getattr(ns, name) is not None:
            return _refused(f"--{name.replace('_', '-')} needs --engine URL, the address of vLLM's server")
    from tidegate_collectors.kernel import daemon

    return daemon.main(ns)


def _watch_engine(ns: argparse.Namespace) -> int:
    from tidegate_collectors.engine.stock import main as watching

    return watching.main(ns)


def _kernel_options(ns: argparse.Namespace) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    kernel.add_arguments(parser)
    for name, default in vars(parser.parse_args([])).items():
        if name != "link" and getattr(ns, name) != default:
            return _refused(
                f"--{name.replace('_', '-')} is of the kernel's observation; with --engine only the engine is watched. "
                "Run tidegate collect a second time for the kernel"
            )
    return 0


def _refused(text: str) -> int:
    import sys

    print(f"tidegate collect: {text}", file=sys.stderr)
    return _USAGE
