"""AgentCgroup's evaluation: processes that replay a trace's memory under a strategy, one result file each."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError, NotFoundError
from tidegate_collectors.records import MemEvent, MemSample, Note, Priority, Record, SessionEnd, SessionStart

from ._agentcgroup_folder import Evaluation
from ._build import count, micros, printable
from ._files import document
from ._skipped import Skipped

_EVENTS: Final = ("low", "high", "max", "oom", "oom_kill")


class _Config(Struct):
    strategy: str = ""
    total_memory_mb: float | None = None
    bpf_delay_ms: float | None = None
    speed_factor: float | None = None
    high_trace: str | None = None
    low1_trace: str | None = None
    low2_trace: str | None = None


class _Latency(Struct):
    count: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    max_ms: float | None = None


class _Result(Struct):
    start_time: float
    end_time: float
    pid: int | None = None
    peak_memory_bytes: int | None = None
    oom_count: int = 0
    events_delta: dict[str, Any] = {}
    latency_stats: _Latency | None = None


_config: Final[msgspec.json.Decoder[_Config]] = msgspec.json.Decoder(_Config)
_result: Final[msgspec.json.Decoder[_Result]] = msgspec.json.Decoder(_Result)


def evaluation_records(evaluation: Evaluation, skipped: Skipped) -> tuple[list[Record], str]:
    """The sessions of one evaluation run, one a process, and the strategy's name.

    A process without a result file was killed: when is not known, so it ends with the last of the others.
    """
    place = f"{evaluation.name}/{evaluation.config.name}"
    config = _Config()
    try:
        config = _config.decode(document(evaluation.config))
    except (msgspec.MsgspecError, ValueError, RecursionError, BadInputError, NotFoundError) as error:
        skipped.add(place, None, f"not used: {error}")
    traces = {"high": config.high_trace, "low1": config.low1_trace, "low2": config.low2_trace}
    records: list[Record] = []
    missing: list[str] = []
    for role in sorted({*evaluation.results, *(role for role, trace in traces.items() if trace)}):
        if role not in evaluation.results:
            missing.append(role)
            continue
        records += _process(evaluation, role, _title(role, traces.get(role), config), skipped)
    if records:
        first_us, last_us = min(record.t for record in records), max(record.t for record in records)
        for role in missing:
            records += _killed(evaluation, role, _title(role, traces.get(role), config), first_us, last_us)
            reason = "no result file: the process was killed; when is not known, it is shown at the end of the others"
            skipped.add(f"{evaluation.name}/{role}_result.json", None, reason)
    return records, printable(config.strategy, 40)


def _title(role: str, trace: str | None, config: _Config) -> str:
    memory = f", {config.total_memory_mb:g} MB in all" if config.total_memory_mb is not None else ""
    strategy = f" ({printable(config.strategy, 40)}{memory})" if config.strategy else ""
    return f"{role.upper()} replays {printable(trace or 'a trace', 80)}{strategy}"


def _session(evaluation: Evaluation, role: str) -> str:
    return f"{evaluation.name}.{role}"


def _priority(role: str) -> Priority:
    return "high" if role == "high" else "low"


def _process(evaluation: Evaluation, role: str, title: str, skipped: Skipped) -> list[Record]:
    path = evaluation.results[role]
    place = f"{evaluation.name}/{path.name}"
    try:
        result = _result.decode(document(path))
    except (msgspec.MsgspecError, ValueError, RecursionError, BadInputError, NotFoundError) as error:
        skipped.add(place, None, f"not used: {error}")
        return []
    start_us, end_us = micros(result.start_time), micros(result.end_time)
    if start_us is None or end_us is None or end_us < start_us:
        skipped.add(place, None, "not used: it has no start and end")
        return []
    session = _session(evaluation, role)
    pid = result.pid if result.pid is not None and 0 < result.pid < 1 << 31 else None
    records: list[Record] = [
        SessionStart(t=start_us, session=session, title=title, priority=_priority(role), pid=pid),
    ]
    peak = count(result.peak_memory_bytes)
    if peak is not None:  # its own account of what it had allocated; when it had the most is not known
        records.append(
            MemSample(t=end_us, session=session, subject="session", anon_bytes=0, peak_bytes=peak, source="procfs")
        )
    low, high, max_, oom, oom_kill = (count(result.events_delta.get(name)) or 0 for name in _EVENTS)
    if low or high or max_ or oom or oom_kill:
        records.append(MemEvent(t=end_us, session=session, low=low, high=high, max=max_, oom=oom, oom_kill=oom_kill))
    text = _latencies(result.latency_stats)
    if text:
        records.append(Note(t=end_us, session=session, text=text, by="import"))
        skipped.add(place, None, "allocation_latencies_ms have no times; only their quantiles are noted")
    ooms = count(result.oom_count) or 0
    records.append(SessionEnd(t=end_us, session=session, reason="oom" if ooms else "finished"))
    return records


def _latencies(stats: _Latency | None) -> str:
    if stats is None or stats.p50_ms is None or stats.p95_ms is None or stats.max_ms is None:
        return ""
    return (
        f"{stats.count} allocations: p50 {stats.p50_ms:.2f} ms, p95 {stats.p95_ms:.1f} ms, "
        f"slowest {stats.max_ms:.1f} ms"
    )


def _killed(evaluation: Evaluation, role: str, title: str, first_us: int, last_us: int) -> list[Record]:
    session = _session(evaluation, role)
    text = "no result file: the process was killed; when it began and ended is not known"
    return [
        SessionStart(t=first_us, session=session, title=title, priority=_priority(role)),
        Note(t=last_us, session=session, text=text, by="import"),
        SessionEnd(t=last_us, session=session, reason="killed"),
    ]
