"""Curves of what was measured."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_collectors.engine.fitting import (
    MAX_SAMPLES,
    MIN_REBUILDS,
    PRIOR_REBUILD,
    SHOWN_SAMPLES,
    Calibrator,
    Curve,
    breakeven_tokens,
)

BYTES = 512


def calibrated(a0: float, a1: float, a2: float, noise: float = 0.0) -> Calibrator:
    calibrator, rng = Calibrator(BYTES), random.Random(1)
    for tokens in range(100, 2100, 100):
        calibrator.add_rebuild(tokens, (a0 + a1 * tokens + a2 * tokens**2) * (1 + noise * rng.uniform(-1, 1)))
    return calibrator


def test_nothing_measured_is_said_to_be_assumed() -> None:
    found = Calibrator(BYTES).fit()

    assert found.rebuild == PRIOR_REBUILD and found.rebuild.source == "prior"
    assert found.breakeven_tokens is None


def test_few_samples_are_not_believed() -> None:
    calibrator = Calibrator(BYTES)
    for tokens in range(1, MIN_REBUILDS):
        calibrator.add_rebuild(tokens, tokens * 1e-3)
    assert calibrator.fit().rebuild.source == "prior"
    for _ in range(20):
        calibrator.add_rebuild(MIN_REBUILDS, MIN_REBUILDS * 1e-3)
    assert calibrator.fit().rebuild.source == "measured"


def test_the_coefficients_come_back() -> None:
    curve = calibrated(2e-3, 45e-6, 1.2e-9).fit().rebuild

    assert (curve.a0_s, curve.a1_s, curve.a2_s) == pytest.approx((2e-3, 45e-6, 1.2e-9), rel=1e-6)
    assert curve.r2 == pytest.approx(1.0)
    assert calibrated(2e-3, 45e-6, 1.2e-9, noise=0.05).fit().rebuild.r2 > 0.95


def test_no_coefficient_is_negative() -> None:
    bent = calibrated(1e-3, 100e-6, -1e-8).fit().rebuild

    assert bent.a2_s == 0.0 and bent.a1_s > 0.0 and bent.a0_s >= 0.0


def test_bytes_are_fitted_as_well_as_tokens() -> None:
    calibrator = Calibrator(BYTES)
    for size in range(1, 11):
        calibrator.add_restore(size * 10**9, 1e-3 + size * 10**9 / 30e9)
        calibrator.add_save(size * 10**9, 2e-3 + size * 10**9 / 20e9, 0.25 * (2e-3 + size * 10**9 / 20e9))
    found = calibrator.fit()

    assert found.restore.a0_s == pytest.approx(1e-3, rel=1e-3)
    assert 1 / found.restore.a1_s == pytest.approx(30e9, rel=1e-6)
    assert found.overlap == pytest.approx(0.75)
    assert found.save_s(10**9) == pytest.approx(0.25 * (2e-3 + 0.05), rel=1e-6)


def test_the_break_even_is_where_the_curves_meet() -> None:
    # AgentKV-OS: 13.6 tokens at 45 us a token, 4.479 us a token to restore and a constant of 0.55 ms.
    rebuild = Curve(a0_s=0.0, a1_s=45e-6)
    restore = Curve(a0_s=0.551e-3, a1_s=4.479e-6 / BYTES)
    assert breakeven_tokens(rebuild, restore, BYTES) == pytest.approx(13.6, abs=0.05)

    assert breakeven_tokens(rebuild, Curve(a0_s=1.0, a1_s=1.0), BYTES) is None
    assert breakeven_tokens(Curve(a0_s=1.0, a1_s=1.0), Curve(a0_s=0.0, a1_s=0.0), BYTES) == 0.0
    curved = Curve(a0_s=9e-3, a1_s=0.0, a2_s=1.7e-8)  # measured on the CPU backend: the rebuild is above it everywhere
    assert breakeven_tokens(curved, Curve(a0_s=0.0, a1_s=3.6e-10), BYTES) == 0.0


@settings(deadline=None)
@given(st.floats(1e-5, 1e-2), st.floats(1e-7, 1e-4), st.floats(0, 1e-8), st.floats(1e-5, 1), st.floats(1e-12, 1e-7))
def test_beyond_the_break_even_a_restore_is_faster(a0: float, a1: float, a2: float, t0: float, per: float) -> None:
    rebuild, restore = Curve(a0_s=a0, a1_s=a1, a2_s=a2), Curve(a0_s=t0, a1_s=per)
    found = breakeven_tokens(rebuild, restore, BYTES)

    if found is not None:
        beyond = found * 1.01 + 1
        assert rebuild.seconds(beyond) >= restore.seconds(beyond * BYTES) * (1 - 1e-9)
        if found > 2:
            assert rebuild.seconds(found * 0.99 - 1) <= restore.seconds((found * 0.99 - 1) * BYTES) * (1 + 1e-9)


def test_a_rebuild_behind_what_is_kept_costs_the_rest() -> None:
    found = calibrated(0.0, 50e-6, 0.0).fit()

    assert found.rebuild_s(1000, 400) == pytest.approx(600 * 50e-6)
    assert found.rebuild_s(400, 1000) == 0.0
    assert found.rebuild_s(0) == 0.0


def test_samples_are_bounded_and_the_newest_are_shown() -> None:
    calibrator = Calibrator(BYTES)
    for index in range(3 * MAX_SAMPLES):
        calibrator.add_rebuild(index + 1, 1.0)
    calibrator.add_rebuild(0, 1.0)
    calibrator.add_restore(5, -1.0)

    shown = calibrator.samples()
    assert len(calibrator.rebuilds) == MAX_SAMPLES and len(shown["rebuild"]) == SHOWN_SAMPLES
    assert shown["rebuild"][-1] == [3 * MAX_SAMPLES, 1.0] and shown["restore"] == []
