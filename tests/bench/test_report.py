"""The shape of a bench's report. The benches themselves are measurements, not tests."""

from __future__ import annotations

import json
import math

import pytest

from bench._report import Report, percentile


def report(**changes: object) -> Report:
    fields: dict[str, object] = {
        "bench": "startup",
        "value": 1.5,
        "unit": "s",
        "reference_name": "hello world",
        "reference_value": 0.5,
        "runs": 5,
    }
    return Report(**(fields | changes))  # type: ignore[arg-type]


def test_line_is_one_json_object_with_the_agreed_keys() -> None:
    line = report(details={"all": [1.0, 2]}).line()

    assert "\n" not in line
    assert json.loads(line) == {
        "bench": "startup",
        "value": 1.5,
        "unit": "s",
        "reference": {"name": "hello world", "value": 0.5},
        "ratio": 3.0,
        "runs": 5,
        "details": {"all": [1.0, 2]},
    }


def test_given_ratio_wins() -> None:
    assert json.loads(report(ratio=0.25).line())["ratio"] == 0.25


def test_no_ratio_to_a_reference_of_zero() -> None:
    assert json.loads(report(reference_value=0.0).line())["ratio"] is None


def test_not_finite_numbers_are_null_also_deep_inside() -> None:
    line = report(value=math.nan, details={"deep": {"list": [math.inf, 1.0]}}).line()

    read = json.loads(line)
    assert read["value"] is None
    assert read["details"] == {"deep": {"list": [None, 1.0]}}


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5.0], 99, 5.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([float(n) for n in range(1, 101)], 99, 99.0),
        ([float(n) for n in range(1, 101)], 100, 100.0),
        ([float(n) for n in range(1, 101)], 0, 1.0),
        ([1.0, 2.0], 51, 2.0),
    ],
)
def test_percentile_is_a_measured_value(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 101), ([1.0], -1)])
def test_percentile_refuses_what_has_no_answer(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match=r"no values|no percentage"):
        percentile(values, percent)
