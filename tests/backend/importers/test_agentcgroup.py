"""AgentCgroup folders, written by us: every value is known."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar, cast

import pytest

from tests.support.foreign_traces import (
    BOOT_NS,
    CALLS,
    COMMAND,
    SAMPLES,
    T0_S,
    T0_US,
    agentcgroup_folder,
    call,
    evaluation_folder,
    process_events,
    sample,
    write_lines,
)
from tidegate.errors import BadInputError, NotFoundError
from tidegate.fold import State, fold
from tidegate.fold.views import call_view, session_view
from tidegate.importers import Skipped, detect, read
from tidegate.importers._agentcgroup_ebpf import Interval, read_processes
from tidegate.importers._agentcgroup_files import size_bytes
from tidegate_collectors import records
from tidegate_collectors.records import (
    AnyRecord,
    CallEnd,
    CallMatch,
    CallStart,
    MemSample,
    Note,
    ProcExec,
    ProcExit,
    Record,
    RunMeta,
    SchedSample,
    SessionEnd,
    SessionStart,
    TurnEnd,
)

T = TypeVar("T", bound=Record)


def _folded(found: Iterable[Record]) -> State:
    return fold(State(track=False), enumerate(cast("Iterable[AnyRecord]", found), start=1))


def _of(found: list[Record], kind: type[T]) -> list[T]:
    return [record for record in found if isinstance(record, kind)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return agentcgroup_folder(tmp_path / "task" / "attempt_1", limit="4g")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0B", 0),
        ("183MB", 183_000_000),
        ("1.862GB", 1_862_000_000),
        (" 114.7kB ", 114_700),
        ("1.5GiB", 3 << 29),
        ("2TB", 2_000_000_000_000),
        ("999.9MB", 999_900_000),
        ("1.0000001kB", 1000),
        ("--", None),
        ("-1MB", None),
        ("183", None),
        ("1e3MB", None),
        ("183 MB", 183_000_000),
        ("9" * 40 + "B", None),
    ],
)
def test_sizes_are_decimal_and_exact(text: str, expected: int | None) -> None:
    assert size_bytes(text) == expected


def test_a_folder_becomes_one_session_in_order_of_time(folder: Path) -> None:
    skipped = Skipped()
    found = list(read(folder, skipped))

    assert isinstance(found[0], RunMeta)
    assert (found[0].source, found[0].t) == ("imported", T0_US)
    assert [record.t for record in found] == sorted(record.t for record in found)
    assert {record.session for record in found} == {None, "task.attempt_1"}
    assert Counter(type(record).__name__ for record in found) == {
        "RunMeta": 1, "Capability": 2, "SessionStart": 1, "SessionEnd": 1, "MemSample": 7, "SchedSample": 5,
        "CallStart": 4, "CallEnd": 4, "CallMatch": 2, "TurnStart": 3, "TurnEnd": 3, "ProcExec": 5, "ProcExit": 4,
        "Note": 1, "RunEnd": 1,
    }  # fmt: skip
    for record in found:
        record.v, record.src = records.VERSION, "import-0"
        assert records.decode(records.encode(record)) == record


def test_times_are_taken_from_the_epoch_and_bytes_are_exact(folder: Path) -> None:
    samples = _of(list(read(folder, Skipped())), MemSample)

    assert [(s.t - T0_US) // 1_000_000 for s in samples] == [0, 1, 2, 3, 4, 5, 6]
    assert [s.anon_bytes for s in samples] == [
        11_960_000, 183_000_000, 1_862_000_000, 1_200_000_000, 200_000_000, 190_500, 0
    ]  # fmt: skip
    assert {s.max_bytes for s in samples} == {4 << 30}


def test_cpu_is_rebuilt_from_the_running_average(folder: Path) -> None:
    """50 % after 1 s, 100 % after 2 s, 100 % after 3 s: half a second, one and a half, one; idle at the end."""
    cpu = _of(list(read(folder, Skipped())), SchedSample)

    assert [s.oncpu_us for s in cpu] == [500_000, 1_500_000, 1_000_000, 200_000, 0]
    assert {s.window_us for s in cpu} == {1_000_000}


def test_calls_keep_their_times_and_say_what_they_were_for(folder: Path) -> None:
    found = list(read(folder, Skipped()))
    starts = {record.call: record for record in _of(found, CallStart)}
    ends = {record.call: record for record in _of(found, CallEnd)}

    assert [(s.tool, s.category, s.command, s.boundary) for s in starts.values()] == [
        ("Bash", "tests", "python -m pytest", "import"),
        ("Read", "read", None, "import"),
        ("Task", "other", None, "import"),
        ("Bash", "git", "git diff", "import"),
    ]
    assert starts["c1"].t == T0_US + 1_500_000
    assert (ends["c1"].duration_us, ends["c1"].spike_bytes) == (2_000_000, 1_679_000_000)
    assert (starts["c1"].turn, ends["c1"].result_chars) == ("m1", len("Exit code 2\nsecret output"))
    assert (ends["c4"].lost, ends["c4"].duration_us, ends["c4"].t) == (True, None, starts["c4"].t)


def test_processes_belong_to_the_call_whose_shell_they_come_from(folder: Path) -> None:
    found = list(read(folder, Skipped()))
    begun = {(record.pid, record.call) for record in _of(found, ProcExec)}
    (python,) = [record for record in _of(found, ProcExit) if record.pid == 201]

    assert begun == {(100, None), (150, None), (200, "c1"), (201, "c1"), (300, None)}
    assert next(s.pid for s in _of(found, CallStart) if s.call == "c1") == 200
    assert (python.t, python.exit_code, python.hiwater_bytes) == (T0_US + 3_400_000, 1, 2_048_000)
    assert next(e.exit_code for e in _of(found, CallEnd) if e.call == "c1") == 1
    # 0 is what a signal leaves too, so nothing is known of it.
    assert [record.exit_code for record in _of(found, ProcExit) if record.pid != 201] == [None, 1, None]


def test_a_match_says_how_it_was_found(folder: Path) -> None:
    matches = {record.call: record for record in _of(list(read(folder, Skipped())), CallMatch)}

    assert (matches["c1"].confidence, matches["c1"].position, matches["c1"].failed) == ("likely", 1, True)
    assert matches["c1"].how == "the shell that the agent started 8.0 ms after the call"
    assert (matches["c2"].confidence, matches["c2"].position, matches["c2"].failed) == ("none", 0, False)


def test_monotonic_time_is_tied_to_the_wall_between_two_marks(tmp_path: Path) -> None:
    events = process_events()
    events[-1]["wall_time_ns"] += 6_000_000  # the wall clock was slewed by 6 ms over these 6 s
    folder = agentcgroup_folder(tmp_path / "a")
    write_lines(folder / "ebpf_trace.jsonl", events)
    python = [record for record in _of(list(read(folder, Skipped())), ProcExit) if record.pid == 201]

    assert python[0].t == T0_US + 3_403_400


def test_processes_without_a_clock_are_left_out_and_told(tmp_path: Path) -> None:
    folder = agentcgroup_folder(tmp_path / "a")
    write_lines(folder / "ebpf_trace.jsonl", [event for event in process_events() if event["event"] != "CLOCK_SYNC"])
    skipped = Skipped()

    assert not _of(list(read(folder, skipped)), ProcExec)
    assert any("CLOCK_SYNC" in skip.reason for skip in skipped.kept)


def test_the_fold_shows_the_session(folder: Path) -> None:
    state = _folded(read(folder, Skipped()))
    (session,) = state.sessions.values()
    view = session_view(session)

    assert (view.title, view.state, view.end_reason, view.exit_code) == (
        "owner__project-7 (haiku)",
        "ended",
        "finished",
        0,
    )
    assert (view.budget_bytes, view.peak_bytes) == (4 << 30, 1_862_000_000)
    assert view.tool_time_us == 2_600_000  # c2 lies within c1
    assert view.cpu_us == 3_200_000
    assert call_view(session.calls["c1"]).processes == 2
    assert {name for _, _, name in state.capabilities} == {"memory.calls", "memory.bursts"}


def test_arguments_prompts_and_results_are_not_stored(folder: Path) -> None:
    stored = b"\n".join(records.encode(record) for record in read(folder, Skipped()))

    assert "secret" in COMMAND
    assert b"python -m pytest" in stored
    assert b"secret" not in stored


def test_the_transcript_alone_gives_calls_and_turns(folder: Path) -> None:
    (folder / "tool_calls.json").unlink()
    found = list(read(folder, Skipped()))

    assert [(s.call, s.category) for s in _of(found, CallStart)] == [("c1", "tests"), ("c2", "read")]
    (first, *_) = _of(found, TurnEnd)
    assert (first.prompt_tokens, first.cached_device_tokens, first.recomputed_tokens, first.output_tokens) == (
        3210, 3000, 210, 40
    )  # fmt: skip


def test_several_attempts_are_several_sessions(folder: Path) -> None:
    for name in ("attempt_2", "deep/down/attempt_1"):
        shutil.copytree(folder, folder.parent / name)
    evaluation_folder(folder.parent / "evaluation" / "run1")
    skipped = Skipped()
    found = list(read(folder.parent, skipped))

    assert sorted(record.session or "" for record in _of(found, SessionStart)) == [
        "deep.down.attempt_1", "evaluation.run1.high", "evaluation.run1.low1", "evaluation.run1.low2",
        "task.attempt_1", "task.attempt_2",
    ]  # fmt: skip
    assert found[0].t == T0_US
    assert [record.t for record in found] == sorted(record.t for record in found)


def test_the_tracers_folder_has_the_rest_in_swebench(tmp_path: Path) -> None:
    inner = agentcgroup_folder(tmp_path / "study" / "swebench")
    shutil.move(inner / "ebpf_trace.jsonl", inner.parent)
    found = list(read(tmp_path, Skipped()))

    assert {record.session for record in found} == {None, "study"}
    assert len(_of(found, MemSample)) == 7
    assert len(_of(found, ProcExec)) == 5


@pytest.mark.parametrize(
    ("name", "kind"), [("resources.json", MemSample), ("tool_calls.json", CallStart), ("ebpf_trace.jsonl", ProcExec)]
)
def test_one_of_the_files_alone_is_enough(folder: Path, name: str, kind: type[Record]) -> None:
    single = folder.parent / "upload"
    shutil.move(folder / name, single)
    known = detect(single)

    assert known is not None and known.name == "agentcgroup"
    assert _of(list(read(single, Skipped())), kind)


def test_an_evaluation_has_a_session_for_each_process(tmp_path: Path) -> None:
    skipped = Skipped()
    found = list(read(evaluation_folder(tmp_path / "run1"), skipped))
    state = _folded(found)
    views = {name: session_view(session) for name, session in state.sessions.items()}

    assert [(v.priority, v.end_reason, v.peak_bytes) for v in views.values()] == [
        ("high", "finished", 441_345_638), ("low", "finished", 441_345_638), ("low", "killed", None)
    ]  # fmt: skip
    assert (views["run1.high"].started_us, views["run1.high"].ended_us) == (T0_US + 500_000, T0_US + 2_500_000)
    assert isinstance(found[0], RunMeta)
    assert found[0].arm == "bpf"
    assert any("2 allocations: p50 0.50 ms" in note.text for note in _of(found, Note))
    assert any(skip.place == "run1/low2_result.json" for skip in skipped.kept)


def test_bad_samples_are_told_with_their_lines(tmp_path: Path) -> None:
    bad = [
        SAMPLES[0],
        {**SAMPLES[1], "epoch": "yesterday"},
        {**SAMPLES[1], "epoch": -5},
        {**SAMPLES[1], "epoch": 1e300},
        {**SAMPLES[1], "mem_usage": "-- / --"},
        "not a sample",
        SAMPLES[2],
        SAMPLES[1],
        {**SAMPLES[3], "cpu_percent": "nan%"},
    ]
    path = tmp_path / "resources.json"
    path.write_text('{"samples": [\n' + ",\n".join(json.dumps(item) for item in bad) + "\n]}")
    skipped = Skipped()
    found = list(read(path, skipped))

    assert len(_of(found, MemSample)) == 3
    assert [(skip.line, skip.reason.partition(":")[0]) for skip in skipped.kept[:7]] == [
        (3, "no sample"), (4, "no sample"), (5, "no sample"), (6, "no sample"), (7, "no sample"),
        (9, "a sample that is not later than the one before"), (None, skipped.kept[6].reason.partition(":")[0]),
    ]  # fmt: skip


def test_a_cut_file_is_used_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "resources.json"
    whole = json.dumps({"samples": SAMPLES}, indent=1)
    path.write_text(whole[: whole.index("200MB")])
    skipped = Skipped()
    found = list(read(path, skipped))
    cut = next(skip for skip in skipped.kept if skip.line is not None)

    assert len(_of(found, MemSample)) == 4
    assert cut.line is not None
    assert whole.splitlines()[cut.line - 1].strip() == "{"


def test_calls_that_cannot_be_are_told_with_their_lines(folder: Path) -> None:
    calls = [
        CALLS[0],
        {**CALLS[1], "timestamp": "2026-02-06T17:47:12"},
        {**CALLS[1], "id": ""},
        CALLS[0],
        call("back", "Bash", 3, 2, {}),
        {"tool": "Bash"},
    ]
    (folder / "tool_calls.json").write_text("[\n" + ",\n".join(json.dumps(one) for one in calls) + "\n]")
    skipped = Skipped()
    found = list(read(folder, skipped))
    told = [(skip.line, skip.reason) for skip in skipped.kept if skip.place.endswith("tool_calls.json")]

    assert [record.call for record in _of(found, CallStart)] == ["c1", "back"]
    assert [line for line, _ in told] == [3, 4, 5, 6, 7]
    assert "time zone" in told[0][1]
    assert "ends before it begins" in told[3][1]


def test_other_files_of_a_trace_may_be_broken(folder: Path) -> None:
    for name in ("results.json", "trace.jsonl", "ebpf_trace.jsonl", "tool_calls.json"):
        (folder / name).write_bytes(b"\xff\x00{")
    skipped = Skipped()
    found = list(read(folder, skipped))

    assert len(_of(found, MemSample)) == 7
    assert _of(found, SessionEnd)[0].lost
    assert {skip.place.rpartition("/")[2] for skip in skipped.kept} >= {
        "results.json", "trace.jsonl", "ebpf_trace.jsonl", "tool_calls.json"
    }  # fmt: skip


def test_a_process_of_another_pid_incarnation_is_not_the_calls(tmp_path: Path) -> None:
    """The pid of the call's shell comes back later for something else."""
    events = process_events()
    again = {**events[4], "timestamp": BOOT_NS + 5_000_000_000, "ppid": 1, "comm": "cron"}
    folder = agentcgroup_folder(tmp_path / "a")
    write_lines(folder / "ebpf_trace.jsonl", [*events, again])
    pids = [(record.t, record.call) for record in _of(list(read(folder, Skipped())), ProcExec) if record.pid == 200]

    assert pids == [(T0_US + 1_508_000, "c1"), (T0_US + 5_000_000, None)]


def test_hostile_names_do_not_get_through(folder: Path) -> None:
    evil = "\x1b[31m<script>\u202e" + "x" * 5000
    (folder / "tool_calls.json").write_text(json.dumps([call("c1", evil, 1, 2, {}), call(evil, "Bash", 1, 2, {})]))
    results = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps({**results, "image": "x/x86_64." + evil, "model": evil}))
    found = list(read(folder, Skipped()))

    for record in found:
        for name in ("tool", "title", "command", "call", "text"):
            text = getattr(record, name, None) or ""
            assert text.isprintable() and len(text) < 500


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        list(read(tmp_path / "missing", Skipped()))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NotFoundError, match="none of the formats"):
        list(read(tmp_path, Skipped()))
    (tmp_path / "resources.json").write_text(json.dumps({"samples": []}))
    with pytest.raises(BadInputError, match="anything to show"):
        list(read(tmp_path, Skipped()))


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "upload"
    root.mkdir()
    (root / "loop").symlink_to(root)
    (root / "outside").symlink_to(folder)
    (root / "resources.json").symlink_to(folder / "resources.json")

    assert detect(root) is None


def test_a_huge_average_gives_no_cpu(tmp_path: Path) -> None:
    path = tmp_path / "resources.json"
    samples = [sample(second, "1MB", 999_999_999) for second in range(3)]
    samples[2]["epoch"] = T0_S + 7e9
    path.write_text(json.dumps({"samples": samples}))
    skipped = Skipped()
    found = list(read(path, skipped))

    assert not _of(found, SchedSample)
    assert any("out of range" in skip.reason for skip in skipped.kept)


def test_calls_that_all_overlap_find_their_shells_at_once(tmp_path: Path) -> None:
    """Each of many calls would look at all the shells that those before it took."""
    count = 20_000
    events = process_events()
    clock, agent, shell = events[0], events[1], events[4]
    assert (agent["comm"], shell["comm"]) == ("claude", "bash")
    shells = [{**shell, "pid": 1000 + i, "timestamp": shell["timestamp"] + i} for i in range(count)]
    path = write_lines(tmp_path / "ebpf_trace.jsonl", [clock, agent, *shells])
    calls = [Interval(f"c{i}", "Bash", T0_US + i, T0_US + 10_000_000) for i in range(count)]
    began = time.process_time()
    found = read_processes(path, "x", "s", calls, Skipped())

    assert [root.pid for root in found.roots.values()] == list(range(1000, 1000 + count))
    assert time.process_time() - began < 5, "looking at each again takes twice as long"
