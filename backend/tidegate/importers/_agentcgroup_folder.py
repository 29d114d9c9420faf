"""Which folders below a path are traces of AgentCgroup: attempts at a task, and evaluations of isolation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ._build import identifier
from ._files import head

RESOURCES: Final = "resources.json"
CALLS: Final = "tool_calls.json"
TRANSCRIPT: Final = "trace.jsonl"
RESULTS: Final = "results.json"
PROCESSES: Final = "ebpf_trace.jsonl"
CONFIG: Final = "config.json"

_OF_ATTEMPT: Final = (RESOURCES, CALLS, TRANSCRIPT, RESULTS, PROCESSES)
_TELLING: Final = frozenset({RESOURCES, CALLS, PROCESSES})
_INNER: Final = "swebench"
"""A run with the process tracer has its trace in the folder and the rest in this one below."""

_RESULT: Final = re.compile(r"(high|low\d{0,3})_result\.json")
_PLAIN_NAME: Final = re.compile(r"attempt[_-]?\d+|swebench|runs?")
_MAX_DEPTH: Final = 8
_MAX_FOLDERS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """One agent at one task: the files by their usual names."""

    name: str
    files: dict[str, Path]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One run of replayed processes under a strategy; ``results`` by role (high, low1, low2)."""

    name: str
    config: Path
    results: dict[str, Path] = field(default_factory=dict)


def find(path: Path) -> Iterator[Attempt | Evaluation]:
    """The traces at and below a folder, or the one that a file is, in order of their paths. Links are not followed."""
    if not path.is_dir():
        kind = _kind_of(path)
        if kind is not None:
            yield Attempt(identifier(path.name.partition(".")[0]), {kind: path})
        return
    names: set[str] = set()
    inner: set[Path] = set()
    for number, (root, folders, files) in enumerate(os.walk(path)):
        folder = Path(root)
        depth = len(folder.relative_to(path).parts)
        folders[:] = sorted(folders) if depth < _MAX_DEPTH else []
        if number >= _MAX_FOLDERS:
            return
        if folder in inner:
            continue
        present = {name: folder / name for name in files if name in _OF_ATTEMPT and _is_plain(folder / name)}
        if PROCESSES in present and RESOURCES not in present and _INNER in folders:
            inner.add(folder / _INNER)
            below = {name: folder / _INNER / name for name in _OF_ATTEMPT if _is_plain(folder / _INNER / name)}
            present = {**below, **present}
        results = {found.group(1): folder / name for name in sorted(files) if (found := _RESULT.fullmatch(name))}
        results = {role: file for role, file in results.items() if _is_plain(file)}
        if _TELLING & present.keys():
            yield Attempt(_name(path, folder, names), present)
        elif results and _is_plain(folder / CONFIG):
            yield Evaluation(_name(path, folder, names), folder / CONFIG, results)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _kind_of(path: Path) -> str | None:
    """Which of the files a single file is, by its first bytes."""
    content = head(path, 1 << 13).lstrip()
    if content.startswith(b"{") and b'"samples"' in content and b'"mem_usage"' in content:
        return RESOURCES
    if content.startswith(b"[") and all(key in content for key in (b'"timestamp"', b'"tool"', b'"id"')):
        return CALLS
    first = content.partition(b"\n")[0]
    if b'"event"' in first and b'"timestamp"' in first and (b'"CLOCK_SYNC"' in first or b'"EXEC"' in first):
        return PROCESSES
    return None


def _name(root: Path, folder: Path, taken: set[str]) -> str:
    """A session id out of the folder's path below ``root``; it stands in addresses, so it has no slash."""
    parts = folder.relative_to(root).parts
    if not parts or _PLAIN_NAME.fullmatch(parts[0]):  # every task has an attempt_1
        parts = (root.resolve().name, *parts)
    if _PLAIN_NAME.fullmatch(parts[0]):
        parts = (root.resolve().parent.name, *parts)
    wanted = identifier(".".join(parts)).replace("/", ".")
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    taken.add(name)
    return name
