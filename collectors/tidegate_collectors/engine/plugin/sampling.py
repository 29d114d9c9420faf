"""When the engine's figures are told: once a second while it works, and once more when it has become idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidegate_collectors.engine.plugin import telling
from tidegate_collectors.engine.plugin.accounts import Accounts
from tidegate_collectors.engine.plugin.counters import Counters
from tidegate_collectors.engine.plugin.host_tier_offload import Offloading
from tidegate_collectors.engine.plugin.measuring import Measuring
from tidegate_collectors.engine.plugin.sender import Sender
from tidegate_collectors.engine.plugin.turns import Turn

_SAMPLE_S: Final = 1.0
_IDLE_SAMPLE_S: Final = 0.25
"""The last sample before the engine is idle comes sooner: nothing would say for a long time that it is."""


class Sampler:
    """Of one engine.

    Attributes:
        stepped: something has changed since the last sample. Another thread may read it.
    """

    def __init__(
        self, scheduler: Any, engine: str, accounts: Accounts, counters: Counters, measuring: Measuring,
        turns: Mapping[str, Turn], offloading: Offloading, link: Callable[[], Sender],
    ) -> None:  # fmt: skip
        self._scheduler = scheduler
        self._engine = engine
        self._accounts = accounts
        self._counters = counters
        self._measuring = measuring
        self._turns = turns
        self._offloading = offloading
        self._link = link
        self._sampled_s = 0.0
        self.stepped = False

    def sample_if_due(self, *, follows: bool) -> None:
        """Tell what the engine is like now, if that was not told just before.

        Args:
            follows: sessions are followed.
        """
        now_s = time.monotonic()
        idle = not self._scheduler.running and not self._turns
        if now_s - self._sampled_s < (_IDLE_SAMPLE_S if idle and self.stepped else _SAMPLE_S):
            return
        if idle:
            self.stepped = False
        self._sampled_s = now_s
        accounts = self._accounts
        accounts.settle()
        for turn in self._turns.values():
            if turn.began_s is not None:
                accounts.grows(accounts.table.touch(turn.session), turn)
        calibration = self._measuring.due(self._engine, telling.now_us(), now_s)
        if calibration is not None:
            self._link().send(calibration)
        sessions = len(accounts.table) if follows else None
        sample = telling.sample(self._engine, self._scheduler, accounts.pool, self._counters, sessions)
        sample.host_used_bytes, sample.host_total_bytes = self._offloading.used_bytes(), self._offloading.total_bytes()
        self._link().send(sample)

    def soon(self) -> None:
        """The next look finds a sample due."""
        self._sampled_s, self.stepped = 0.0, True
