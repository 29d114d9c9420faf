"""Rollups: no burst is ever averaged away, and none is invented."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.backend.store.test_store import batch_of
from tests.support.random_runs import SECOND, random_run
from tests.support.scenes import T0, stamped
from tidegate.analysis.decimate import BUCKETS_US, columns
from tidegate.analysis.picture import session_picture
from tidegate.analysis.series import SessionSeries, draw_session
from tidegate.errors import StoreError
from tidegate.store import NewRun, Run, Store, open_store
from tidegate.store.blocks import stats_of
from tidegate.store.charts import host_chart, session_chart
from tidegate.store.rollup_states import RUN, known_states
from tidegate.store.rollups import build_rollups, drop_rollups, keep_rollups
from tidegate_collectors.records import HostSample, Loss, MemSample, Record, SchedSample, SessionStart


@pytest.fixture(scope="module")
def empty_database() -> Iterator[Path]:
    """A database at the newest schema, to copy: migrating takes longer than a whole example."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.db"

        async def make() -> None:
            await (await open_store(path)).close()

        asyncio.run(make())
        yield path


async def played(path: Path, records: list[Record], rng: random.Random, *, end: bool) -> tuple[Store, Run]:
    """The run, committed in pieces, with its rollups brought up to date now and then, as a backend does."""
    store = await open_store(path)
    run = await store.create_run(NewRun(id="r", started_us=T0))
    lines = stamped(records)
    at = 0
    while at < len(lines):
        step = rng.randrange(1, max(2, len(lines) // 3))
        await store.commit(run, batch_of(lines[at : at + step]))
        at += step
        if rng.random() < 0.7:
            await build_rollups(store, run)
    if end:
        await store.end_run(run, run.last_t or T0, clean=True)
    # What was told late shows with the next pass, a minute later at most.
    await build_rollups(store, run)
    return store, run


def same(found: SessionSeries, expected: SessionSeries) -> None:
    assert found.mem_t_us.tolist() == expected.mem_t_us.tolist()
    np.testing.assert_array_equal(found.runtime_bytes, expected.runtime_bytes)
    for name in {*found.calls_bytes, *expected.calls_bytes}:
        zeros = np.zeros(len(found.mem_t_us))
        a, b = (np.nan_to_num(one.calls_bytes.get(name, zeros)) for one in (found, expected))
        np.testing.assert_array_equal(a, b, name)
    assert found.wait_t_us.tolist() == expected.wait_t_us.tolist()
    np.testing.assert_allclose(found.wait_percent, expected.wait_percent, atol=1e-4)
    assert found.pressure_t_us.tolist() == expected.pressure_t_us.tolist()
    np.testing.assert_allclose(
        found.pressure["memory_percent"], expected.pressure["memory_percent"], atol=1e-4, equal_nan=True
    )
    assert found.gaps == expected.gaps


async def whole_run(store: Store, run: Run, session: str, begin: int, end: int, borders: Any) -> SessionSeries:
    """The same columns drawn from all samples of the run at once."""
    data = (await store.reads.session_inputs(run, [session], 0, 2**53))[session]
    return draw_session(session_picture(data, from_us=0), [], borders, from_us=begin, to_us=end, px=50)


# Without shrinking: another seed is another run, not a smaller one.
@settings(deadline=None, max_examples=10, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 2**32), st.booleans())
@example(33343, False)  # a late sample whose window reaches back for two minutes
def test_a_chart_of_rollups_is_the_chart_of_the_samples(empty_database: Path, seed: int, end: bool) -> None:
    """GIVEN any run, its rollups built bit by bit WHEN any span is drawn at any width THEN each column is the one that
    the samples give, read for that span or for the whole run."""

    async def check(path: Path) -> None:
        rng = random.Random(seed)
        store, run = await played(path, random_run(seed), rng, end=end)
        try:
            for _ in range(6):
                begin = T0 + rng.randrange(-60, 900) * SECOND + rng.randrange(SECOND)
                to = begin + rng.randrange(1, 1200) * SECOND + rng.randrange(SECOND)
                px = rng.choice((1, 7, 50, 300, 1600))
                session = f"s{rng.randrange(2)}"
                span: dict[str, Any] = {"from_us": begin, "to_us": to, "px": px}
                found = await session_chart(store, run, session, **span)
                exact = await session_chart(store, run, session, **span, exact=True)
                same(found, exact)
                bucket, borders = columns(begin, to, px)
                state = (await known_states(store, run, RUN)).get("")
                if bucket and state is not None and state.until_us > begin:
                    whole = await whole_run(store, run, session, begin, to, borders)
                    totals = [
                        np.nan_to_num(one.runtime_bytes) + sum(np.nan_to_num(v) for v in one.calls_bytes.values())
                        for one in (found, whole)
                    ]
                    drawn = ~np.isnan(found.runtime_bytes)
                    places = np.searchsorted(whole.mem_t_us, found.mem_t_us)
                    assert found.mem_t_us.tolist() == whole.mem_t_us.tolist()
                    assert totals[0][drawn].tolist() == totals[1][places][drawn].tolist()
                names = ["s0", "s1"]
                host, raw = [
                    await host_chart(store, run, names, **span, cpus=2, exact=exact) for exact in (False, True)
                ]
                assert {**host, "cpu_percent": None} == {**raw, "cpu_percent": None}
        finally:
            await store.close()

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.db"
        shutil.copy(empty_database, path)
        asyncio.run(check(path))


async def test_each_burst_of_a_day_is_drawn_at_every_width_and_none_is_invented(tmp_path: Path) -> None:
    """GIVEN a day of one sample a second, with bursts of one sample, and two calls that follow each other WHEN it is
    drawn THEN the total shows each burst, and never the sum of what was not there together."""
    rng = random.Random(1)
    flat = 10 << 20
    bursts = {rng.randrange(20_000): rng.randrange(1 << 30, 2 << 30) for _ in range(20)}
    records: list[Record] = [SessionStart(t=T0, session="s")]
    for n in range(20_000):
        used = bursts.get(n, flat)
        records.append(MemSample(t=T0 + n * SECOND, session="s", subject="runtime", anon_bytes=used))
    # Within one second one call gives back what the other takes.
    at = T0 + 20_001 * SECOND
    for t, call, used in ((0, "a", 1 << 30), (400_000, "a", 0), (500_000, "b", 1 << 30), (900_000, "b", 0)):
        records.append(MemSample(t=at + t, session="s", call=call, subject="call", anon_bytes=used))
    store = await open_store(tmp_path / "t.db")
    run = await store.create_run(NewRun(id="r", started_us=T0))
    await store.commit(run, batch_of(stamped(records)))
    await store.end_run(run, at + 2 * SECOND, clean=True)
    until = await build_rollups(store, run)
    assert until is not None and until > at
    assert await build_rollups(store, run) == until
    for px in (50, 300, 1600, 4000):
        series = await session_chart(store, run, "s", from_us=T0, to_us=at + 2 * SECOND, px=px)
        drawn = series.runtime_bytes + sum(series.calls_bytes.values())
        columns_of_bursts = {n * SECOND // series.resolution_us: 0 for n in bursts}
        assert np.count_nonzero(series.runtime_bytes >= 1 << 30) >= len(columns_of_bursts)
        assert float(np.nanmax(series.runtime_bytes)) == max(bursts.values())
        assert float(np.nanmax(drawn[series.mem_t_us >= at])) == flat + (1 << 30)
    await drop_rollups(store, run)
    assert await known_states(store, run, RUN) == {}
    await store.close()


async def test_a_bucket_counts_its_steps(tmp_path: Path) -> None:
    used = [5, 9, 1, 4]
    records: list[Record] = [SessionStart(t=T0, session="s")]
    records += [
        MemSample(t=T0 + n * SECOND // 2, session="s", subject="runtime", anon_bytes=b) for n, b in enumerate(used)
    ]
    store = await open_store(tmp_path / "t.db")
    run = await store.create_run(NewRun(id="r", started_us=T0))
    await store.commit(run, batch_of(stamped(records)))
    await store.end_run(run, T0 + 9 * SECOND, clean=True)
    await build_rollups(store, run)
    found = {}
    for bucket_us, blob in await store.reads.driver_all(
        "SELECT bucket_us, stats FROM rollups WHERE kind = 'session' AND name = 's' ORDER BY bucket_us", ()
    ):
        stats = stats_of(blob)
        found[bucket_us] = [a.tolist() for a in (stats.t_us, stats.count, stats.sum, stats.min, stats.max)]
    assert tuple(sorted(found, reverse=True)) == BUCKETS_US
    assert found[SECOND] == [[T0, T0 + SECOND], [2, 2], [14, 5], [5, 1], [9, 4]]
    assert found[10 * SECOND] == [[T0 - T0 % (10 * SECOND)], [4], [19], [1], [9]]
    await store.close()


async def test_a_backend_keeps_them_up_to_date_and_finishes_those_of_earlier_runs(tmp_path: Path) -> None:
    def samples(count: int, seq: int = 0) -> list[Record]:
        return [
            MemSample(t=T0 + (seq + n) * SECOND, session="s", subject="runtime", anon_bytes=n) for n in range(count)
        ]

    store = await open_store(tmp_path / "t.db")
    old = await store.create_run(NewRun(id="old", started_us=T0))
    await store.commit(old, batch_of(stamped(samples(300))))
    await store.end_run(old, T0 + 300 * SECOND, clean=False)
    run = await store.create_run(NewRun(id="r", started_us=T0))
    await store.commit(run, batch_of(stamped(samples(200))))
    task = asyncio.create_task(keep_rollups(store, run, every_s=0.05))

    async def reach(one: Run, until_us: int) -> None:
        async with asyncio.timeout(10):
            while True:
                state = (await known_states(store, one, RUN)).get("")
                if state is not None and state.until_us >= until_us:
                    return
                await asyncio.sleep(0.02)

    await reach(old, T0 + 300 * SECOND)
    await reach(run, T0 + 120 * SECOND)
    await store.commit(run, batch_of(stamped(samples(200, 200))))
    await reach(run, T0 + 300 * SECOND)
    task.cancel()
    await asyncio.wait({task})
    series = await session_chart(store, run, "s", from_us=T0, to_us=T0 + 400 * SECOND, px=100)
    exact = await session_chart(store, run, "s", from_us=T0, to_us=T0 + 400 * SECOND, px=100, exact=True)
    same(series, exact)
    await store.close()


async def filled(path: Path, records: list[Record]) -> tuple[Store, Run]:
    store = await open_store(path)
    run = await store.create_run(NewRun(id="r", started_us=T0))
    await store.commit(run, batch_of(stamped(records)))
    return store, run


@pytest.mark.parametrize("column", ["total", "layers", "shares", "stats"])
async def test_a_damaged_rollup_is_passed_over_and_built_anew(tmp_path: Path, column: str) -> None:
    """GIVEN a rollup that is not as it was written WHEN charts are drawn THEN they are drawn from the samples, and the
    next pass makes the rollups anew."""
    store, run = await filled(tmp_path / "t.db", random_run(3, late=False))
    await build_rollups(store, run)
    span: dict[str, Any] = {"from_us": T0, "to_us": T0 + 700 * SECOND, "px": 50}
    session = await session_chart(store, run, "s0", **span)
    host = await host_chart(store, run, ["s0", "s1"], **span, cpus=2)
    async with store.begin() as connection:
        await connection.exec_driver_sql(f"UPDATE rollups SET {column} = CAST(substr({column}, 1, 20) AS BLOB)")
    same(await session_chart(store, run, "s0", **span), session)
    assert await host_chart(store, run, ["s0", "s1"], **span, cpus=2) == host
    t = (run.last_t or 0) + 90 * SECOND
    await store.commit(run, batch_of(stamped([MemSample(t=t, session="s0", subject="runtime", anon_bytes=1)])))
    await build_rollups(store, run)
    for blob in await store.reads.driver_all("SELECT stats FROM rollups", ()):
        stats_of(*blob)
    same(await session_chart(store, run, "s0", **span), session)
    await store.close()


async def test_what_is_noted_can_be_damaged_too(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", random_run(3, late=False))
    await build_rollups(store, run)
    async with store.begin() as connection:
        await connection.exec_driver_sql("UPDATE rollup_states SET data = x'00'")
    with pytest.raises(StoreError, match="reindex"):
        await session_chart(store, run, "s0", from_us=T0, to_us=T0 + 700 * SECOND, px=50)
    await build_rollups(store, run)
    await session_chart(store, run, "s0", from_us=T0, to_us=T0 + 700 * SECOND, px=50)
    await store.close()


async def test_a_clock_that_was_centuries_ahead_costs_no_centuries(tmp_path: Path) -> None:
    """GIVEN a run of which some records are told to be of the year 2200 WHEN its rollups are built, and brought up to
    date THEN that takes no longer than for any run, and the charts are those of the samples."""
    far = T0 + 174 * 365 * 86_400 * SECOND
    ahead: list[Record] = [
        MemSample(t=far, session="s0", subject="runtime", anon_bytes=7),
        SchedSample(t=far, session="s0", subject="runtime", oncpu_us=1, wait_us=SECOND, window_us=3 * 86_400 * SECOND),
        HostSample(t=far, mem_total_bytes=9, mem_available_bytes=4, cpu_busy_us=SECOND, window_us=2 * far),
    ]
    store, run = await filled(tmp_path / "t.db", [*random_run(5, late=False), *ahead])
    async with asyncio.timeout(20):
        await build_rollups(store, run)
        later = [MemSample(t=T0 + (900 + n) * SECOND, session="s1", subject="runtime", anon_bytes=n) for n in range(99)]
        await store.commit(run, batch_of(stamped(later)))
        await store.end_run(run, far, clean=True)
        await build_rollups(store, run)
        day = 86_400 * SECOND
        for begin, to in ((T0, T0 + 1000 * SECOND), (far - 4 * day, far + day), (far - day, far + 60 * SECOND)):
            span: dict[str, Any] = {"from_us": begin, "to_us": to, "px": 300}
            series = [await session_chart(store, run, "s0", **span, exact=exact) for exact in (False, True)]
            same(series[0], series[1])
            host, raw = [await host_chart(store, run, ["s0", "s1"], **span, cpus=2, exact=e) for e in (False, True)]
            assert host == raw
    await store.close()


async def test_silence_is_a_gap_only_where_somebody_samples(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "t.db")
    ticks = (*range(5), 200, 201)
    records = [MemSample(t=T0 + n * SECOND, session="s", subject="runtime", anon_bytes=n) for n in ticks]
    for source in ("live", "imported"):
        run = await store.create_run(NewRun(id=source, source=source, started_us=T0))
        await store.commit(run, batch_of(stamped(records)))
        await store.end_run(run, T0 + 201 * SECOND, clean=True)
        for _ in range(2):  # of the samples, and of rollups
            series = await session_chart(store, run, "s", from_us=T0, to_us=T0 + 201 * SECOND, px=100)
            assert series.gaps == ([(T0 + 4 * SECOND, T0 + 200 * SECOND)] if source == "live" else [])
            await build_rollups(store, run)
    await store.close()


async def test_what_came_late_for_one_session_is_not_read_anew_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN rollups of hours WHEN one sample of long ago comes, and a record without a time THEN only the session of
    the sample is built anew from there."""
    records: list[Record] = []
    for n in range(0, 4 * 3600, 10):
        records += [
            MemSample(t=T0 + n * SECOND, session=f"s{number}", subject="runtime", anon_bytes=n) for number in range(3)
        ]
    store, run = await filled(tmp_path / "t.db", records)
    await build_rollups(store, run)
    asked: list[tuple[list[str], int]] = []
    real = store.reads.session_inputs

    async def inputs(run: Run, sessions: Any, from_us: int, to_us: int, **options: Any) -> Any:
        asked.append((list(sessions), from_us))
        return await real(run, sessions, from_us, to_us, **options)

    monkeypatch.setattr(store.reads, "session_inputs", inputs)
    late = MemSample(t=T0 + 600 * SECOND, session="s1", subject="runtime", anon_bytes=1 << 40)
    now = T0 + 4 * 3600 * SECOND
    live = [MemSample(t=now + n * SECOND, session="s0", subject="runtime", anon_bytes=5) for n in range(120)]
    await store.commit(run, batch_of(stamped([late, Loss(t=0, where="link", count=1, of="x"), *live])))
    await build_rollups(store, run)
    early = [sessions for sessions, from_us in asked if from_us < now - 300 * SECOND]
    assert early == [["s1"]]
    monkeypatch.undo()
    span: dict[str, Any] = {"from_us": T0, "to_us": now, "px": 100}
    series = [await session_chart(store, run, "s1", **span, exact=exact) for exact in (False, True)]
    same(series[0], series[1])
    assert np.nanmax(series[0].runtime_bytes) == 1 << 40
    await store.close()
