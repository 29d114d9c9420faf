from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from tests.backend.store.test_store import batch_of, filled
from tests.support.scenes import T0, scene_lines, stamped
from tidegate.analysis.inputs import SessionInput
from tidegate.errors import NotFoundError
from tidegate.store import Run, Store, chunks
from tidegate.store import inputs as inputs_module
from tidegate.store import reads as reads_module
from tidegate_collectors.records import HostSample, MemSample, SessionEnd, SessionStart

NASTY = ["../x", "</script>", 'a"b\\c', "it's; DROP TABLE runs", "\u202egnp", "x" * 10_000, "\x01\x1b[2J", "ü/<&>"]


async def inputs(store: Store, run: Run, session: str, from_us: int, to_us: int) -> SessionInput:
    return (await store.reads.session_inputs(run, [session], from_us, to_us))[session]


async def test_columns_of_a_session(tmp_path: Path) -> None:
    store, run = await filled(tmp_path / "t.db", scene_lines(ticks=20))
    data = await inputs(store, run, "s1", T0, T0 + 10**9)
    memory, sched, pressure = data.mem, data.sched, data.psi
    assert memory.calls == ["c1", "c2"]
    assert np.all(np.diff(memory.t_us) >= 0)
    assert memory.t_us.dtype == np.int64
    runtime = memory.subject == 0
    assert runtime.sum() == 20
    assert set(memory.used_bytes[runtime]) == {(1 << 20) + 4096}
    assert set(memory.peak_bytes[runtime]) == {-1}
    assert list(memory.used_bytes[memory.subject == 2]) == [tick << 20 for tick in range(10, 20)]
    assert list(sched.subject) == [1] * 10 + [2] * 10
    assert set(sched.oncpu_us) == {900}
    assert set(pressure.subject) == {-1}
    assert set(pressure.cpu_some_us) == {-1}
    assert set(pressure.memory_some_us) == {5}
    hosts = await store.reads.host_points(run.id, T0, T0 + 10**9)
    assert list(hosts.cpu_busy_us) == [1000 * tick for tick in range(20)]
    empty = (await inputs(store, run, "nobody", T0, T0 + 10**9)).mem
    assert len(empty.t_us) == len(empty.subject) == 0
    await store.close()


async def test_the_samples_around_a_span_come_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "_MARGIN_US", 0)
    store, run = await filled(tmp_path / "t.db", scene_lines(ticks=20))
    memory = (await inputs(store, run, "s0", T0 + 1_450_000, T0 + 1_600_000)).mem
    # ticks are 100 ms apart: 1.4 s is the last before, 1.7 the first behind; c1 was last seen at 1.0 s
    times = [[int(t) - T0 for t in memory.t_us[memory.subject == subject]] for subject in (0, 1)]
    assert times == [[1_400_000, 1_500_000, 1_600_000, 1_700_000], [1_000_000]]
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
    memory = (await inputs(store, run, name, 0, 2**53)).mem
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


async def test_what_the_pages_of_a_session_ask_for_goes_by_an_index(tmp_path: Path) -> None:
    """No read of a session may go through all samples or events of a run, which may last for weeks."""
    store, run = await filled(tmp_path / "t.db", scene_lines())
    asked: list[str] = []
    async with store.reads._engine.connect() as connection:  # the pool gives this connection out again
        raw = await connection.get_raw_connection()
        await raw.driver_connection.set_trace_callback(asked.append)  # type: ignore[union-attr]
    reads = store.reads
    data = await inputs(store, run, "s0", T0, T0 + 10**9)
    assert len(data.mem.t_us) and len(data.sched.t_us) and len(data.psi.t_us)
    assert await reads.events(run.id, session="s0", types=["call.end"])
    assert await reads.events(run.id, types=["loss"]) == []
    await store.close()
    connection_ = sqlite3.connect(tmp_path / "t.db")
    plans = [
        [str(row[3]) for row in connection_.execute(f"EXPLAIN QUERY PLAN {statement}")]
        for statement in asked
        if statement.startswith("SELECT") and "FROM runs" not in statement.replace("\n", "")
    ]
    connection_.close()
    steps = [step for plan in plans for step in plan]
    assert len(plans) == 3 * 3 + 5
    assert sum("INDEX subjects_session" in step for step in steps) == 1
    assert sum("INDEX calls_ended" in step for step in steps) == 2
    assert sum("SEARCH m USING PRIMARY KEY (run=? AND subject=? AND t" in step for step in steps) == 3 * 3
    steps = [step for step in steps if "VIRTUAL TABLE" not in step]  # the list of subjects
    assert sum("INDEX events_session" in step for step in steps) == 1
    assert sum("INDEX events_loss" in step for step in steps) == 1
    assert [step for step in steps if "SCAN" in step or (step.endswith("(run=?)") and "events_loss" not in step)] == []


async def test_a_large_read_leaves_the_event_loop_its_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = stamped([MemSample(t=T0 + n, session="s", subject="runtime", anon_bytes=n) for n in range(20_000)])
    store, run = await filled(tmp_path / "t.db", lines)
    most = 0
    real = np.array

    def array(rows: list[object], **options: object) -> object:
        nonlocal most
        most = max(most, len(rows))
        return real(rows, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(np, "array", array)
    memory = (await inputs(store, run, "s", T0, T0 + 10**9)).mem
    assert list(memory.used_bytes[[0, -1]]) == [0, 19_999]
    assert 0 < most < 10_000
    await store.close()


async def test_reading_begins_at_the_chunk_of_the_first_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = stamped([MemSample(t=T0 + n, session="s", subject="runtime", anon_bytes=n) for n in range(12_000)])
    store, run = await filled(tmp_path / "t.db", lines[:1000])
    for start in range(1000, len(lines), 1000):
        await store.commit(run, batch_of(lines[start : start + 1000]))
    firsts = [first async for first, _ in store.reads.chunks(run.id)]
    assert len(firsts) > 5
    for from_ord in (1, 2, firsts[1] - 1, firsts[1], firsts[-1] - 1, firsts[-1], len(lines)):
        found = [(first, some) async for first, some in store.reads.chunks(run.id, from_ord=from_ord)]
        assert found[0][0] == max(first for first in firsts if first <= from_ord)
        assert [line for _, some in found for line in some] == lines[found[0][0] - 1 :]
    opened: list[str] = []

    def unpack(codec: str, data: bytes) -> list[bytes]:
        opened.append(codec)
        return chunks.unpack(codec, data)

    monkeypatch.setattr(reads_module, "unpack", unpack)
    assert [ord_ async for part in store.reads.records(run.id, from_ord=len(lines)) for ord_, _ in part] == [len(lines)]
    assert len(opened) == 1
    assert [part async for part in store.reads.records(run.id, from_ord=len(lines) + 1)] == []
    await store.close()


async def test_a_run_that_grows_while_it_is_read_has_no_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a reader that stops at the open last chunk WHEN that grows and others follow THEN no line between is left
    out: reading ends where the run ended when it began."""
    monkeypatch.setattr(reads_module, "_CHUNKS_AT_ONCE", 1)
    lines = stamped([MemSample(t=T0 + n, session="s", subject="runtime", anon_bytes=n) for n in range(4000)])
    store, run = await filled(tmp_path / "t.db", lines[:10])
    found: list[bytes] = []
    async for _, some in store.reads.chunks(run.id):
        found += some
        if run.last_ord < len(lines):
            for start in range(10, len(lines), 100):  # until the chunk is full, and further ones begin
                await store.commit(run, batch_of(lines[start : start + 100]))
    assert found == lines[: len(found)]
    assert len(found) >= 10
    assert (await store.reads.sizes()).chunks > 1
    await store.close()
