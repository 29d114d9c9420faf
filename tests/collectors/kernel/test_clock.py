"""The monotonic clock in UTC."""

from __future__ import annotations

import time

from tidegate_collectors.kernel.clock import Clock


class Clocks:
    """Two clocks that a test turns; each reading takes ``cost_ns``."""

    def __init__(self) -> None:
        self.now = 5_000_000_000
        self.ahead = 1_796_000_000_000_000_000
        self.cost_ns = 100
        self.costs: list[int] = []

    def monotonic_ns(self) -> int:
        self.now += self.costs.pop(0) if self.costs else self.cost_ns
        return self.now

    def wall_ns(self) -> int:
        self.now += self.cost_ns
        return self.now + self.ahead


def test_real_clocks_agree_with_the_wall_clock() -> None:
    clock = Clock()
    before = time.time_ns() // 1000
    converted = clock.utc_us(time.monotonic_ns())
    after = time.time_ns() // 1000
    slack_us = clock.error_ns // 1000 + 50
    assert before - slack_us <= converted <= after + slack_us
    assert clock.error_ns < 1_000_000


def test_the_tightest_bracket_wins() -> None:
    clocks = Clocks()
    clocks.costs = [0, 9_000_000, 0, 200, 0, 7_000_000]
    clock = Clock(clocks.monotonic_ns, clocks.wall_ns)
    assert clock.error_ns <= 150
    assert abs(clock.offset_ns - clocks.ahead) <= 150


def test_slewing_is_followed_and_is_no_step() -> None:
    clocks = Clocks()
    clock = Clock(clocks.monotonic_ns, clocks.wall_ns)
    clocks.now += 60_000_000_000
    clocks.ahead += 30_000_000  # 500 us a second for a minute
    assert not clock.refresh()
    assert abs(clock.offset_ns - clocks.ahead) < 1_000
    assert clock.steps == 0


def test_a_set_clock_is_a_step() -> None:
    clocks = Clocks()
    clock = Clock(clocks.monotonic_ns, clocks.wall_ns)
    clocks.now += 2_000_000_000
    clocks.ahead -= 3_600_000_000_000
    assert clock.refresh()
    assert clock.steps == 1
    assert abs(clock.last_step_us + 3_600_000_000) <= 1


def test_it_measures_at_most_once_a_second() -> None:
    clocks = Clocks()
    clock = Clock(clocks.monotonic_ns, clocks.wall_ns)
    clocks.ahead += 50_000_000
    assert not clock.refresh()
    clocks.now += 1_000_000_000
    assert clock.refresh()
