"""Taking recorded decisions again: the same inputs must give the same decision on every machine. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec import Struct

from tidegate_collectors.engine.decision import Decision, Inputs, decide, told_costs
from tidegate_collectors.records import KvDecision


class Mismatch(Struct, frozen=True, kw_only=True):
    """A decision that came out otherwise. ``what``: the field that differs, or why it could not be taken again."""

    seq: int
    session: str
    what: str
    recorded: str
    again: str


class Parity:
    """Takes decisions again, one after the other.

    Attributes:
        count: decisions so far.
        mismatches: how many differ.
        first: the first that does.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mismatches = 0
        self.first: Mismatch | None = None
        self._hash = hashlib.sha256()

    def take(self, record: KvDecision) -> bool:
        """Take a recorded decision again; whether it is the same."""
        self.count += 1
        self._hash.update(canonical_line(record) + b"\n")
        found = compare(record)
        if found is not None:
            self.mismatches += 1
            self.first = self.first or found
        return found is None

    def sha256(self) -> str:
        """Over the canonical lines so far."""
        return self._hash.hexdigest()


def inputs_of(record: KvDecision) -> Inputs:
    """The inputs of a recorded decision.

    Raises:
        msgspec.ValidationError: they are not those of a decision.
    """
    return msgspec.convert(record.inputs, Inputs)


def redecide(record: KvDecision) -> Decision:
    """The decision that the recorded inputs give. Raises msgspec.ValidationError."""
    return decide(inputs_of(record))


def compare(record: KvDecision) -> Mismatch | None:
    """What differs when a decision is taken again; an overridden one is compared in its costs alone."""

    def differs(what: str, recorded: Any, again: Any) -> Mismatch:
        return Mismatch(
            seq=record.seq, session=record.session or "", what=what, recorded=_text(recorded), again=_text(again)
        )

    try:
        again = redecide(record)
    except (msgspec.ValidationError, OverflowError) as error:
        return differs("inputs", str(error), "")
    costs = msgspec.structs.asdict(again.costs)
    told = told_costs(inputs_of(record), again.costs)
    for name in sorted(told.keys() | record.costs.keys()):
        recorded, cost = record.costs.get(name), costs.get(name)
        if recorded is None or cost is None or _text(float(recorded)) != _text(float(cost)):
            return differs(name, recorded, cost)
    if record.overridden_by is not None:
        if record.rule_action is not None and record.rule_action != again.action:
            return differs("rule_action", record.rule_action, again.action)
        return None
    for name in ("action", "margin_s", "ttl_s"):
        if _text(getattr(record, name)) != _text(getattr(again, name)):
            return differs(name, getattr(record, name), getattr(again, name))
    return None


def canonical_line(record: KvDecision) -> bytes:
    """``seq|session|turn|inputs|action``: inputs in a fixed order of keys, doubles in hexadecimal, to the bit."""
    inputs = "{" + ",".join(f"{key}:{_text(record.inputs[key])}" for key in sorted(record.inputs)) + "}"
    fields = (str(record.seq), record.session or "", record.turn or "", inputs, record.action)
    return "|".join(fields).encode("utf-8", "backslashreplace")


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return repr(value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{_text(value[key])}" for key in sorted(value, key=str)) + "}"
    return repr(value)
