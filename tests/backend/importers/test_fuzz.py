"""Importers on anything: bytes, JSON of other types, good files cut and changed. Only our own errors come out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support import foreign_traces
from tidegate.analysis.trace_bursts import burst_events
from tidegate.analysis.trace_capacity import capacity
from tidegate.analysis.trace_retries import repeated_tests, shell_runs
from tidegate.analysis.traces import change_rates, cores, idle_bytes, peak_over_mean, spikes, traces_of
from tidegate.errors import BadInputError, NotFoundError
from tidegate.fold import State, fold
from tidegate.fold.views import call_view, session_view
from tidegate.importers import FORMATS, Skipped, agentcgroup, agentcgroup_wrapper, claude_code, continuum, kv_events
from tidegate_collectors import records

FILES = ("resources.json", "tool_calls.json", "results.json", "trace.jsonl", "ebpf_trace.jsonl")
SINGLE: dict[str, tuple[Any, Any]] = {
    "wrapper": (foreign_traces.wrapper_log, agentcgroup_wrapper.read),
    "events.jsonl": (foreign_traces.kv_events, kv_events.read),
    "scheduler_timestamps.json": (foreign_traces.continuum_timestamps, continuum.read),
}
EVALUATION = ("config.json", "high_result.json", "low1_result.json")
Read = Callable[..., Any]

fuzz = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

EDGES = (
    -1,
    0,
    2**31,
    2**53,
    2**63,
    2**64,
    1e308,
    "0B",
    "9GB / 0B",
    "2026-01-01T00:00:00Z",
    "Bash",
    "tool_use",
    "\ud800",
)
odd = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400)
    | st.sampled_from(EDGES)
)  # fmt: skip
keys = st.text(max_size=4)
values = st.recursive(odd, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))


def check(read: Read, path: Path) -> None:
    """Read it all; what comes out is a run that everything behind it can take."""
    for known in FORMATS:
        known.detect(path)
    skipped = Skipped()
    try:
        found = list(read(path, skipped))
    except (BadInputError, NotFoundError):
        return
    assert isinstance(found[0], records.RunMeta)
    assert [record.t for record in found] == sorted(record.t for record in found)
    lines = []
    for seq, record in enumerate(found):
        record.v, record.seq, record.src = records.VERSION, seq, "import-0"
        lines.append(records.decode(records.encode(record)))
    state = fold(State(), enumerate(lines, start=1))
    for session in state.sessions.values():
        session_view(session)
        for call in session.calls.values():
            call_view(call)
    for trace in traces_of(lines).values():
        for figure in (
            burst_events,
            shell_runs,
            repeated_tests,
            change_rates,
            cores,
            idle_bytes,
            peak_over_mean,
            spikes,
        ):
            figure(trace)
        capacity([trace], 2, seed=1, draws=2)
    json.dumps(skipped.to_dict())


@pytest.mark.parametrize("name", [*FILES, *EVALUATION])
@given(content=st.binary(max_size=300))
@example(content=b"[" * 100_000)
@example(content=b'{"a":' * 50_000)
@example(content=b'{"samples": [' + b"[" * 50_000)
@example(content=b"[" + b"9" * 10_000 + b"]")
@example(content=b"\x1f\x8b\x08\x00cut")
@example(content=b"\x28\xb5\x2f\xfdcut")
@fuzz
def test_any_bytes_in_any_file(name: str, content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("f")
    folder = (
        foreign_traces.evaluation_folder(root / "t")
        if name in EVALUATION
        else foreign_traces.agentcgroup_folder(root / "t")
    )
    (folder / name).write_bytes(content)
    single = root / name
    single.write_bytes(content)

    check(agentcgroup.read, folder)
    for read in (agentcgroup.read, claude_code.read, agentcgroup_wrapper.read, kv_events.read, continuum.read):
        check(read, single)


@pytest.mark.parametrize("name", [*FILES, *EVALUATION, *SINGLE])
@given(data=st.data())
@fuzz
def test_good_files_cut_and_changed(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("f")
    path, read, target = _good(root, name)
    content = bytearray(target.read_bytes())
    for _ in range(data.draw(st.integers(0, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from(b'"{}[],:\\\n09-eEa\x00\xff'))
    target.write_bytes(content[: data.draw(st.integers(0, len(content)))])

    check(read, path)


@pytest.mark.parametrize("name", [*FILES, *EVALUATION, *SINGLE])
@given(data=st.data())
@fuzz
def test_good_files_with_values_of_other_types(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("f")
    path, read, target = _good(root, name)
    text = target.read_text()
    whole = name.endswith(".json")
    documents = [json.loads(text)] if whole else [json.loads(line) for line in text.splitlines() if _is_json(line)]
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(documents) - 1))
        documents[index] = _swapped(documents[index], data)
    target.write_text("\n".join(json.dumps(document) for document in documents))

    check(read, path)


def _good(root: Path, name: str) -> tuple[Path, Read, Path]:
    if name in SINGLE:
        make, read = SINGLE[name]
        path = make(root / name)
        return path, read, path
    if name in EVALUATION:
        folder = foreign_traces.evaluation_folder(root / "t")
        return folder, agentcgroup.read, folder / name
    folder = foreign_traces.agentcgroup_folder(root / "t")
    read = claude_code.read if name == "trace.jsonl" else agentcgroup.read
    return folder, read, folder / name


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _swapped(value: Any, data: st.DataObject) -> Any:
    """The value with one thing somewhere in it replaced by anything."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 9)):
        key = data.draw(st.sampled_from(sorted(value)))
        return {**value, key: _swapped(value[key], data)}
    if isinstance(value, list) and value and data.draw(st.integers(0, 9)):
        index = data.draw(st.integers(0, len(value) - 1))
        return [*value[:index], _swapped(value[index], data), *value[index + 1 :]]
    return data.draw(values)
