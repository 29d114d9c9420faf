"""The options of ``tidegate gateway``, checked before anything is opened. Standard library only."""

from __future__ import annotations

import argparse
import ipaddress
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .urls import UrlError, base_url

DEFAULT_PORT: Final = 6457
MAX_BODY_MIB: Final = 256


class GatewayError(Exception):
    """The gateway cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Config:
    """What one gateway is to do.

    Attributes:
        upstream: base URL of the engine, without a slash at the end.
        host, port: where to listen; port 0 takes a free one.
        allow_remote: whether requests may come from other machines.
        max_body_bytes: longest body of a turn's request.
        link: the backend's socket.
        runtime_dir: where the file lies by which ``tidegate run`` finds it; None for no file.
    """

    upstream: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    allow_remote: bool = False
    max_body_bytes: int = MAX_BODY_MIB << 20
    link: Path | None = None
    runtime_dir: Path | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``tidegate gateway``."""
    parser.add_argument(
        "--upstream", metavar="URL", required=True, help="the inference engine's API, for example http://127.0.0.1:8000"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="N", help=f"port to listen on ({DEFAULT_PORT}; 0: a free one)"
    )
    parser.add_argument(
        "--allow-remote",
        action="store_true",
        help="let other machines send requests: whoever reaches the port uses the engine",
    )
    parser.add_argument(
        "--max-body", type=int, default=MAX_BODY_MIB, metavar="MIB",
        help=f"longest request of a turn, in MiB ({MAX_BODY_MIB})",
    )  # fmt: skip
    parser.add_argument("--link", type=Path, metavar="PATH", help="the backend's socket (in the runtime directory)")


def check(ns: argparse.Namespace, runtime_dir: Path) -> Config:
    """The options as a configuration.

    Raises:
        GatewayError: something in them cannot be done.
    """
    try:
        upstream = base_url(ns.upstream)
    except UrlError as error:
        raise GatewayError(f"--upstream: {error}") from None
    if not 0 <= ns.port <= 65535:
        raise GatewayError(f"--port: {ns.port} is no port; use 0 to 65535")
    if ns.max_body < 1:
        raise GatewayError("--max-body: at least 1 MiB")
    host = ns.host.strip().removeprefix("[").removesuffix("]")
    if not is_loopback(host) and not ns.allow_remote:
        raise GatewayError(
            f"--host {ns.host!a} is not this machine's loopback address: whoever reaches it could use the engine; "
            "add --allow-remote if that is meant"
        )
    if own_address(upstream, host, ns.port):
        raise GatewayError("--upstream is the gateway's own address; give the engine's")
    return Config(
        upstream=upstream, host=host, port=ns.port, allow_remote=ns.allow_remote, max_body_bytes=ns.max_body << 20,
        link=ns.link, runtime_dir=runtime_dir,
    )  # fmt: skip


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_address(upstream: str, host: str, port: int) -> bool:
    """Whether requests to the upstream would come back to this gateway."""
    parts = urllib.parse.urlsplit(upstream)
    name = parts.hostname or ""
    return bool(port) and parts.port == port and (name == host or (is_loopback(name) and is_loopback(host)))
