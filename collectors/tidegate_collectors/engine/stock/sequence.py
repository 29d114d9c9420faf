"""Numbers of batches: what comes next, what is missing, what was there already. Pure.

vLLM numbers batches from 0 when its engine starts.
"""

from __future__ import annotations

from typing import Final, Literal

Verdict = Literal["next", "gap", "old", "restart"]

_CLOCK_SLACK_S: Final = 0.001


class Sequence:
    """``expected``: number of the next batch; None while nothing is known."""

    def __init__(self) -> None:
        self.expected: int | None = None
        self._newest_s = float("-inf")

    def judge(self, seq: int, ts_s: float) -> Verdict:
        """What the batch with that number and time is. ``gap``: the ones from ``expected`` on are missing.

        A lower number is a batch that came late or twice, unless its time is later than that of all others: then the
        engine has begun anew.
        """
        if self.expected is None or seq == self.expected:
            return "next"
        if seq > self.expected:
            return "gap"
        return "restart" if ts_s > self._newest_s + _CLOCK_SLACK_S else "old"

    def took(self, seq: int, ts_s: float) -> None:
        """The batch was taken in."""
        self.expected = seq + 1
        self._newest_s = max(self._newest_s, ts_s)

    def skip_to(self, seq: int) -> int:
        """Give the missing ones up; returns how many they are."""
        missing = max(0, seq - (self.expected or 0))
        self.expected = max(seq, self.expected or 0)
        return missing

    def reset(self) -> None:
        """The engine has begun anew."""
        self.expected = None
        self._newest_s = float("-inf")
