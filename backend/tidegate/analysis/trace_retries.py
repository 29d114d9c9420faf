"""Retries of a trace: the same thing tried again and again, the time it took and the memory that stayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from .intervals import covered_us
from .traces import Trace, TraceCall

MIN_CALLS: Final = 3
SHELL: Final = "Bash"


@dataclass(frozen=True, slots=True)
class RetryGroup:
    """Calls that follow each other without another tool between them.

    ``kept_bytes``: memory after the group less memory before it; None where no sample lies on one of its sides.
    """

    calls: tuple[TraceCall, ...]
    covered_us: int
    kept_bytes: int | None


def shell_runs(trace: Trace) -> list[RetryGroup]:
    """The loose rule: three or more shell calls in a row, whatever they run."""
    return [_group(trace, run) for run in _runs(trace) if len(run) >= MIN_CALLS]


def repeated_tests(trace: Trace) -> list[RetryGroup]:
    """The strict rule: three or more of the shell calls in a row run the same test command.

    What is the same is told by the words of the command that were recorded, without its arguments.
    """
    groups: list[RetryGroup] = []
    for run in _runs(trace):
        by_command: dict[str, list[TraceCall]] = {}
        for call in run:
            if call.category == "tests" and call.command:
                by_command.setdefault(call.command, []).append(call)
        groups += [_group(trace, calls) for calls in by_command.values() if len(calls) >= MIN_CALLS]
    return groups


def _runs(trace: Trace) -> Iterator[list[TraceCall]]:
    run: list[TraceCall] = []
    for call in trace.calls:
        if call.tool == SHELL:
            run.append(call)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _group(trace: Trace, calls: list[TraceCall]) -> RetryGroup:
    spans = [(call.started_us, call.ended_us) for call in calls if call.ended_us is not None]
    end_us = max((end for _, end in spans), default=calls[-1].started_us)
    before = int(np.searchsorted(trace.t_us, calls[0].started_us, side="right")) - 1
    after = int(np.searchsorted(trace.t_us, end_us, side="left"))
    kept: int | None = None
    if before >= 0 and after < len(trace.t_us):
        kept = int(trace.used_bytes[after]) - int(trace.used_bytes[before])
    return RetryGroup(tuple(calls), covered_us(spans), kept)
