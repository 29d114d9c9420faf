from __future__ import annotations

import random
from itertools import accumulate

from tidegate.analysis.kv_blocks import KV_STATES, BlockSteps, Emptied, Residency, Step, block_steps


def active(steps: BlockSteps) -> list[int]:
    return steps.states["device_active"]


def has(t_us: int, engine: str = "e", shared: int | None = None, **blocks: int) -> Residency:
    return Residency(t_us, engine, blocks, shared)


def test_what_holds_at_the_beginning_comes_from_before() -> None:
    steps = block_steps([has(5, device_active=3), has(9, host=2), has(12, host=1, gone=4)], 10, 20, 100)
    assert steps.t_us == [10, 12]
    assert steps.states == {name: [0, 0] for name in KV_STATES} | {"host": [2, 1], "gone": [0, 4]}
    assert steps.shared == [None, None]


def test_nothing_is_said_of_the_time_before_anything_is_known_or_behind_the_end() -> None:
    steps = block_steps([has(15, device_active=3), has(21, device_active=9)], 10, 20, 100)
    assert (steps.t_us, active(steps)) == ([15], [3])
    assert block_steps([], 10, 20, 100) == BlockSteps()


def test_of_several_at_one_instant_the_last_holds() -> None:
    steps = block_steps([has(15, device_active=3), has(15, device_cached=3)], 10, 20, 100)
    assert (steps.t_us, active(steps), steps.states["device_cached"]) == ([15], [0], [3])


def test_an_engine_that_ends_takes_its_blocks_along_and_only_those() -> None:
    steps = block_steps(
        [Emptied(10, "e"), has(11, device_active=3, shared=1), has(12, "f", device_active=2), Emptied(13, "e")],
        10,
        20,
        9,
    )
    assert (steps.t_us, active(steps), steps.shared) == ([11, 12, 13], [3, 5, 2], [1, 1, 0])


def test_hostile_counts_and_states_are_bounded() -> None:
    steps = block_steps([has(11, device_active=10**30, host=-5, shared=-1, nonsense=7)], 10, 20, 9)
    assert (active(steps), steps.states["host"], steps.shared) == ([1 << 53], [0], [0])


def test_many_transitions_keep_the_last_of_each_column_and_the_extremes() -> None:
    """GIVEN a thousand transitions WHEN drawn on ten columns THEN each column ends with what holds at its end, and the
    highest and the lowest are there."""
    rng = random.Random(5)
    counts = [rng.randrange(100, 200) for _ in range(1000)]
    counts[333], counts[444] = 900, 1
    stream: list[Step] = [has(t, device_active=n) for t, n in enumerate(counts)]
    steps = block_steps(stream, 0, 1000, 10)
    assert len(steps.t_us) <= 30
    at = dict(zip(steps.t_us, active(steps), strict=True))
    assert (at[333], at[444]) == (900, 1)
    for end in range(99, 1000, 100):
        assert at[end] == counts[end]
    held = list(accumulate(range(1000), lambda value, t: at.get(t, value)))
    assert max(held) == 900
