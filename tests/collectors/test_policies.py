from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate_collectors import policies
from tidegate_collectors.policies import PolicyDocument, PolicyError, Scope

GOOD: dict[str, Any] = {
    "id": "memory.soft-limit",
    "plane": "kernel",
    "version": 3,
    "mode": "enforce",
    "scope": {"sessions": ["s 1"], "priorities": ["low"]},
    "params": {"share": 0.8, "steps": [1, 2, 3], "label": "x", "off": None, "hard": True},
    "reason": "trying",
    "lease_s": 600.0,
}


def changed(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_a_document_comes_back_as_it_was() -> None:
    document = policies.decode(changed())
    assert document == PolicyDocument(
        id="memory.soft-limit",
        plane="kernel",
        version=3,
        mode="enforce",
        scope=Scope(sessions=["s 1"], priorities=["low"]),
        params={"share": 0.8, "steps": [1, 2, 3], "label": "x", "off": None, "hard": True},
        reason="trying",
        lease_s=600.0,
    )
    assert policies.decode(policies.encode(document)) == document


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": "../x"}, "id"),
        ({"id": ""}, "id"),
        ({"plane": "moon"}, "plane"),
        ({"version": 0}, "version"),
        ({"version": 1.5}, "version"),
        ({"mode": "Enforce"}, "mode"),
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": 1e9}, "lease_s"),
        ({"lease_s": -1}, "lease_s"),
        ({"reason": "x" * 1025}, "reason"),
        ({"params": {"deep": {"a": 1}}}, "params"),
        ({"params": {str(i): i for i in range(65)}}, "params"),
        ({"params": {"x": "y" * 257}}, "params"),
        ({"scope": {"cgroup": "/"}}, "scope"),
        ({"exec": "rm"}, "exec"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(PolicyError, match=field):
        policies.decode(changed(**changes))


def test_what_is_no_document_is_refused() -> None:
    for data in (b"", b"[]", b"{", b"\xff", b"{}"):
        with pytest.raises(PolicyError, match="not a policy document"):
            policies.decode(data)
    with pytest.raises(PolicyError, match="at most"):
        policies.decode(b" " * (policies.MAX_DOCUMENT_BYTES + 1))
