"""What an agent's hook runs: ``python -IS .../agent/hook.py``, with the event as JSON on standard input.

It says one word to the collector. Whatever happens (no collector, no session, an input that is no JSON or has no
end), it prints nothing and exits 0 within :data:`LIMIT_S`: a hook must never stop or slow the agent. It runs before and
after each tool, so it starts without the site packages (``-S``) and without the user's environment (``-I``), and
imports only what it needs. Outside of a session it just takes its input.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LIMIT_S = 0.3
"""Looked at between two steps: an input of millions of values, which no agent gives, is read in a second or so."""

MAX_INPUT_BYTES = 16 << 20
"""More than that is taken off the agent's hands and not looked at."""


def main() -> NoReturn:
    """Tell the collector; never returns, never fails."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])  # an agent may hand its mask down
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        gc.disable()  # going over millions of values again and again takes longer than reading them
        _tell(_read())
    finally:
        os._exit(0)  # nothing is to be flushed, and an error of ours is nobody's business here


def _read() -> bytes:
    """All of standard input: a writer whose reader leaves early gets an error for it."""
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(0, 1 << 16):
        size += len(chunk)
        if size <= MAX_INPUT_BYTES:
            chunks.append(chunk)
    return b"".join(chunks) if size <= MAX_INPUT_BYTES else b""


def _tell(data: bytes) -> None:
    if not (os.environ.get("TIDEGATE_SESSION") and os.environ.get("TIDEGATE_AGENT_SOCKET")):
        return
    if __name__ == "__main__":  # started as a file, with no path to our package
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    from tidegate_collectors.agent import hook_payload, wire

    wire.tell(hook_payload.request_of(data), LIMIT_S)


if __name__ == "__main__":
    main()
