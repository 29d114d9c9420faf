"""The host tier as a decision sees it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate_collectors.engine import costs


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """``ahead_tokens``: copies that would be given up before the session's; ``unsaved_tokens``: not in it yet."""

    total_tokens: int
    free_tokens: int
    ahead_tokens: int
    write_tokens_per_s: float
    unsaved_tokens: int
    bytes_per_token: float

    def p_host(self, gaps: costs.Gaps) -> float:
        """Probability that a copy written now is there still when the session returns."""
        return costs.p_host(
            gaps, free_tokens=self.free_tokens, ahead_tokens=self.ahead_tokens,
            write_tokens_per_s=self.write_tokens_per_s,
        )  # fmt: skip
