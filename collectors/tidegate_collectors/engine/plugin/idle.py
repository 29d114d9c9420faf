"""Reaching the scheduler while the engine is idle: pins must run out, and the last figures be told, without a request.

The pool may be touched by the engine's own thread only. A timer thread puts a wake-up into the engine's input queue,
and the engine's thread, when it takes it out, calls us.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from tidegate_collectors.engine.plugin.versions import refusal

log = logging.getLogger("vllm.tidegate")

PERIOD_S: Final = 0.25


class _Tick:
    """What lies in the input queue; anybody else takes it for a plain wake-up."""


def install() -> None:
    """Teach the engine's process our wake-up. Never raises: without it pins run out at the next request only."""
    try:
        from vllm import __version__ as version
        from vllm.v1.engine.core import EngineCoreProc

        handle = EngineCoreProc._handle_client_request
        loops = {kind: kind.run_busy_loop for kind in _with_own_loop(EngineCoreProc)}
        shut_down = EngineCoreProc.shutdown
    except Exception as error:
        log.warning("tidegate: no engine process here that could be woken: %s", error)
        return
    if refusal(version) or getattr(EngineCoreProc, "_tidegate_installed", False):
        return
    EngineCoreProc._tidegate_installed = True

    def handle_client_request(self: Any, request_type: Any, request: Any) -> Any:
        if type(request) is _Tick:
            plane = getattr(self.scheduler, "tidegate", None)
            if plane is not None:
                plane.tick()
            return None
        return handle(self, request_type, request)

    def waking(run: Any) -> Any:
        def run_busy_loop(self: Any) -> Any:
            if getattr(self.scheduler, "tidegate", None) is not None:
                threading.Thread(target=_wake, args=(self,), name="tidegate-idle", daemon=True).start()
            return run(self)

        return run_busy_loop

    def shutdown(self: Any) -> Any:
        # The scheduler is told last of all, often too late to say anything.
        plane = getattr(getattr(self, "scheduler", None), "tidegate", None)
        if plane is not None:
            plane.close()
        return shut_down(self)

    EngineCoreProc.shutdown = shutdown
    EngineCoreProc._handle_client_request = handle_client_request
    for kind, run in loops.items():
        kind.run_busy_loop = waking(run)


def _with_own_loop(kind: Any) -> list[Any]:
    """The class and those made of it that have a busy loop of their own, as that for data parallelism has."""
    found = [kind] if "run_busy_loop" in vars(kind) else []
    for below in kind.__subclasses__():
        found += [one for one in _with_own_loop(below) if one not in found]
    return found


def _wake(engine: Any) -> None:
    from vllm.v1.engine import EngineCoreRequestType

    plane = engine.scheduler.tidegate
    while not plane.closed.wait(PERIOD_S):
        try:
            if plane.wants_tick():
                engine.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, _Tick()))
        except Exception:  # without the timer pins would be held for ever in an idle engine
            log.exception("tidegate: a fault in the timer; it goes on")
