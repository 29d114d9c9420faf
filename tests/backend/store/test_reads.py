from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backend.store.test_store import batch_of, filled
from tests.support.scenes import T0, scene_lines, stamped
from tidegate.errors import NotFoundError
from tidegate_collectors.records import HostSample, MemSample, SessionEnd, SessionStart

NASTY = ["../x", "</script>", 'a"b\\c', "it's; DROP TABLE runs", "\u202egnp", "x" * 10_000, "\x01\x1b[2J", "ü/<&>"]


async def test_columns_of_a_session(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", scene_lines(ticks=20))
    memory = await store.reads.mem_points(run.id, "s1", T0, T0 + 10**9)
    assert memory.calls == ["c1", "c2"]
    assert np.all(np.diff(memory.t_us) >= 0)
    assert memory.t_us.dtype == np.int64
    runtime = memory.subject == 0
    assert runtime.sum() == 20
    assert set(memory.used_bytes[runtime]) == {(1 << 20) + 4096}
    assert set(memory.peak_bytes[runtime]) == {-1}
    assert list(memory.used_bytes[memory.subject == 2]) == [tick << 20 for tick in range(10, 20)]
    sched = await store.reads.sched_points(run.id, "s1", T0, T0 + 10**9)
    assert list(sched.subject) == [1] * 10 + [2] * 10
    assert set(sched.oncpu_us) == {900}
    pressure = await store.reads.psi_points(run.id, "s1", T0, T0 + 10**9)
    assert set(pressure.subject) == {-1}
    assert set(pressure.cpu_some_us) == {-1}
    assert set(pressure.memory_some_us) == {5}
    hosts = await store.reads.host_points(run.id, T0, T0 + 10**9)
    assert list(hosts.cpu_busy_us) == [1000 * tick for tick in range(20)]
    empty = await store.reads.mem_points(run.id, "nobody", T0, T0 + 10**9)
    assert len(empty.t_us) == len(empty.subject) == 0
    await store.close()


async def test_the_last_sample_before_the_window_comes_with_it(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", scene_lines(ticks=20))
    memory = await store.reads.mem_points(run.id, "s0", T0 + 1_450_000, T0 + 1_600_000)
    # ticks are 100 ms apart: 1.4 s is the last before, 1.5 and 1.6 are inside; c1 was last seen at 1.0 s
    assert [int(t) - T0 for t in memory.t_us[memory.subject == 0]] == [1_400_000, 1_500_000, 1_600_000]
    assert [int(t) - T0 for t in memory.t_us[memory.subject == 1]] == [1_000_000]
    await store.close()


async def test_hosts_are_subjects_of_their_own(tmp_path: Path) -> None:
    def sample(value: int) -> list[bytes]:
        return stamped(
            [HostSample(t=T0, mem_available_bytes=value, mem_total_bytes=9)], src=f"k{value}", host=f"host{value}"
        )

    store, run = await filled(tmp_path / "t.db", sample(1) + sample(2) + sample(1))
    assert list((await store.reads.host_points(run.id, 0, 2**53)).mem_available_bytes) == [1, 1]
    assert list((await store.reads.host_points(run.id, 0, 2**53, host="host2")).mem_available_bytes) == [2]
    await store.close()


async def test_events_newest_first_with_filters(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", scene_lines())
    events = await store.reads.events(run.id, session="s0", types=["call.end"])
    assert [event.call for event in events] == ["c2", "c1"]
    assert events[0].body == {"exit_code": 1, "peak_bytes": 7 << 20, "cpu_us": 123}
    assert await store.reads.events(run.id, session="s0", types=["call.end"], before_ord=events[0].ord) == events[1:]
    everything = await store.reads.events(run.id, limit=3)
    assert [event.type for event in everything] == ["run.end", "session.end", "session.end"]
    with pytest.raises(NotFoundError):
        await store.reads.events("nothing")
    await store.close()


@pytest.mark.parametrize("name", NASTY)
async def test_hostile_names_are_only_names(tmp_path: Path, name: str) -> None:
    records = [
        SessionStart(t=T0, session=name, agent=name, title=name),
        SessionStart(t=T0, session="other " + name, agent=name, title=name),
        MemSample(t=T0 + 1, session=name, call=name, subject="call", anon_bytes=7),
        SessionEnd(t=T0 + 2, session=name),
    ]
    lines = stamped(records, host=name, src="k")
    store, run = await filled(tmp_path / "t.db", lines)
    assert {row.id for row in await store.reads.sessions(run=run.id)} == {name, "other " + name}
    memory = await store.reads.mem_points(run.id, name, 0, 2**53)
    assert (memory.calls, list(memory.used_bytes)) == ([name], [7])
    assert [line async for line in store.reads.raw_lines(run.id, session=name)] == [lines[0], *lines[2:]]
    assert len(await store.reads.events(run.id, session=name)) == 2
    await store.close()


async def test_a_session_that_starts_again_is_not_over(tmp_path: Path) -> None:
    first = [SessionStart(t=T0, session="s"), SessionEnd(t=T0 + 5, session="s", exit_code=3)]
    store, run = await filled(tmp_path / "t.db", stamped(first))
    (row,) = await store.reads.sessions()
    assert (row.started_us, row.ended_us, row.exit_code) == (T0, T0 + 5, 3)
    await store.commit(run, batch_of(stamped([SessionStart(t=T0 + 9, session="s", title="again")], src="k2")))
    (row,) = await store.reads.sessions()
    assert (row.started_us, row.ended_us, row.exit_code, row.title) == (T0, None, None, "again")
    await store.close()
