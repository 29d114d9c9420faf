"""What a definition is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Definition:
    """What one number or word on a page means.

    Attributes:
        key: stable name; pages carry it as ``data-def``.
        label: what the page calls it.
        meaning: one sentence for the operator.
        formula: how it is computed, in terms of records.
        unit: unit of the value as the API gives it; "" for words.
        source: record fields or files it comes from.
        is_not: what it is easily mistaken for.
    """

    key: str
    label: str
    meaning: str
    formula: str
    unit: str
    source: str
    is_not: str


def define(key: str, label: str, meaning: str, formula: str, unit: str, source: str, is_not: str) -> Definition:
    """A definition, its parts in the order of the page's columns."""
    return Definition(key, label, meaning, formula, unit, source, is_not)
