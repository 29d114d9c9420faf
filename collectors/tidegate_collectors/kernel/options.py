"""Settings of the kernel collector and their command line options. Light: the command line imports it to show help."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DEFAULT_BURST_BYTES = 64 << 20
DEFAULT_WINDOW_MS = 100


class CollectError(Exception):
    """The collector cannot start; the message says why and what to do."""


@dataclass(slots=True, frozen=True)
class Config:
    """Settings of one collector. ``burst_bytes`` of growth within ``window_us`` are a burst."""

    runtime_dir: Path
    link: Path
    loader: Literal["auto", "libbpf", "bcc", "procfs"] = "auto"
    memory_source: Literal["auto", "memcg", "rss_stat"] = "auto"
    cgroup_root: str = "tidegate"
    burst_bytes: int = DEFAULT_BURST_BYTES
    window_us: int = DEFAULT_WINDOW_MS * 1000
    record_args: bool = False
    group: str | None = None
    probe: bool = True
    """Try every ability at the start, for the Health page; takes up to a second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``tidegate collect``."""
    add = parser.add_argument
    add(
        "--loader",
        choices=("auto", "libbpf", "bcc", "procfs"),
        default="auto",
        help="how to look at the kernel: BPF programs that libbpf loads, or that BCC (python3-bpfcc) compiles for this "
        "kernel first, or files of /proc; auto takes the first of these that works (default: auto)",
    )
    add("--link", type=Path, metavar="PATH", help="socket of the backend (default: link.sock in the runtime directory)")
    add("--cgroup-root", default="tidegate", metavar="NAME", help="name of our cgroup (default: tidegate)")
    add(
        "--burst-bytes",
        type=int,
        default=DEFAULT_BURST_BYTES,
        metavar="N",
        help="growth of one call or runtime within the window that is a burst (default: 64 MiB)",
    )
    add("--window-ms", type=int, default=DEFAULT_WINDOW_MS, metavar="N", help="length of that window (default: 100)")
    add("--record-args", action="store_true", help="record whole command lines, not only their recognised words")
    add(
        "--memory-source",
        choices=("auto", "memcg", "rss_stat"),
        default="auto",
        help="which kernel events count memory (default: the exact ones where this kernel has them)",
    )
    add("--group", metavar="NAME", help="group that may start sessions (default: tidegate, or the sudo user's)")


def check(config: Config) -> None:
    """See whether the settings make sense. Raises :class:`CollectError`."""
    if config.burst_bytes <= 0:
        raise CollectError("--burst-bytes must be above 0")
    if not 10_000 <= config.window_us <= 10_000_000:
        raise CollectError("--window-ms must lie between 10 and 10000")
