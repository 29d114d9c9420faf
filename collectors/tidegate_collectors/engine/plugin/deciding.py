"""From the engine as it stands to the inputs of a decision, and the decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tidegate_collectors.engine import costs
from tidegate_collectors.engine.costs import PoolView
from tidegate_collectors.engine.decision import Action, Boundary, Inputs, decide, told_costs
from tidegate_collectors.engine.durations import Durations, Prediction, Returns
from tidegate_collectors.engine.fitting import Calibration
from tidegate_collectors.engine.plugin.host_tier_view import HostView
from tidegate_collectors.engine.plugin.pool import PoolWatch
from tidegate_collectors.engine.plugin.residency import Session, Waiting
from tidegate_collectors.engine.plugin.settings import Settings
from tidegate_collectors.engine.plugin.telling import Queue
from tidegate_collectors.engine.plugin.turns import Turn

ACTIONS: Final[tuple[Action, ...]] = ("KEEP", "PIN", "OFFLOAD", "DROP")
_SMOOTHING: Final = 0.1
_MOST_TOOLS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A decision with what it was made of.

    ``reach_s``: when allocation reaches the blocks, None: never. ``rule_action``: what the rule chose, where it was
    overridden.
    """

    action: Action
    inputs: Inputs
    costs: dict[str, float]
    margin_s: float | None
    ttl_s: float | None
    predicted: dict[str, Any]
    overridden_by: str | None
    rule_action: Action | None
    reach_s: float | None


class Decider:
    """Learns from sessions that come back, and decides for those that wait.

    Args:
        settings: of the plugin.
        block_tokens: tokens in a block.
    """

    def __init__(self, settings: Settings, block_tokens: int) -> None:
        self._settings = settings
        self._block_tokens = block_tokens
        self.durations = Durations()
        self.returns = Returns()
        self._queue_s = 0.0
        self._demand_tokens = 0.0
        self._lengths: dict[str, tuple[Prediction, list[tuple[float, float]]]] = {}

    def came_back(self, waiting: Waiting, now_s: float) -> None:
        """A session that waited has sent its next request."""
        self.durations.learn(waiting.tool, now_s - waiting.ended_s)
        self.returns.learn(waiting.boundary, True)

    def gave_up(self, waiting: Waiting) -> None:
        """A session that waited is not waited for any more."""
        self.returns.learn(waiting.boundary, False)

    def queued(self, turn: Turn, prompt_tokens: int) -> None:
        """A request began, after a wait."""
        queue_us = turn.queue_us() or 0
        self._queue_s += _SMOOTHING * (queue_us / 1e6 - self._queue_s)
        self._demand_tokens += _SMOOTHING * (prompt_tokens - self._demand_tokens)

    def decide(
        self, session: Session, tool: str | None, extra: dict[str, Any], pool: PoolWatch, room: int, queue: Queue,
        calibration: Calibration, host: HostView | None = None,
    ) -> Taken:  # fmt: skip
        """Decide for a session whose turn has just ended and whose blocks are the most recently used."""
        inputs, predicted, reach_s = self._inputs(session, tool, extra, pool, room, queue, calibration, host)
        decision = decide(inputs)
        action, ttl_s, overridden_by = decision.action, decision.ttl_s, None
        asked = extra.get("kv_action")
        if asked in ACTIONS:
            action, overridden_by, ttl_s = asked, "request", None
            if action == "PIN":
                ttl_s = _seconds(extra.get("kv_ttl_s"), self._settings.ttl_s, self._settings.max_ttl_s)
        if action == "OFFLOAD" and not inputs.can_offload:
            action, overridden_by = "KEEP", "no-tier" if host is None else "host-full"
        elif action == "PIN" and not room:
            action, overridden_by, ttl_s = "KEEP", "cap", None
        elif action == "PIN" and not ttl_s:  # a request that asks for no time at all
            action, ttl_s = "KEEP", None
        return Taken(
            action=action, inputs=inputs, costs=told_costs(inputs, decision.costs), margin_s=decision.margin_s,
            ttl_s=ttl_s, predicted=predicted, overridden_by=overridden_by,
            rule_action=decision.action if overridden_by is not None else None, reach_s=reach_s,
        )  # fmt: skip

    def _pin_lengths(self, tool: str, prediction: Prediction) -> list[tuple[float, float]]:
        """Lengths of pins to choose from: the same as long as the prediction is the same."""
        known = self._lengths.get(tool)
        if known is None or known[0] is not prediction:
            if len(self._lengths) >= _MOST_TOOLS:
                self._lengths.clear()
            known = self._lengths[tool] = prediction, costs.pin_lengths(prediction.points, self._settings.max_ttl_s)
        return known[1]

    def _inputs(
        self,
        session: Session,
        tool: str | None,
        extra: dict[str, Any],
        pool: PoolWatch,
        room: int,
        queue: Queue,
        calibration: Calibration,
        host: HostView | None,
    ) -> tuple[Inputs, dict[str, Any], float | None]:
        settings, block_tokens = self._settings, self._block_tokens
        terminal = str(extra.get("kv_last", "")).lower() in ("1", "1.0", "true")
        boundary: Boundary = "terminal" if terminal else "call" if tool else "turn_end"
        continuum = settings.rule == "ttl-star"
        prediction = self.durations.predict(tool or "", continuum=continuum)
        blocks = len(session.prompt)
        tokens = blocks * block_tokens
        view = PoolView(
            free_tokens=0,
            ahead_tokens=max(0, pool.free_blocks() - blocks) * block_tokens,
            others_tokens=max(0, pool.free_blocks() - blocks) * block_tokens,
            alloc_tokens_per_s=pool.blocks_per_s() * block_tokens,
            waiting=queue.waiting,
            demand_tokens=queue.demand_tokens or self._demand_tokens,
            queue_s=self._queue_s,
            others_return=self.returns.probability("call"),
            running_tokens=queue.running_tokens,
        )
        inputs = Inputs(
            rule=settings.rule, boundary=boundary, terminal=terminal, can_pin=room >= blocks,
            can_offload=host is not None and tokens <= host.total_tokens, reusable_tokens=tokens,
            unsaved_tokens=tokens if host is None else host.unsaved_tokens, p_return=self.returns.probability(boundary),
            p_evict=costs.p_evict(prediction.points, view), rebuild_s=calibration.rebuild_s(tokens),
            p_host=1.0 if host is None else host.p_host(prediction.points),
            restore_s=0.0 if host is None else calibration.restore_s(tokens * host.bytes_per_token),
            save_s=0.0 if host is None else calibration.save_s(host.unsaved_tokens * host.bytes_per_token),
            free_value_s=costs.free_value_s(view, tokens),
            pins=costs.pin_options(
                self._pin_lengths(tool or "", prediction), prediction.points, view, tokens, calibration.rebuild_s
            ),
            gaps=prediction.points if continuum else [], fixed_ttl_s=settings.ttl_s, queue_s=self._queue_s,
            tool=tool or "", tool_samples=prediction.n if prediction.source == "tool" else 0,
            gap_source=prediction.source,
        )  # fmt: skip
        predicted = {
            "p50_s": prediction.p50_s, "p90_s": prediction.p90_s, "n": prediction.n, "source": prediction.source
        }  # fmt: skip
        return inputs, predicted, costs.reach_s(view)


def _seconds(value: Any, default: float, most: float) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return default
    return min(max(seconds, 0.0), most) if seconds == seconds else default
