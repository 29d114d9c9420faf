from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.analysis.engine_series import COLUMNS, MAX_REASONS, EngineSeries, choose, draw, running_total

S = 1_000_000
LARGEST = 2**63 - 1


def table(*samples: Mapping[str, float]) -> np.ndarray:
    """Samples with ``t`` in seconds (their ordinals by position), -1 for what they do not say."""
    rows = [
        [round(sample["t"] * S), sample.get("ord", n), *(sample.get(name, -1) for name in COLUMNS)]
        for n, sample in enumerate(samples, 1)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 2 + len(COLUMNS))


def chart(
    *samples: Mapping[str, float],
    span: tuple[int, int] = (0, 100),
    px: int = 100,
    until: int | None = None,
    reasons: list[dict[str, int]] | None = None,
) -> EngineSeries:
    until_us = None if until is None else until * S
    chosen = choose(table(*samples), span[0] * S, span[1] * S, px, until_us=until_us)
    return draw(chosen, reasons or [{}] * len(chosen.t_us))


def test_a_counter_that_falls_began_again_from_0() -> None:
    assert running_total(np.array([5, 9, 9, 2, 3])).tolist() == [0, 4, 4, 6, 7]
    unknown = running_total(np.array([-1, 5, -1, 8, 1]))
    assert [None if np.isnan(n) else n for n in unknown] == [None, 0, None, 3, 4]
    assert running_total(np.array([], dtype=np.int64)).tolist() == []
    assert running_total(np.array([LARGEST, 0, LARGEST, 0, LARGEST]))[-1] == pytest.approx(2.0 * LARGEST)


def test_rates_are_what_counters_grew_since_the_point_before() -> None:
    series = chart(
        {"t": 0, "prefix_queries_tokens": 100, "prefix_hits_tokens": 50, "external_hits_tokens": 0, "preemptions": 7},
        {"t": 1, "prefix_queries_tokens": 200, "prefix_hits_tokens": 110, "external_hits_tokens": 30, "preemptions": 7},
        {"t": 3, "prefix_queries_tokens": 300, "prefix_hits_tokens": 110, "external_hits_tokens": 30, "preemptions": 9},
        {"t": 4, "prefix_queries_tokens": 10, "prefix_hits_tokens": 4, "external_hits_tokens": 0, "preemptions": 1},
    )
    assert series.hit_tokens_per_s == {
        "device": [None, 60.0, 0.0, 4.0],
        "host": [None, 30.0, 0.0, 0.0],
        "missed": [None, 10.0, 50.0, 6.0],
    }
    assert series.preemptions == [None, 0, 2, 1]
    assert series.recomputed_tokens_per_s == [None] * 4


def test_without_a_host_tier_what_is_not_on_the_device_is_missed() -> None:
    series = chart(
        {"t": 0, "prefix_queries_tokens": 0, "prefix_hits_tokens": 0},
        {"t": 1, "prefix_queries_tokens": 10, "prefix_hits_tokens": 4},
    )
    assert series.hit_tokens_per_s == {"device": [None, 4.0], "host": [None, None], "missed": [None, 6.0]}


def test_used_blocks_are_the_gauge_or_else_active_and_pinned() -> None:
    series = chart(
        {"t": 0, "blocks_active": 3, "blocks_pinned": 2}, {"t": 1, "blocks_used": 9}, {"t": 2, "blocks_active": 3},
        {"t": 3}, {"t": 4, "blocks_active": LARGEST, "blocks_pinned": LARGEST},
    )  # fmt: skip
    assert series.blocks["used"] == [5, 9, 3, None, LARGEST - 1]
    assert series.blocks["active"] == [3, None, 3, None, LARGEST]


def test_our_own_share_of_the_time() -> None:
    assert chart({"t": 0, "own_us": 0}, {"t": 2, "own_us": 20_000}).own_ratio == [None, 0.01]


def test_a_gap_is_empty_and_nothing_is_known_of_the_time_in_it() -> None:
    """GIVEN a sample each second WHEN none comes for 7 s THEN a point of nothing stands behind the last one, and what
    the counters grew meanwhile is no rate."""
    samples = [{"t": t, "running": t, "preemptions": t} for t in (0, 1, 2, 9, 10)]
    series = chart(*samples, until=10)
    assert series.t_us == [0, S, 2 * S, 3 * S, 9 * S, 10 * S]
    assert series.running == [0, 1, 2, None, 9, 10]
    assert series.preemptions == [None, 1, 1, None, None, 1]
    assert series.gaps == [(2 * S, 9 * S)]
    short = chart(*[{"t": t, "running": t} for t in (0, 1, 2, 5, 6)], until=9)
    assert short.gaps == []
    assert chart(*samples, until=14).gaps == [(2 * S, 9 * S), (10 * S, 14 * S)]
    assert chart(*samples, until=14).t_us[-1] == 11 * S


def test_a_clock_that_was_set_back_is_no_restart() -> None:
    """GIVEN counters that grow WHEN the clock jumps back over samples THEN no rate is what a restart would give."""
    series = chart(
        {"t": 10, "own_us": 1000}, {"t": 11, "own_us": 1001}, {"t": 9.5, "own_us": 1002}, {"t": 10.5, "own_us": 1003},
        {"t": 11.5, "own_us": 1004},
    )  # fmt: skip
    assert series.t_us == sorted(series.t_us)
    assert max(value for value in series.own_ratio if value is not None) <= 3 / (S / 2)


def test_reasons_to_wait() -> None:
    samples = [{"t": 0, "waiting": 3}, {"t": 1, "waiting": 0}, {"t": 2}]
    series = chart(*samples, reasons=[{"capacity": 2, "grammar": 1}, {}, {}])
    assert series.waiting_by_reason == {"capacity": [2, 0, None], "grammar": [1, 0, None]}
    many = chart({"t": 0}, reasons=[{f"r{n}": n for n in range(100)}])
    assert len(many.waiting_by_reason) == MAX_REASONS
    assert sum(values[0] or 0 for values in many.waiting_by_reason.values()) == sum(range(100))
    named = chart({"t": 0}, reasons=[{**{f"r{n}": n for n in range(100)}, "other": 10_000}])
    assert sum(values[0] or 0 for values in named.waiting_by_reason.values()) == sum(range(100)) + 10_000


def test_many_samples_keep_their_extremes_and_sums() -> None:
    """GIVEN two days of samples WHEN drawn on 100 columns THEN the one spike, the one hole and the longest queue are
    there, and nothing that was counted is lost."""
    rng = random.Random(3)
    samples = [
        {"t": t, "blocks_active": 500 + rng.randrange(10), "waiting": 1, "preemptions": 3 * t} for t in range(9000)
    ]
    samples[4321]["blocks_active"] = 999
    samples[4444]["blocks_active"] = 1
    samples[7777]["waiting"] = 77
    series = chart(*samples, span=(0, 9000), px=100)
    assert len(series.t_us) <= 200
    used = series.blocks["used"]
    assert used[series.t_us.index(4321 * S)] == max(n for n in used if n is not None) == 999
    assert used[series.t_us.index(4444 * S)] == min(n for n in used if n is not None) == 1
    assert series.waiting[series.t_us.index(7777 * S)] == 77
    counted = sum(n for n in series.preemptions if n is not None)
    assert counted == 3 * (series.t_us[-1] - series.t_us[0]) // S
    assert series.t_us[-1] == 8999 * S


def test_gaps_that_nobody_can_see_are_not_drawn() -> None:
    times = [t for t in range(20_000) if t % 100 < 90] + [30_000]
    series = chart(*[{"t": t, "running": 1} for t in times], span=(0, 30_000), px=50)
    assert series.gaps == [(19_989 * S, 30_000 * S)]
    assert len(series.t_us) <= 2 * 50 + 1


def test_nothing_at_all() -> None:
    assert chart() == EngineSeries()


_NUMBER = st.sampled_from([-1, 0, 1, 5, 2**53, LARGEST]) | st.integers(0, 1000)
_SAMPLE = st.fixed_dictionaries(
    {"t": st.integers(0, 50)},
    optional=dict.fromkeys(("waiting", "blocks_active", "blocks_used", *COLUMNS[8:]), _NUMBER),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_SAMPLE, min_size=1, max_size=60), st.integers(2, 40), st.none() | st.integers(0, 80))
def test_any_samples_give_a_chart_that_can_be_written(
    samples: list[dict[str, int]], px: int, until: int | None
) -> None:
    series = chart(*samples, span=(0, 50), px=px, until=until)
    body = msgspec.json.decode(msgspec.json.encode(series))
    length = len(series.t_us)
    assert all(a <= b for a, b in pairwise(series.t_us))
    lists = [body["running"], body["waiting"], body["recomputed_tokens_per_s"], body["preemptions"], body["own_ratio"]]
    lists += [*body["blocks"].values(), *body["hit_tokens_per_s"].values(), body["host_used_bytes"]]
    assert {len(values) for values in lists} == {length}
    assert all(value is None or value >= 0 for values in lists for value in values)
    assert all(b > a for a, b in series.gaps)
