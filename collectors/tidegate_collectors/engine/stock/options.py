"""The options of ``tidegate collect --engine``, checked before anything is opened. Standard library only."""

from __future__ import annotations

import argparse
import socket
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_INTERVAL_S: Final = 1.0
_MAX_NAME_CHARS: Final = 64
_EXAMPLE: Final = "http://127.0.0.1:8000"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class EngineOptionError(Exception):
    """The collector cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Config:
    """What one collector is to watch.

    Attributes:
        url: base URL of vLLM's server, without a slash at the end.
        name: the engine's name, the same after a restart.
        kv_events, kv_replay: ZMQ addresses of its events and of their replay; None: not listened to.
        kv_capture: file that the events are written to as well.
        interval_s: from one look at the metrics to the next.
        link: the backend's socket.
    """

    url: str
    name: str
    link: Path
    kv_events: str | None = None
    kv_replay: str | None = None
    kv_capture: Path | None = None
    interval_s: float = DEFAULT_INTERVAL_S


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a stock engine; ``--link`` is added by whoever has it too."""
    group = parser.add_argument_group("a vLLM without Tidegate's plugin, instead of the kernel (needs no root)")
    group.add_argument("--engine", metavar="URL", help=f"watch the vLLM there by its metrics, for example {_EXAMPLE}")
    group.add_argument(
        "--kv-events", metavar="ADDRESS",
        help="ZMQ address of its KV events (endpoint of --kv-events-config), for example tcp://127.0.0.1:5557",
    )  # fmt: skip
    group.add_argument(
        "--kv-replay", metavar="ADDRESS", help="ZMQ address where lost events are had again (its replay_endpoint)"
    )
    group.add_argument("--kv-capture", type=Path, metavar="FILE", help="write the events to this file too, a line each")
    group.add_argument("--engine-name", metavar="NAME", help="the engine's name (vllm-HOST-PORT)")
    group.add_argument(
        "--interval", type=float, default=DEFAULT_INTERVAL_S, metavar="S",
        help=f"seconds between two looks at the metrics ({DEFAULT_INTERVAL_S:g}; 0.2 to 60)",
    )  # fmt: skip


def check(ns: argparse.Namespace, link: Path) -> Config:
    """The options as a configuration.

    Raises:
        EngineOptionError: something in them cannot be done.
    """
    url = engine_url(ns.engine)
    if not 0.2 <= ns.interval <= 60:
        raise EngineOptionError("--interval must lie between 0.2 and 60 seconds")
    if ns.kv_events is None and (ns.kv_replay is not None or ns.kv_capture is not None):
        raise EngineOptionError("--kv-replay and --kv-capture need --kv-events: the address of the events themselves")
    name = ns.engine_name if ns.engine_name is not None else default_name(url)
    if not 0 < len(name) <= _MAX_NAME_CHARS or not name.isascii() or not name.isprintable():
        raise EngineOptionError(f"--engine-name: use 1 to {_MAX_NAME_CHARS} printable ASCII characters")
    return Config(
        url=url, name=name, link=link, kv_events=_address("--kv-events", ns.kv_events),
        kv_replay=_address("--kv-replay", ns.kv_replay), kv_capture=ns.kv_capture, interval_s=ns.interval,
    )  # fmt: skip


def engine_url(text: str) -> str:
    """The base URL without a slash, ``/metrics`` or ``/v1`` at its end.

    Raises:
        EngineOptionError: no http or https URL with a host, or it holds a password, a query or odd letters.
    """
    refused = f"--engine: {text[:120]!a} is no http:// or https:// URL; write for example {_EXAMPLE}"
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urllib.parse.urlsplit(""), None
    if "@" in text:  # not shown: it may hold a password
        raise EngineOptionError(f"--engine: a user or password in the URL is not used; write for example {_EXAMPLE}")
    if not text.isascii() or not text.isprintable() or " " in text or port == 0:
        raise EngineOptionError(refused)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise EngineOptionError(refused)
    path = parts.path.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


def default_name(url: str) -> str:
    """``vllm-HOST-PORT`` of the engine's address; this machine's name where it is a loopback one."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if host in _LOOPBACK:
        host = socket.gethostname()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"vllm-{host}-{port}"[:_MAX_NAME_CHARS]


def _address(option: str, text: str | None) -> str | None:
    if text is None:
        return None
    shown = ascii(text[:120])
    scheme, _, rest = text.partition("://")
    if not text.isascii() or not text.isprintable() or " " in text or len(text) > 256 or not rest:
        raise EngineOptionError(f"{option}: {shown} is no address; write for example tcp://127.0.0.1:5557")
    if scheme == "ipc":
        return text
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not port.isdigit() or not 0 < int(port) < 65536 or not host:
        raise EngineOptionError(f"{option}: {shown} is no address; write tcp://HOST:PORT or ipc://PATH")
    if host in ("*", "0.0.0.0"):  # noqa: S104 - it is refused
        raise EngineOptionError(f"{option}: vLLM listens at {shown}; write where it is reached: tcp://127.0.0.1:{port}")
    return text
