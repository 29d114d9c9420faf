"""The one shape in which a bench reports, and the few statistics that benches need."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a bench measured.

    ``reference_value`` has the unit of ``value``; ``ratio`` is value over reference unless it is given. ``runs`` is the
    number of single measurements behind ``value``.
    """

    bench: str
    value: float
    unit: str
    reference_name: str
    reference_value: float
    runs: int
    ratio: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """The JSON object, on one line. Numbers that are not finite become null: JSON has no NaN."""
        ratio = self.ratio
        if ratio is None and self.reference_value:
            ratio = self.value / self.reference_value
        return json.dumps(
            {
                "bench": self.bench,
                "value": _clean(self.value),
                "unit": self.unit,
                "reference": {"name": self.reference_name, "value": _clean(self.reference_value)},
                "ratio": _clean(ratio),
                "runs": self.runs,
                "details": _clean(dict(self.details)),
            },
            allow_nan=False,
        )


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` % of the values do not exceed (nearest rank, so always one that was measured).

    Raises:
        ValueError: there are no values, or ``percent`` is not within 0 and 100.
    """
    if not values:
        raise ValueError("no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is no percentage")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def arguments(bench: str, description: str | None) -> argparse.Namespace:
    """The command line that all benches share: ``full`` (bool)."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{bench}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="more runs; may take several minutes")
    return parser.parse_args()


def progress(text: str) -> None:
    """A line for the person who waits, on standard error: standard output ends with the report."""
    print(text, file=sys.stderr, flush=True)
