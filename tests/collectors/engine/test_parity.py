"""Recorded decisions come out the same, and what was tampered with is found."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.decisions import decision
from tidegate_collectors.engine.parity import Parity, canonical_line, compare
from tidegate_collectors.records import KvDecision, decode, encode

FORTY_SHA256 = "223aab29dd4dd11e207eeb4a5f18863d2311deb8a7782e63573802b014a2269d"


def recorded(seq: int) -> KvDecision:
    """As it is read from a recording."""
    found = decode(encode(decision(seq)))
    assert isinstance(found, KvDecision)
    return found


def test_what_was_recorded_comes_out_the_same() -> None:
    parity = Parity()
    actions = set()
    for seq in range(500):
        record = recorded(seq)
        actions.add(record.action)
        assert parity.take(record)

    assert (parity.count, parity.mismatches, parity.first) == (500, 0, None)
    assert actions == {"KEEP", "PIN", "OFFLOAD", "DROP"}


def test_the_hash_is_the_same_on_every_machine() -> None:
    parity = Parity()
    for seq in range(40):
        parity.take(recorded(seq))

    assert parity.sha256() == FORTY_SHA256


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"action": "OFFLOAD"}, "action"),
        ({"costs": {"keep_s": 1.0}}, "drop_s"),
        ({"margin_s": 0.123}, "margin_s"),
        ({"inputs": {"rule": "four-state"}}, "inputs"),
        ({"inputs": {}}, "inputs"),
        ({"inputs": {"rule": "four-state", "boundary": "call", "p_evict": "high"}}, "inputs"),
    ],
)
def test_what_differs_is_named(change: dict[str, Any], what: str) -> None:
    record = next(record for record in map(recorded, range(100)) if record.action == "KEEP")
    found = compare(msgspec.structs.replace(record, **change))

    assert found is not None
    assert (found.seq, found.session, found.what) == (record.seq, "s", what)


def test_the_last_digit_counts() -> None:
    record = recorded(3)
    changed = msgspec.structs.replace(record, costs={**record.costs, "keep_s": record.costs["keep_s"] + 2**-54})

    found = compare(changed)
    assert found is not None and found.what == "keep_s" and found.recorded != found.again
    assert canonical_line(changed) == canonical_line(record)  # the line is of inputs and action


def test_an_overridden_action_is_no_mismatch_but_its_costs_are_checked() -> None:
    record = msgspec.structs.replace(recorded(1), action="DROP", overridden_by="request", ttl_s=9.0)

    assert compare(record) is None
    assert compare(msgspec.structs.replace(record, costs={})) is not None
