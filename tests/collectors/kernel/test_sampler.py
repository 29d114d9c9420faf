"""Samples: what is sent when, deltas against totals, and the collector's own cost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.own_cgroups import cgroup_root, sleeper
from tests.support.scripted_observer import ScriptedObserver
from tidegate_collectors.kernel import cgroup_layout, procfs_files
from tidegate_collectors.kernel.cgroup_files import Psi
from tidegate_collectors.kernel.cgroups import CgroupHandle, CgroupTree
from tidegate_collectors.kernel.host_sampler import own_rss_bytes, psi_sample
from tidegate_collectors.kernel.observer import SubjectStats
from tidegate_collectors.kernel.sampler import MAX_PER_TICK, Sampler, Target
from tidegate_collectors.records import (
    HostSample,
    Loss,
    MemEvent,
    MemSample,
    PsiSample,
    Record,
    SchedSample,
)

T0 = 1_000_000_000
CALL = Target("call", "s", "c1", 5, None)
RUNTIME = Target("runtime", "s", None, 1, None)
SESSION = Target("session", "s", None, 1, None)


@pytest.fixture
def observer() -> Iterator[ScriptedObserver]:
    made = ScriptedObserver()
    yield made
    made.close()


@pytest.fixture
def sampler(observer: ScriptedObserver) -> Sampler:
    return Sampler(observer, kills_reported=True)


def of(records: list[Record], kind: type) -> list[Record]:
    return [record for record in records if isinstance(record, kind)]


def test_a_figure_is_sent_on_change_and_once_a_second(sampler: Sampler, observer: ScriptedObserver) -> None:
    stats = observer.by_subject[5] = SubjectStats(anon_bytes=10, shmem_bytes=2, file_bytes=4, peak_bytes=12)
    (first,) = of(sampler.sample([CALL], T0), MemSample)
    assert isinstance(first, MemSample)
    assert (first.subject, first.session, first.call, first.t) == ("call", "s", "c1", T0)
    assert (first.anon_bytes, first.shmem_bytes, first.file_bytes, first.peak_bytes) == (10, 2, 4, 12)
    assert first.source == "rss_stat"
    assert of(sampler.sample([CALL], T0 + 100_000), MemSample) == []
    stats.file_bytes = 400  # mapped files alone do not count as change
    assert of(sampler.sample([CALL], T0 + 200_000), MemSample) == []
    stats.anon_bytes = 11
    assert len(of(sampler.sample([CALL], T0 + 300_000), MemSample)) == 1
    assert of(sampler.sample([CALL], T0 + 1_200_000), MemSample) == []
    assert len(of(sampler.sample([CALL], T0 + 1_300_000), MemSample)) == 1


def test_scheduling_is_sent_as_deltas_that_add_up(sampler: Sampler, observer: ScriptedObserver) -> None:
    stats = observer.by_subject[5] = SubjectStats()
    sent: list[SchedSample] = []
    for step in range(6):
        stats.oncpu_us += 70 * step
        stats.wait_us = (stats.wait_us or 0) + 11
        stats.switches = (stats.switches or 0) + 3
        stats.hist[4] += 2
        stats.wait_max_us = 9
        sent += [r for r in sampler.sample([CALL], T0 + step * 100_000) if isinstance(r, SchedSample)]
    assert sum(sample.oncpu_us for sample in sent) == stats.oncpu_us == 70 * 15
    assert sum(sample.wait_us or 0 for sample in sent) == stats.wait_us == 66
    assert sum(sample.switches or 0 for sample in sent) == stats.switches == 18
    assert sum((sample.hist or [])[4] for sample in sent) == stats.hist[4] == 12
    assert [sample.window_us for sample in sent[1:]] == [100_000] * 5
    assert {sample.wait_max_us for sample in sent} == {9}


def test_where_waits_are_not_known_none_are_said(sampler: Sampler, observer: ScriptedObserver) -> None:
    observer.by_subject[1] = SubjectStats(oncpu_us=5, wait_us=None, wait_max_us=None, switches=None)
    (sample,) = of(sampler.sample([RUNTIME], T0), SchedSample)
    assert isinstance(sample, SchedSample)
    assert (sample.wait_us, sample.wait_max_us, sample.switches, sample.hist) == (None, None, None, None)


def test_all_samples_of_a_tick_carry_its_time(sampler: Sampler, observer: ScriptedObserver) -> None:
    observer.by_subject = {1: SubjectStats(anon_bytes=1), 5: SubjectStats(anon_bytes=2)}
    observer.by_session = {1: SubjectStats(anon_bytes=3, oncpu_us=7)}
    records = sampler.sample([RUNTIME, CALL, SESSION], T0)
    assert {record.t for record in records} == {T0}
    assert [r.anon_bytes for r in records if isinstance(r, MemSample)] == [1, 2, 3]
    # The session's scheduling is the sum of its parts, which are sent.
    assert {r.subject for r in records if isinstance(r, SchedSample)} <= {"runtime", "call"}


def test_counters_never_go_below_zero(sampler: Sampler, observer: ScriptedObserver) -> None:
    """GIVEN the kernel's per-CPU counters dip below zero THEN a sample says zero."""
    observer.by_subject[5] = SubjectStats(anon_bytes=-4096, oncpu_us=100)
    sampler.sample([CALL], T0)
    observer.by_subject[5] = SubjectStats(anon_bytes=-8192, oncpu_us=90)
    records = sampler.sample([CALL], T0 + 100_000)
    assert [r.anon_bytes for r in records if isinstance(r, MemSample)] == [0]
    assert [r.oncpu_us for r in records if isinstance(r, SchedSample)] == [0]


def test_unknown_subjects_have_no_samples(sampler: Sampler) -> None:
    assert of(sampler.sample([CALL, SESSION], T0), MemSample) == []


def test_losses_are_told_once(sampler: Sampler, observer: ScriptedObserver) -> None:
    observer.losses = {"bpf_ring": 3, "bpf_map": 0}
    (loss,) = of(sampler.sample([], T0), Loss)
    assert isinstance(loss, Loss)
    assert (loss.where, loss.count) == ("bpf_ring", 3)
    assert of(sampler.sample([], T0 + 100_000), Loss) == []
    observer.losses = {"bpf_ring": 5, "bpf_map": 1}
    told = [(r.where, r.count) for r in sampler.sample([], T0 + 200_000) if isinstance(r, Loss)]
    assert told == [("bpf_ring", 2), ("bpf_map", 1)]


def test_the_host_and_our_own_cost(observer: ScriptedObserver) -> None:
    observer.run_us = 500
    sampler = Sampler(observer, kills_reported=True)
    (first,) = of(sampler.sample([], T0), HostSample)
    assert isinstance(first, HostSample)
    total = procfs_files.parse_meminfo(Path("/proc/meminfo").read_text()).total_bytes
    assert first.mem_total_bytes == total
    assert 0 < first.mem_available_bytes <= total
    assert first.window_us is None
    sampler.count_events(7)
    observer.run_us = 530
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    (second,) = of(sampler.sample([], T0 + 1_000_000), HostSample)
    assert isinstance(second, HostSample)
    assert second.own is not None
    assert second.own.cpu_us >= 20_000
    assert (second.own.bpf_run_us, second.own.events, second.window_us) == (30, 7, 1_000_000)
    assert abs(second.own.rss_bytes - own_rss_bytes()) < 8 << 20
    (third,) = of(sampler.sample([], T0 + 2_000_000), HostSample)
    assert isinstance(third, HostSample)
    assert third.own is not None
    assert third.own.events == 0


def test_pressure_deltas_leave_out_what_the_kernel_does_not_have() -> None:
    sample = psi_sample(Psi(10, None, 7, 3, 1), Psi(4, None, 7, None, 2), t_us=T0, window_us=50)
    assert (sample.memory_some_us, sample.memory_full_us, sample.cpu_some_us) == (6, None, 0)
    assert (sample.io_some_us, sample.io_full_us, sample.window_us) == (3, 0, 50)


@pytest.fixture
def group() -> Iterator[CgroupHandle]:
    if os.geteuid() != 0:
        pytest.skip("making cgroups needs root")
    with cgroup_root() as name:
        tree = CgroupTree(cgroup_layout.discover(), name)
        tree.add_session("s")
        yield tree.add_call("s", "c1")
        tree.close()


@pytest.mark.kernel
def test_a_limit_that_is_hit_becomes_one_event(group: CgroupHandle, observer: ScriptedObserver) -> None:
    """GIVEN a real group with a small limit THEN hits are told as deltas, and the limit with the sample."""
    if group.memory().charged_bytes is None or group.memory_dir is None:
        pytest.skip("no memory controller here")
    v1 = (group.memory_dir / "memory.limit_in_bytes").exists()
    (group.memory_dir / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(8 << 20))
    observer.by_subject[5] = SubjectStats(anon_bytes=1)
    sampler = Sampler(observer, kills_reported=False)
    target = Target("call", "s", "c1", 5, group)
    (before,) = of(sampler.sample([target], T0), MemSample)
    assert isinstance(before, MemSample)
    assert before.max_bytes == 8 << 20
    pid = os.fork()
    if pid == 0:
        time.sleep(0.1)
        bytearray(64 << 20)
        os._exit(0)
    group.move(pid)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -9
    observer.by_subject[5].anon_bytes = 2
    (event,) = of(sampler.sample([target], T0 + 100_000), MemEvent)
    assert isinstance(event, MemEvent)
    assert event.max > 0
    assert event.oom_kill == 1
    observer.by_subject[5].anon_bytes = 3
    assert of(sampler.sample([target], T0 + 200_000), MemEvent) == []
    reported = Sampler(observer, kills_reported=True)
    (other,) = of(reported.sample([target], T0), MemEvent)
    assert isinstance(other, MemEvent)
    assert other.oom_kill == 0, "the observer named the victim already"


@pytest.mark.kernel
def test_pressure_and_charge_come_from_the_group(group: CgroupHandle, observer: ScriptedObserver) -> None:
    if group.memory_stall_us() is None:
        pytest.skip("no pressure figures here")
    observer.by_session[1] = SubjectStats(anon_bytes=1)
    sampler = Sampler(observer, kills_reported=True)
    with sleeper() as pid:
        group.move(pid)
        records = sampler.sample([Target("session", "s", None, 1, group)], T0 + 5_000_000)
        later = sampler.sample([Target("session", "s", None, 1, group)], T0 + 6_000_000)
    (memory,) = of(records, MemSample)
    assert isinstance(memory, MemSample)
    assert (memory.charged_bytes is not None) == (group.memory_dir is not None)
    (psi,) = [r for r in later if isinstance(r, PsiSample) and r.session]
    assert (psi.subject, psi.window_us, psi.memory_some_us) == ("session", 1_000_000, 0)


def test_of_thousands_of_calls_each_has_its_turn(sampler: Sampler, observer: ScriptedObserver) -> None:
    count = 3 * MAX_PER_TICK - 100
    targets = [Target("call", "s", f"c{n}", n, None) for n in range(count)]
    observer.by_subject.update({n: SubjectStats(anon_bytes=4096, oncpu_us=n) for n in range(count)})
    seen: list[str | None] = []
    cpu_us = 0
    for tick in range(3):
        records = sampler.sample(targets, T0 + tick * 100_000)
        memory = of(records, MemSample)
        assert len(memory) <= MAX_PER_TICK, "one tick does not take for ever"
        seen += [record.call for record in memory if isinstance(record, MemSample)]
        cpu_us += sum(record.oncpu_us for record in records if isinstance(record, SchedSample))
    assert sorted(map(str, seen)) == sorted(f"c{n}" for n in range(count))
    assert cpu_us == sum(range(count)), "what was skipped is told later"
