"""The launcher's end of the collector's socket. Imports little: it runs before every agent."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from tidegate_collectors import paths

SESSION_ENV = "TIDEGATE_SESSION"
TIMEOUT_S = 5.0
_MAX_REPLY_BYTES = 64 * 1024


class NoCollectorError(Exception):
    """Nobody answers on the collector's socket; the message says why and what to do."""


class RefusedError(Exception):
    """The collector understood and refused; the message is its own."""


def request(verb: str, *, timeout_s: float = TIMEOUT_S, **fields: Any) -> dict[str, Any]:
    """Ask the collector, as the calling process: the kernel tells the collector who that is.

    Fields that are ``None`` are left out. Returns the fields of the answer.

    Raises:
        NoCollectorError: no collector, no right to its socket, or no answer in time.
        RefusedError: the collector says no.
    """
    path = str(paths.agent_socket())
    message = {"verb": verb, **{name: value for name, value in fields.items() if value is not None}}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(timeout_s)
            sock.connect(path)
            # Names that are no UTF-8 arrive as lone surrogates, which no JSON holds: they are sent with "?" in place.
            text = json.dumps(message, ensure_ascii=False)
            sock.sendall(text.encode("utf-8", "replace") + b"\n")
            reply = _read_line(sock)
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoCollectorError(f"no collector listens at {path}; start one with: sudo tidegate collect") from None
    except PermissionError:
        raise NoCollectorError(
            f"uid {os.geteuid()} may not use {path}; start the collector with --group and be in that group"
        ) from None
    except TimeoutError:
        raise NoCollectorError(f"the collector at {path} does not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise NoCollectorError(f"the collector at {path} cannot be asked: {error.strerror or error}") from None
    try:
        answer = json.loads(reply)
    except ValueError:
        raise NoCollectorError(f"what listens at {path} is no collector of Tidegate") from None
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        raise RefusedError(str(answer.get("error", "no reason given")) if isinstance(answer, dict) else "no answer")
    return answer


def _read_line(sock: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n") and len(received) < _MAX_REPLY_BYTES:
        chunk = sock.recv(4096)
        if not chunk:
            break
        received += chunk
    return received
