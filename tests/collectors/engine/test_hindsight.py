"""What would have been best."""

from __future__ import annotations

import pytest

from tidegate_collectors.engine.decision import Action, Inputs, PinOption
from tidegate_collectors.engine.hindsight import hindsight

INPUTS = Inputs(
    rule="four-state", boundary="call", can_offload=True, rebuild_s=1.0, restore_s=0.1, save_s=0.05,
    pins=[PinOption(2.0, 0.5, 0.01), PinOption(10.0, 0.1, 0.3)],
)  # fmt: skip


@pytest.mark.parametrize(
    ("action", "gap_s", "reach_s", "best", "regret_s"),
    [
        ("KEEP", 1.0, None, "KEEP", 0.0),  # nothing was evicted: doing nothing was right
        ("OFFLOAD", 1.0, None, "KEEP", 0.05),  # the copy was for nothing
        ("KEEP", 1.0, 0.5, "PIN", 0.99),  # a short pin would have saved the rebuild
        ("KEEP", 5.0, 0.5, "OFFLOAD", 0.85),  # a pin long enough would have cost others more than a copy
        ("DROP", 1.0, None, "KEEP", 1.0),
        ("KEEP", 60.0, 0.5, "OFFLOAD", 0.85),
    ],
)
def test_the_best_action_and_the_regret(
    action: Action, gap_s: float, reach_s: float | None, best: Action, regret_s: float
) -> None:
    found, found_s = hindsight(INPUTS, action, gap_s=gap_s, reach_s=reach_s)
    assert found == best
    assert found_s == pytest.approx(regret_s)
