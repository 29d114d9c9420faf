"""The vLLM plugin: decides at the end of every turn what becomes of the session's KV blocks, and tells of it.

vLLM loads :func:`register` through its ``vllm.general_plugins`` entry points; the scheduler is named on its command
line (TidegateAsyncScheduler where it schedules asynchronously)::

    --scheduler-cls tidegate_collectors.engine.plugin.TidegateScheduler

In a vLLM that this plugin does not know both names are the stock schedulers, and the log says why.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Called by vLLM in each of its processes; never raises."""
    from tidegate_collectors.engine.plugin import idle

    idle.install()


def __getattr__(name: str) -> Any:
    # Processes of vLLM that never schedule must not load the scheduler for us.
    if name in ("TidegateScheduler", "TidegateAsyncScheduler"):
        from tidegate_collectors.engine.plugin import scheduler

        return getattr(scheduler, name)
    raise AttributeError(name)
