"""Numbers of batches."""

from __future__ import annotations

from tidegate_collectors.engine.stock.sequence import Sequence


def test_one_after_the_other() -> None:
    sequence = Sequence()
    assert sequence.judge(7, 1.0) == "next"
    sequence.took(7, 1.0)

    assert sequence.judge(8, 2.0) == "next"
    assert sequence.judge(10, 2.0) == "gap"


def test_what_comes_late_or_twice_is_old_and_what_is_newer_is_a_restart() -> None:
    sequence = Sequence()
    for seq in range(5):
        sequence.took(seq, 100.0 + seq)

    assert sequence.judge(2, 102.0) == "old"
    assert sequence.judge(4, 104.0) == "old"
    assert sequence.judge(0, 109.0) == "restart"


def test_giving_up_counts_what_is_missing() -> None:
    sequence = Sequence()
    sequence.took(3, 1.0)

    assert sequence.skip_to(9) == 5
    assert sequence.skip_to(9) == 0
    assert sequence.judge(9, 2.0) == "next"
