"""What the fold remembers of inference engines and of sessions' KV blocks. Times in microseconds UTC, unless named."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from tidegate_collectors.records import EngineSample, KvCalibration

from .turn import Turns

KEPT_TURNS = 24
"""Turns of a session that are remembered one by one: those that run, and the newest that have ended."""
KEPT_GAPS = 64
"""Newest gaps that a tool's quantiles are made from."""


class TurnTotals(Struct, array_like=True, gc=False):
    """Sums over all turns of a session. Tokens that nobody counted are not in them."""

    total: int = 0
    prompt_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    recomputed_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    errors: int = 0
    engine: int = 0
    gateway: int = 0


class LastDecision(Struct, array_like=True, gc=False):
    """The decision that a session waits under, or waited under last."""

    src: str
    seq: int
    ord: int
    t_us: int
    action: str
    enforced: bool
    boundary: str
    rule: str
    tool: str | None
    overridden_by: str | None
    p50_s: float | None
    p90_s: float | None


class LastOutcome(Struct, array_like=True, gc=False):
    """What came of a decision."""

    t_us: int
    action: str | None
    returned: bool
    gap_us: int
    evicted: bool
    served_from: str
    hindsight_best: str | None
    regret_s: float | None


class Kv(Struct, array_like=True):
    """A session's blocks: ``blocks`` by state, as its last transition told; most of them are there ``since_us``."""

    engine: str
    t_us: int = -1
    blocks: dict[str, int] = field(default_factory=dict)
    shared_blocks: int | None = None
    since_us: int | None = None
    pinned_until_us: int | None = None
    last: LastDecision | None = None
    outcome: LastOutcome | None = None

    def main_state(self) -> str | None:
        """The state of most blocks; gone where the session has none any more, None where it never had."""
        held = {state: blocks for state, blocks in self.blocks.items() if blocks and state != "gone"} or self.blocks
        return max(held, key=lambda state: (held[state], state), default=None)

    def held(self) -> int:
        """Blocks that it has, on the device or the host."""
        return sum(blocks for state, blocks in self.blocks.items() if state != "gone")


class Inference(Struct, array_like=True):
    """What a session does with engines: its turns and its KV blocks."""

    turns: Turns = field(default_factory=lambda: Turns(KEPT_TURNS))
    totals: TurnTotals = field(default_factory=TurnTotals)
    kv: Kv | None = None
    ttft_us: int | None = None


class Tool(Struct, array_like=True):
    """How long a tool took: ``gaps_us`` are the newest, ``within`` counts those below the p90 that was expected."""

    n: int = 0
    within: int = 0
    expected: int = 0
    gaps_us: list[int] = field(default_factory=list)
    p50_s: float | None = None
    p90_s: float | None = None
    source: str = ""


class Decisions(Struct, array_like=True):
    """Decisions of an engine, counted."""

    total: int = 0
    enforced: int = 0
    overridden: int = 0
    by_action: dict[str, int] = field(default_factory=dict)


class Transfers(Struct, array_like=True, gc=False):
    """Copies between device and host, summed."""

    out_n: int = 0
    out_bytes: int = 0
    in_n: int = 0
    in_bytes: int = 0
    failed: int = 0


class Outcomes(Struct, array_like=True):
    """What came of an engine's decisions, summed."""

    n: int = 0
    returned: int = 0
    evicted: int = 0
    regret_s: float = 0.0
    by_served: dict[str, int] = field(default_factory=dict)


class Engine(Struct, array_like=True):
    """One inference engine, or one data-parallel rank of it. ``matrix``: (from, to, cause, transitions, blocks)."""

    engine: str
    src: str
    host: str
    name: str = ""
    version: str = ""
    plugin: bool = False
    pid: int | None = None
    model: str = ""
    modelled: bool = False
    max_tokens: int | None = None
    block_tokens: int | None = None
    pool_blocks: int | None = None
    kv_bytes_per_token: int | None = None
    host_tier_bytes: int | None = None
    mode: str = ""
    mode_reason: str = ""
    rule: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    started_us: int | None = None
    ended_us: int | None = None
    lost: bool = False
    last_t_us: int = 0
    sample: EngineSample | None = None
    calibration: KvCalibration | None = None
    tools: dict[str, Tool] = field(default_factory=dict)
    decisions: Decisions = field(default_factory=Decisions)
    matrix: dict[str, list[int]] = field(default_factory=dict)
    transfers: Transfers = field(default_factory=Transfers)
    outcomes: Outcomes = field(default_factory=Outcomes)
