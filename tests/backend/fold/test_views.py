"""The JSON shapes are what the pages are written against."""

from __future__ import annotations

from tests.support import records as make
from tests.support.records import MB, at
from tidegate.fold import State, fold, views
from tidegate_collectors.records import Capability, HostInfo, MemEvent, Note, RunMeta, SelfCost

SESSION_KEYS = {
    "id", "title", "agent", "priority", "state", "host", "started_us", "ended_us", "end_reason", "exit_code", "signal",
    "budget_bytes", "runtime_bytes", "calls_bytes", "peak_bytes", "calls_total", "calls_running", "bursts", "ooms",
    "left_behind", "tool_time_us", "bursts_in_calls", "cpu_us", "wait_us", "stall_us", "current", "last_t_us", "planes",
    "turns", "current_turn", "kv",
}  # fmt: skip
CALL_KEYS = {
    "session", "id", "ordinal", "tool", "category", "command", "hint", "hint_bytes", "boundary", "pid", "cgroup_id",
    "started_us", "ended_us", "state", "lane", "exit_code", "signal", "oom", "duration_us", "bytes", "peak_bytes",
    "spike_bytes", "kept_bytes", "charged_peak_bytes", "rise_bytes_per_s", "cpu_us", "wait_us", "stall_us", "processes",
    "left_behind", "bursts", "agent_tool", "agent_call_id", "match_confidence", "match_how", "match_position",
    "result_chars", "agent_failed",
}  # fmt: skip
HOST_KEYS = {
    "host", "kernel", "cpus", "mem_total_bytes", "mem_available_bytes", "swap_used_bytes", "cpu_busy_ratio",
    "last_t_us", "own",
}  # fmt: skip
FRAME_KEYS = {"ord", "now_us", "sessions", "calls", "hosts", "engines", "spark", "series", "events", "lost", "sources"}
STATE_KEYS = {
    "run", "ord", "now_us", "sessions", "hosts", "engines", "lost", "sources", "events", "spark", "unknown_types",
}  # fmt: skip


def test_every_key_is_there() -> None:
    state = fold(State(), make.numbered(make.session_start(0), make.call_start(1), make.host(1, 100)))
    frame = make.plain(views.frame_view(state, state.changes(), now_us=at(2)))
    assert set(frame["sessions"][0]) == SESSION_KEYS
    assert set(frame["sessions"][0]["current"]) == {"id", "tool", "category", "command", "started_us", "bytes"}
    assert set(frame["calls"][0]) == CALL_KEYS
    assert set(frame["hosts"][0]) == HOST_KEYS
    assert set(frame["hosts"][0]["own"]) == {"cpu_ratio", "rss_bytes", "bpf_run_ratio", "events"}
    assert set(frame) == FRAME_KEYS
    whole = make.plain(views.state_view(state, now_us=at(2), replay=True))
    assert set(whole) == STATE_KEYS
    assert set(whole["run"]) == {"id", "title", "source", "started_us", "ended_us", "replay"}
    assert whole["run"]["replay"] is True


def test_the_host_and_what_the_collector_takes() -> None:
    state = fold(
        State(),
        make.numbered(
            RunMeta(v=1, t=at(0), host="h", run="r", machine=HostInfo(kernel="6.1", cpus=4, memory_bytes=1)),
            make.host(
                1, 100, cpu_busy_us=1_000_000, own=SelfCost(cpu_us=20_000, rss_bytes=7, bpf_run_us=5000, events=3)
            ),
            make.host(2, 200, cpu_busy_us=2_000_000, own=SelfCost(cpu_us=10_000, rss_bytes=8, events=4)),
        ),
    )
    host = views.host_view(state.hosts["h"])
    assert (host.kernel, host.cpus, host.mem_available_bytes, host.last_t_us) == ("6.1", 4, 200 * MB, at(2))
    assert host.cpu_busy_ratio == 0.5
    assert (host.own.cpu_ratio, host.own.rss_bytes, host.own.bpf_run_ratio, host.own.events) == (0.01, 8, None, 7)


def test_without_the_number_of_cpus_their_load_is_unknown() -> None:
    state = fold(State(), make.numbered(make.host(1, 100, cpu_busy_us=5)))
    assert views.host_view(state.hosts["h"]).cpu_busy_ratio is None


def test_events_are_newest_first_and_their_texts_are_cut() -> None:
    hostile = make.HOSTILE[0]
    state = fold(
        State(),
        make.numbered(
            make.session_start(0),
            MemEvent(v=1, t=at(1), session="s", max=4),  # a limit that was touched is no event for people
            Note(v=1, t=at(2), text=hostile, by="x" * 100_000),
            make.call_end(3),
            make.mem(4, 1),
        ),
    )
    events = views.events_view(state)
    assert [(event.ord, event.type) for event in events] == [(4, "call.end"), (3, "note"), (1, "session.start")]
    assert events[1].body["text"] == hostile
    assert len(events[1].body["by"]) == 2048
    assert events[0].body == {"exit_code": 0}


def test_the_latest_word_on_a_capability_counts() -> None:
    words = [Capability(v=1, t=at(i), host="h", name="bpf", available=bool(i), reason=str(i)) for i in range(2)]
    state = fold(State(), make.numbered(*words))
    assert [(c.name, c.available, c.reason) for c in views.capability_views(state)] == [("bpf", True, "1")]
