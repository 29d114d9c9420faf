"""Claude Code transcripts: a ``.jsonl`` file of one or several sessions, or a folder of such files.

Taken: sessions, turns with their tokens, tool calls with their category and the size of their result. Not taken:
prompts, answers, arguments and results. Claude Code does not measure memory or CPU, so there are none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from tidegate.errors import BadInputError, NotFoundError
from tidegate_collectors.records import Capability, Note, Record, RunEnd, RunMeta, SessionEnd, SessionStart

from ._build import identifier, in_order, printable
from ._files import decoded, head
from ._skipped import Skipped
from ._transcript import Conversation, Transcripts, call_records, turn_records

MAX_FILES: Final = 10_000
_MAX_FOLDERS: Final = 20_000
_MAX_DEPTH: Final = 8
_PROBED: Final = 40
_TYPES: Final = frozenset({"user", "assistant", "system", "attachment", "progress"})
_ENDINGS: Final = (".jsonl", ".jsonl.gz", ".jsonl.zst")


class _Line(Struct, rename="camel"):
    type: str
    session_id: str
    uuid: str | None = None


_probe: Final[msgspec.json.Decoder[_Line]] = msgspec.json.Decoder(_Line)


def detect(path: Path) -> bool:
    """Whether one of the first lines (of the file, or of the first files of the folder) is of a session log."""
    if path.is_dir():
        return any(_is_log(file) for file in _files(path, 8))
    return _is_log(path)


def _is_log(path: Path) -> bool:
    for line in head(path, 1 << 20).split(b"\n")[:_PROBED]:
        found = decoded(_probe, line)
        if not isinstance(found, str) and found.type in _TYPES:
            return True
    return False


def _files(folder: Path, limit: int) -> list[Path]:
    found: list[Path] = []
    for number, (root, folders, names) in enumerate(os.walk(folder)):
        folders[:] = sorted(folders) if len(Path(root).relative_to(folder).parts) < _MAX_DEPTH else []
        if number >= _MAX_FOLDERS:
            break
        for name in sorted(names):
            path = Path(root, name)
            if name.endswith(_ENDINGS) and path.is_file() and not path.is_symlink():
                found.append(path)
                if len(found) >= limit:
                    return found
    return found


def read(path: Path, skipped: Skipped) -> Iterator[Record]:
    """The records of a transcript file or folder in order of time.

    Raises:
        NotFoundError: there is no such file.
        BadInputError: it cannot be opened, or no line of it is of a session.
    """
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    transcripts = Transcripts(skipped)
    files = _files(path, MAX_FILES) if path.is_dir() else [path]
    for file in files:
        try:
            transcripts.read(file, file.relative_to(path).as_posix() if path.is_dir() else file.name)
        except (NotFoundError, BadInputError) as error:
            if not path.is_dir():
                raise
            skipped.add(file.name, None, str(error))
    if len(files) >= MAX_FILES:
        skipped.add(path.name, None, f"only the first {MAX_FILES} files were read")
    if not transcripts.conversations:
        raise BadInputError("no line of a Claude Code session in it", source=str(path))
    yield from _run(path, list(transcripts.conversations.values()))


def _run(path: Path, conversations: list[Conversation]) -> Iterator[Record]:
    name = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".jsonl")
    records: list[Record] = []
    for conversation in conversations:
        records += _session(conversation)
    start_us = min(record.t for record in records)
    yield RunMeta(t=start_us, run=identifier(name), title=printable(name, 80), source="imported")
    yield Capability(t=start_us, name="memory", available=False, reason="a transcript has no memory, CPU or processes")
    yield from in_order(records)
    yield RunEnd(t=max(record.t for record in records), clean=True)


def _session(conversation: Conversation) -> list[Record]:
    session = conversation.id
    folder = printable(conversation.cwd.replace("\\", "/").rstrip("/").rpartition("/")[2], 60)
    models = ", ".join(name for name, _ in conversation.models.most_common(4) if name != "<synthetic>")
    said = [f"model {models}"] if models else []
    said += [f"Claude Code {printable(conversation.version, 40)}"] if conversation.version else []
    records: list[Record] = [
        SessionStart(t=conversation.first_us, session=session, agent="claude", title=folder or session[:8]),
        *turn_records(session, conversation),
        *call_records(session, conversation),
    ]
    if said:
        records.append(Note(t=conversation.first_us, session=session, text=", ".join(said), by="import"))
    first_us = min(record.t for record in records)
    records[0].t = first_us
    reason: Literal["answered", "finished"] = "answered" if conversation.answered else "finished"
    end_us = max(record.t for record in records)
    records.append(SessionEnd(t=end_us, session=session, reason=reason, lost=not conversation.answered))
    return records
