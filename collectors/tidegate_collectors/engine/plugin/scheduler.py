"""vLLM's schedulers with the plane on board: what is extended tells the plane, and calls vLLM's own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm import __version__ as vllm_version
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from tidegate_collectors.engine.plugin.plane import Plane, attach
from tidegate_collectors.engine.plugin.versions import refusal

log = logging.getLogger("vllm.tidegate")


class _Mixin:
    """Between a class of vLLM's and its user: tells the plane what happens."""

    tidegate: Plane | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tidegate = attach(self)

    def add_request(self, request: Any) -> Any:
        if self.tidegate is not None:
            self.tidegate.guarded(self.tidegate.arrived, request)
        return super().add_request(request)  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        plane = self.tidegate
        if plane is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        plane.guarded(plane.before_step)
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        plane.guarded(plane.after_schedule, output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        result = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if self.tidegate is not None:
            self.tidegate.guarded(self.tidegate.after_output)
        return result

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        stats = super().make_stats(*args, **kwargs)  # type: ignore[misc]
        if self.tidegate is not None:
            self.tidegate.guarded(self.tidegate.looked_up, stats)
        return stats

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        plane = self.tidegate
        if plane is not None:
            plane.guarded(plane.before_free, request)
        result = super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
        if plane is not None:
            plane.guarded(plane.preempted, request)
        return result

    def _free_blocks(self, request: Any) -> Any:
        plane = self.tidegate
        if plane is not None:
            plane.guarded(plane.before_free, request)
        result = super()._free_blocks(request)  # type: ignore[misc]
        if plane is not None:
            plane.guarded(plane.finished, request)
        return result

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        plane = self.tidegate
        if plane is not None:
            plane.guarded(plane.before_reset)
        result = super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]
        if plane is not None:
            plane.guarded(plane.after_reset)
        return result

    def shutdown(self) -> Any:
        if self.tidegate is not None:
            self.tidegate.close()
        return super().shutdown()  # type: ignore[misc]


if TYPE_CHECKING or not (_reason := refusal(vllm_version)):

    class TidegateScheduler(_Mixin, Scheduler):
        """vLLM's scheduler, watched and, in mode enforce, steered."""

    class TidegateAsyncScheduler(_Mixin, AsyncScheduler):
        """The same for asynchronous scheduling."""

else:
    log.warning("tidegate: the plugin does not load, the engine runs as without it: %s", _reason)
    TidegateScheduler, TidegateAsyncScheduler = Scheduler, AsyncScheduler
