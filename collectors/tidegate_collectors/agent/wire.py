"""One short word to the collector from a program that the agent waits for. Imports little, raises nothing.

The launchers use :mod:`.client`, which can say what went wrong; here nobody would read it.
"""

from __future__ import annotations

import json
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SOCKET_ENV = "TIDEGATE_AGENT_SOCKET"
SESSION_ENV = "TIDEGATE_SESSION"
_MAX_REPLY_BYTES = 4096


def inside_a_session() -> bool:
    """Whether ``tidegate run`` started what is around us."""
    return bool(os.environ.get(SESSION_ENV) and os.environ.get(SOCKET_ENV))


def tell(message: dict[str, Any], timeout_s: float) -> bool:
    """Say it as the calling process and wait for the answer, at most about ``timeout_s``.

    The answer is waited for because the kernel names the peer only as long as it lives.

    Returns:
        Whether the collector took it.
    """
    try:
        text = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(timeout_s)
            sock.connect(os.environ[SOCKET_ENV])
            sock.sendall(text + b"\n")
            return sock.recv(_MAX_REPLY_BYTES).startswith(b'{"ok":true')
    except (OSError, KeyError, ValueError):
        return False
