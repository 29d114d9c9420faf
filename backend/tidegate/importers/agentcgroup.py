"""AgentCgroup's trace folders: one session for each attempt at a task, one for each process of an evaluation.

Read: resources.json (memory and CPU of the container), tool_calls.json, trace.jsonl (turns and tokens), results.json
(limit, end, exit code), ebpf_trace.jsonl (processes), and config.json with its high/low results. A path may be one such
folder, a folder of many, or one of the files. What is estimated and what is left out is told; see docs/imports.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from tidegate.errors import BadInputError, NotFoundError
from tidegate_collectors.records import Capability, HostInfo, Record, RunEnd, RunMeta

from ._agentcgroup_evaluation import evaluation_records
from ._agentcgroup_folder import Evaluation, find
from ._agentcgroup_session import attempt_records
from ._build import identifier, in_order, printable
from ._skipped import Skipped

MAX_TRACES: Final = 2000
"""A state holds so many sessions; further folders are told and left out."""

_WHOLE_CONTAINER: Final = (
    "the trace has the memory and CPU of the whole container only, so all of it is shown as the runtime's"
)
_TOTALS: Final = "the results of an evaluation have the peak of each process and no samples"
_SAMPLED: Final = "the trace has samples of about one a second, and no kernel events between them"


def detect(path: Path) -> bool:
    """Whether there is a trace of AgentCgroup at or below the path."""
    return next(find(path), None) is not None


def read(path: Path, skipped: Skipped) -> Iterator[Record]:
    """The records of all traces at and below a path, in order of time.

    Raises:
        NotFoundError: there is no such path.
        BadInputError: there is no trace, or none with anything in it.
    """
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    records: list[Record] = []
    memory_bytes = 0
    titles: list[str] = []
    strategies: list[str] = []
    for number, trace in enumerate(islice(find(path), MAX_TRACES + 1)):
        if number == MAX_TRACES:
            skipped.add(path.name, None, f"only the first {MAX_TRACES} traces were read")
            break
        if isinstance(trace, Evaluation):
            found, strategy = evaluation_records(trace, skipped)
            strategies += [strategy] if found else []
        else:
            attempt = attempt_records(trace, skipped)
            found, memory_bytes = attempt.records, memory_bytes or attempt.host_bytes or 0
            titles += [attempt.title] if found else []
        records += found
    if not records:
        raise BadInputError("no trace of AgentCgroup with anything to show in it", source=str(path))
    start_us = min(record.t for record in records)
    arms = set(strategies)
    yield RunMeta(
        t=start_us,
        run=identifier(path.name.partition(".json")[0]),
        title=titles[0] if len(titles) == 1 and not strategies else printable(path.name, 120),
        source="imported",
        machine=HostInfo(memory_bytes=memory_bytes) if memory_bytes else None,
        arm=(arms.pop() or None) if len(arms) == 1 and not titles else None,
    )
    if titles:
        yield Capability(t=start_us, name="memory.calls", available=False, reason=_WHOLE_CONTAINER)
        yield Capability(t=start_us, name="memory.bursts", available=False, reason=_SAMPLED)
    if strategies:
        yield Capability(t=start_us, name="memory.samples", available=False, reason=_TOTALS)
    yield from in_order(records)
    yield RunEnd(t=max(record.t for record in records), clean=True)
