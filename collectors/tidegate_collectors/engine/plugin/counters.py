"""What the engine did since the plugin began, in figures. A figure that nobody can know here is None, never 0."""

from __future__ import annotations

from typing import Any


class Counters:
    """Cumulative counters of one engine. Tokens looked up and found are vLLM's own figures, where it keeps any.

    Attributes:
        recomputed_tokens: None while no session is followed.
        own_us: time that the plugin took inside the engine.
    """

    def __init__(self, scheduler: Any, *, follows: bool) -> None:
        self._scheduler = scheduler
        self.prefix_queries_tokens: int | None = None
        self.prefix_hits_tokens: int | None = None
        self.external_queries_tokens: int | None = None
        self.external_hits_tokens: int | None = None
        self.recomputed_tokens: int | None = 0 if follows else None
        self.prompt_tokens = 0
        self.preemptions = 0
        self.steps = 0
        self.own_us = 0.0
        self._finished_output_tokens = 0
        self._longest_step_s: float | None = None
        self._began_s: float | None = None

    def looked_up(self, stats: Any) -> None:
        """What vLLM says of the cache since it last said so; None: it keeps no statistics."""
        if stats is None:
            return
        device, host = stats.prefix_cache_stats, getattr(stats, "connector_prefix_cache_stats", None)
        if device is not None:
            self.prefix_queries_tokens = (self.prefix_queries_tokens or 0) + int(device.queries)
            self.prefix_hits_tokens = (self.prefix_hits_tokens or 0) + int(device.hits)
        if host is not None:
            self.external_queries_tokens = (self.external_queries_tokens or 0) + int(host.queries)
            self.external_hits_tokens = (self.external_hits_tokens or 0) + int(host.hits)

    def planned(self, output: Any, now_s: float, *, overlapping: bool) -> None:
        """A step was planned; of overlapping ones nobody can tell how long each takes."""
        self.steps += 1
        self._began_s = None if overlapping or not output.total_num_scheduled_tokens else now_s
        for new in output.scheduled_new_reqs:
            request = self._scheduler.requests.get(new.req_id)
            if request is not None and not request.num_preemptions:  # one that was preempted may be told as new again
                self.prompt_tokens += int(request.num_prompt_tokens)

    def over(self, now_s: float) -> None:
        """It is over."""
        if self._began_s is not None:
            self._longest_step_s = max(self._longest_step_s or 0.0, now_s - self._began_s)
            self._began_s = None

    def finished(self, request: Any) -> None:
        """A request is over."""
        self._finished_output_tokens += int(request.num_output_tokens)

    def recomputed(self, tokens: int) -> None:
        """Tokens were computed again that a session had had."""
        if self.recomputed_tokens is not None:
            self.recomputed_tokens += tokens

    def output_tokens(self) -> int:
        """Of all requests, those that run still among them."""
        running = sum(int(request.num_output_tokens) for request in self._scheduler.requests.values())
        return self._finished_output_tokens + running

    def longest_step_us(self) -> int | None:
        """The longest step since this was asked last."""
        longest_s, self._longest_step_s = self._longest_step_s, None
        return None if longest_s is None else round(longest_s * 1e6)
