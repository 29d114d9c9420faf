"""The JSON documents of an AgentCgroup attempt: resources.json, tool_calls.json, results.json."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError
from tidegate_collectors import hints

from ._build import MAX_ID_CHARS, exit_code, iso_micros, micros
from ._files import converted, document, elements
from ._skipped import Skipped

_SIZE: Final = re.compile(r"\s*(\d{1,12})(?:\.(\d{1,9}))?\s*([kKMGT]?)(i?)B\s*", re.ASCII)
_POWERS: Final = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_PERCENT: Final = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*%\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of ``podman stats``. ``percent`` is the average since the container's start."""

    t_us: int
    used_bytes: int
    total_bytes: int | None
    percent: float | None


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One tool call of the transcript; ``ended_us`` None where no end is given."""

    id: str
    tool: str
    arguments: Any
    started_us: int
    ended_us: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What results.json says of the attempt; None where it says nothing.

    ``life_s`` is the container's life, what came before the agent included. Its times are local and without a zone,
    so they are not used.
    """

    image: str = ""
    model: str = ""
    exit_code: int | None = None
    limit_bytes: int | None = None
    known_limit: bool = False
    life_s: float | None = None
    error: bool = False


class _Sample(Struct):
    epoch: float
    mem_usage: str
    cpu_percent: str = ""


class _Call(Struct):
    timestamp: str
    id: str
    tool: str = ""
    input: Any = None
    end_timestamp: str | None = None


class _Output(Struct):
    exit_code: int | None = None


class _Results(Struct):
    image: str | None = None
    model: str | None = None
    memory_limit: str | None = None
    claude_time: float | None = None
    claude_output: Any = None
    error: Any = None


_results: Final = msgspec.json.Decoder(_Results)


def size_bytes(text: str) -> int | None:
    """Bytes of a text such as ``183MB`` (decimal) or ``1.5GiB`` (binary), to the byte; None for anything else."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    whole, fraction, prefix, binary = found.groups()
    fraction = fraction or ""
    unit: int = (1024 if binary else 1000) ** _POWERS[prefix]
    scale: int = 10 ** len(fraction)
    return (int(whole + fraction) * unit + scale // 2) // scale


def read_samples(path: Path, place: str, skipped: Skipped) -> list[Sample]:
    """The readings in order of time. Their text time is local and without a zone; the epoch beside it is used.

    Raises:
        NotFoundError, BadInputError: the file cannot be read.
    """
    samples: list[Sample] = []
    for line, value in elements(document(path), "samples", place, skipped):
        found = converted(value, _Sample)
        if isinstance(found, str):
            skipped.add(place, line, f"no sample: {found}")
            continue
        used, _, total = found.mem_usage.partition("/")
        t_us, used_bytes = micros(found.epoch), size_bytes(used)
        if t_us is None or used_bytes is None:
            what = "its epoch is no time" if t_us is None else "its mem_usage is no size"
            skipped.add(place, line, f"no sample: {what}")
            continue
        if samples and t_us <= samples[-1].t_us:
            skipped.add(place, line, "a sample that is not later than the one before")
            continue
        percent = _PERCENT.fullmatch(found.cpu_percent)
        total_bytes = size_bytes(total)
        # "0B / 0B": there is no container (any more); its CPU is no average of anything.
        load = float(percent.group(1)) if percent and total_bytes else None
        samples.append(Sample(t_us, used_bytes, total_bytes or None, load))
    return samples


def read_calls(path: Path, place: str, skipped: Skipped) -> list[RecordedCall]:
    """The tool calls, as they stand there: they may overlap.

    Raises:
        NotFoundError, BadInputError: the file cannot be read.
    """
    key = None if path.name != "results.json" else "tool_calls"
    calls: dict[str, RecordedCall] = {}
    for line, value in elements(document(path), key, place, skipped):
        found = converted(value, _Call)
        if isinstance(found, str):
            skipped.add(place, line, f"no tool call: {found}")
            continue
        started_us = iso_micros(found.timestamp)
        if started_us is None:
            skipped.add(place, line, "a tool call whose timestamp has no time zone or is no time")
        elif not found.id or len(found.id) > MAX_ID_CHARS or not found.id.isprintable():
            skipped.add(place, line, "a tool call without an id")
        elif found.id in calls:
            skipped.add(place, line, "a tool call whose id was there before")
        else:
            ended_us = iso_micros(found.end_timestamp)
            if ended_us is None or ended_us < started_us:
                reason = "its end is not recorded" if ended_us is None else "it ends before it begins"
                skipped.add(place, line, f"a tool call without length: {reason}")
                ended_us = None
            calls[found.id] = RecordedCall(found.id, found.tool, found.input, started_us, ended_us)
    return list(calls.values())


def read_outcome(path: Path, place: str, skipped: Skipped) -> Outcome:
    """What results.json says; nothing where it cannot be read."""
    try:
        results = _results.decode(document(path))
    except (msgspec.MsgspecError, ValueError, RecursionError, BadInputError) as error:
        skipped.add(place, None, f"not used: {error}")
        return Outcome()
    limit: int | None = None
    if results.memory_limit:
        try:
            limit = hints.parse_size(results.memory_limit)
        except ValueError:
            skipped.add(place, None, "its memory_limit is no size")
    output = converted(results.claude_output, _Output)
    life_s = results.claude_time
    return Outcome(
        image=results.image or "",
        model=results.model or "",
        exit_code=exit_code(output.exit_code) if not isinstance(output, str) else None,
        limit_bytes=limit,
        known_limit=True,
        life_s=life_s if life_s is not None and 0 < life_s < 1e9 else None,
        error=bool(results.error),
    )


def task_of(image: str) -> str:
    """The task's name within an image name of SWE-rebench, or the image name's last part."""
    name = image.rpartition("/")[2].rpartition("x86_64.")[2].partition(":")[0]
    return name.replace("_1776_", "__")
