"""Other people's traces into records, one file a format. Recordings of our own: :mod:`tidegate.ingest.recording`.

A format of somebody else is a :class:`Format`: ``detect`` looks at the first bytes or at the names in a folder,
``read`` yields records in order of time, the first of which is ``run.meta`` with source ``imported``. They carry no
envelope (``v``, ``seq``, ``src``): whoever writes them down stamps them. What cannot be used is told in
:class:`Skipped`, and only a file that is none of the format raises :class:`~tidegate.errors.BadInputError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import NotFoundError, UsageError
from tidegate_collectors.records import Record

from . import agentcgroup, agentcgroup_wrapper, claude_code, continuum, kv_events, mooncake, weka
from ._skipped import Skip, Skipped

__all__ = ["FORMATS", "Format", "Skip", "Skipped", "detect", "format_named", "read"]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of somebody else.

    Attributes:
        name: what ``--format`` and the API call it.
        title: what people call it.
        detect: whether a file or folder looks like it; cheap, never raises.
        read: its records in order of time. Raises NotFoundError and BadInputError.
    """

    name: str
    title: str
    detect: Callable[[Path], bool]
    read: Callable[[Path, Skipped], Iterator[Record]]


FORMATS: tuple[Format, ...] = (
    Format("agentcgroup", "AgentCgroup trace folder", agentcgroup.detect, agentcgroup.read),
    Format("agentcgroup-wrapper", "AgentCgroup wrapper log", agentcgroup_wrapper.detect, agentcgroup_wrapper.read),
    Format("claude-code", "Claude Code transcript", claude_code.detect, claude_code.read),
    Format("weka", "WEKA request trace (modelled)", weka.detect, weka.read),
    Format("mooncake", "Mooncake request trace (modelled)", mooncake.detect, mooncake.read),
    Format("kv-events", "vLLM KV events", kv_events.detect, kv_events.read),
    Format("continuum", "Continuum scheduler timestamps", continuum.detect, continuum.read),
)
"""All foreign formats; the first one that detects a file gets it."""


def detect(path: Path) -> Format | None:
    """The format of a file or folder; None when it is none of these (a recording of our own, say)."""
    return next((known for known in FORMATS if known.detect(path)), None)


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        UsageError: there is none.
    """
    for known in FORMATS:
        if known.name == name:
            return known
    raise UsageError(f"{name!a} is no format; there are {', '.join(known.name for known in FORMATS)}")


def read(path: Path, skipped: Skipped) -> Iterator[Record]:
    """The records of a file or folder of any foreign format.

    Raises:
        NotFoundError: it does not exist, or nothing in it is of a known format.
        BadInputError: it cannot be read.
    """
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    known = detect(path)
    if known is None:
        names = ", ".join(known.title for known in FORMATS)
        raise NotFoundError(f"{path} is none of the formats that can be imported: {names}")
    return known.read(path, skipped)
