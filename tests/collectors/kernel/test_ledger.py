"""Numbers of calls over restarts: some may be skipped, none comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_collectors.kernel.ledger import BLOCK, CallLedger


def test_a_session_that_ended_goes_on_exactly(tmp_path: Path) -> None:
    ledger = CallLedger(tmp_path / "l")
    assert ledger.begin("s1") == 1
    ledger.finish("s1", 8)
    assert ledger.begin("s1") == 8
    assert ledger.begin("s2") == 1
    assert CallLedger(tmp_path / "l").begin("s1") > 8, "it is open in the other one"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=6))
def test_a_killed_collector_never_repeats_a_number(tmp_path_factory: pytest.TempPathFactory, uses: list[int]) -> None:
    directory = tmp_path_factory.mktemp("ledger")
    used: list[int] = []
    for count in uses:
        ledger = CallLedger(directory)  # the one before was killed: it finished nothing
        number = ledger.begin("s")
        for _ in range(count):
            used.append(number)
            number += 1
            ledger.ensure("s", number)
    assert len(used) == len(set(used))


def test_an_unreadable_entry_and_a_bad_name(tmp_path: Path) -> None:
    ledger = CallLedger(tmp_path)
    (tmp_path / "s").write_text("nonsense")
    assert ledger.begin("s") == 1
    with pytest.raises(ValueError, match="is refused"):
        ledger.begin("../s")
