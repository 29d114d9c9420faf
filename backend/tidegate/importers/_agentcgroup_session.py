"""One attempt of AgentCgroup as a session: its files put together on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from tidegate.analysis.columns import I8
from tidegate.analysis.running_average import rebuild
from tidegate.errors import BadInputError, NotFoundError
from tidegate_collectors.records import (
    CallEnd,
    CallStart,
    MemSample,
    Note,
    Record,
    SchedSample,
    SessionEnd,
    SessionStart,
)

from ._agentcgroup_ebpf import Interval, Processes, read_processes
from ._agentcgroup_files import Outcome, RecordedCall, Sample, read_calls, read_outcome, read_samples, task_of
from ._agentcgroup_folder import CALLS, PROCESSES, RESOURCES, RESULTS, TRANSCRIPT, Attempt
from ._build import named_call, printable
from ._files import MAX_T_US
from ._skipped import Skipped
from ._transcript import Conversation, Transcripts, match_record, turn_records

_CPU: Final = (
    "cpu_percent is the average since the container's start: the CPU at each instant is rebuilt from it, "
    "to within {error_ms} ms at the last sample"
)


@dataclass(slots=True)
class AttemptRecords:
    """The records of a session and its title, and the memory of the machine where that is known."""

    records: list[Record]
    title: str
    host_bytes: int | None


@dataclass(slots=True)
class _Read:
    """What was found in the files of an attempt."""

    samples: list[Sample] = field(default_factory=list)
    calls: list[RecordedCall] = field(default_factory=list)
    conversation: Conversation | None = None
    outcome: Outcome = field(default_factory=Outcome)
    processes: Processes = field(default_factory=lambda: Processes([], {}))


def attempt_records(attempt: Attempt, skipped: Skipped) -> AttemptRecords:
    """The records of an attempt in no order; none where its files hold nothing. A file that cannot be read is told."""
    found = _read(attempt, skipped)
    body = [
        *_memory(attempt.name, found),
        *_cpu(attempt, found.samples, skipped),
        *_calls(attempt.name, found),
        *found.processes.records,
    ]
    if found.conversation is not None:
        body += turn_records(attempt.name, found.conversation)
    if not body:
        skipped.add(attempt.name, None, "a trace with nothing in it")
        return AttemptRecords([], "", None)
    total = next((sample.total_bytes for sample in found.samples if sample.total_bytes), None)
    unlimited = found.outcome.known_limit and found.outcome.limit_bytes is None
    title = _title(attempt.name, found.outcome)
    return AttemptRecords(_framed(attempt.name, title, found, body), title, total if unlimited else None)


def _read(attempt: Attempt, skipped: Skipped) -> _Read:
    found = _Read()
    files = attempt.files
    if RESULTS in files:
        found.outcome = read_outcome(files[RESULTS], _place(attempt, RESULTS), skipped)
    if RESOURCES in files:
        try:
            found.samples = read_samples(files[RESOURCES], _place(attempt, RESOURCES), skipped)
        except (NotFoundError, BadInputError) as error:
            skipped.add(_place(attempt, RESOURCES), None, f"not used: {error}")
    if TRANSCRIPT in files:
        found.conversation = _conversation(attempt, skipped)
    if CALLS in files:
        try:
            found.calls = read_calls(files[CALLS], _place(attempt, CALLS), skipped)
        except (NotFoundError, BadInputError) as error:
            skipped.add(_place(attempt, CALLS), None, f"not used: {error}")
    if not found.calls and found.conversation is not None:
        found.calls = [
            RecordedCall(use.id, use.named[0], None, use.started_us, use.ended_us)
            for use in found.conversation.uses.values()
        ]
    if PROCESSES in files:
        calls = [
            Interval(call.id, call.tool, call.started_us, call.ended_us)
            for call in found.calls
            if call.ended_us is not None
        ]
        place = _place(attempt, PROCESSES)
        try:
            found.processes = read_processes(files[PROCESSES], place, attempt.name, calls, skipped)
        except (NotFoundError, BadInputError) as error:
            skipped.add(place, None, f"not used: {error}")
    return found


def _place(attempt: Attempt, name: str) -> str:
    return f"{attempt.name}/{name}"


def _conversation(attempt: Attempt, skipped: Skipped) -> Conversation | None:
    place = _place(attempt, TRANSCRIPT)
    transcripts = Transcripts(skipped)
    try:
        transcripts.read(attempt.files[TRANSCRIPT], place)
    except (NotFoundError, BadInputError) as error:
        skipped.add(place, None, f"not used: {error}")
    found = list(transcripts.conversations.values())
    if len(found) > 1:
        skipped.add(place, None, f"{len(found)} sessions in one transcript: only the longest is used")
    return max(found, key=lambda one: len(one.turns), default=None)


def _memory(session: str, found: _Read) -> list[Record]:
    limit = found.outcome.limit_bytes
    return [
        # podman's figure is what the memory controller charges, less page cache that is not in use.
        MemSample(
            t=sample.t_us, session=session, subject="session", anon_bytes=sample.used_bytes, max_bytes=limit,
            source="cgroupfs",
        )
        for sample in found.samples
    ]  # fmt: skip


def _cpu(attempt: Attempt, samples: list[Sample], skipped: Skipped) -> list[Record]:
    """Time on a CPU between two samples, rebuilt from the running average."""
    known = [(sample.t_us, sample.percent) for sample in samples if sample.percent is not None]
    if len(known) < 2:
        return []
    t_us = np.array([t for t, _ in known], dtype=np.int64)
    average = rebuild((t_us - t_us[0]) / 1e6, np.array([percent for _, percent in known], dtype=np.float64))
    used_us = np.rint(average.used_s * 1e6)
    if not bool(np.isfinite(used_us).all()) or float(used_us[-1]) >= MAX_T_US:
        skipped.add(_place(attempt, RESOURCES), None, "its cpu_percent is out of range: no CPU is shown")
        return []
    place = _place(attempt, RESOURCES)
    error_ms = 1 + int(t_us[-1] - t_us[0]) // 10_000_000  # the percentage is rounded to 0.01 of all time passed
    skipped.add(place, None, _CPU.format(error_ms=error_ms))
    if average.falls:
        skipped.add(place, None, f"at {average.falls} of {average.steps} samples the rebuilt CPU time fell: taken as 0")
    grown_us = np.diff(used_us).astype(np.int64)
    windows_us = np.diff(t_us)
    return [
        SchedSample(t=int(t), session=attempt.name, subject="session", oncpu_us=int(grown), window_us=int(window))
        for t, grown, window in zip(t_us[1:], grown_us, windows_us, strict=True)
    ]


def _calls(session: str, found: _Read) -> list[Record]:
    uses = found.conversation.uses if found.conversation is not None else {}
    sampled_us = np.array([sample.t_us for sample in found.samples], dtype=np.int64)
    used = np.array([sample.used_bytes for sample in found.samples], dtype=np.int64)
    records: list[Record] = []
    for call in found.calls:
        use = uses.get(call.id)
        tool, category, command = named_call(call.tool, call.arguments)
        if command is None and use is not None:
            tool, category, command = use.named
        root = found.processes.roots.get(call.id)
        turn = use.turn if use is not None else None
        records.append(
            CallStart(
                t=call.started_us, session=session, call=call.id, turn=turn, tool=tool, category=category,
                command=command, boundary="import", pid=root.pid if root is not None else None,
            )
        )  # fmt: skip
        if call.ended_us is None:
            records.append(CallEnd(t=call.started_us, session=session, call=call.id, turn=turn, lost=True))
            continue
        code = root.exit_code if root is not None else None
        records.append(
            CallEnd(
                t=call.ended_us, session=session, call=call.id, turn=turn, duration_us=call.ended_us - call.started_us,
                exit_code=code if code is not None else (use.exit_code if use is not None else None),
                spike_bytes=_spike(sampled_us, used, call.started_us, call.ended_us),
                result_chars=use.result_chars if use is not None else None,
            )
        )  # fmt: skip
        if root is not None or use is not None:
            lag_us = root.started_us - call.started_us if root is not None else None
            records.append(match_record(session, call.id, tool, (call.started_us, call.ended_us), use, lag_us=lag_us))
    return records


def _spike(sampled_us: I8, used: I8, start_us: int, end_us: int) -> int | None:
    """How far the session's memory rose above that before the call; None where no sample lies in the call."""
    first, last = np.searchsorted(sampled_us, [start_us, end_us], side="right")
    if first == 0 or first == last:
        return None
    return max(0, int(used[first:last].max()) - int(used[first - 1]))


def _title(session: str, outcome: Outcome) -> str:
    task = printable(task_of(outcome.image), 80)
    model = printable(outcome.model, 40)
    return f"{task} ({model})" if task and model else task or session


def _framed(session: str, title: str, found: _Read, body: list[Record]) -> list[Record]:
    """The body between the session's start and end."""
    outcome = found.outcome
    first_us, end_us = min(record.t for record in body), max(record.t for record in body)
    limit = outcome.limit_bytes
    start = SessionStart(t=first_us, session=session, agent="claude", title=title, budget_bytes=limit)
    records: list[Record] = [start, *body]
    init_us = round(outcome.life_s * 1e6) - (end_us - first_us) if outcome.life_s is not None else 0
    if outcome.life_s is not None and init_us > 0:
        text = f"the container lived {outcome.life_s:.1f} s, {init_us / 1e6:.1f} s of it before the first sample"
        records.append(Note(t=first_us, session=session, text=text, by="import"))
    if outcome.error:
        records.append(Note(t=end_us, session=session, text="results.json names an error", by="import"))
    code = outcome.exit_code
    if code is None:
        answered = found.conversation is not None and found.conversation.answered
        reason: Literal["answered", "finished"] = "answered" if answered else "finished"
        records.append(SessionEnd(t=end_us, session=session, reason=reason, lost=not answered))
    else:
        records.append(SessionEnd(t=end_us, session=session, reason="error" if code else "finished", exit_code=code))
    return records
