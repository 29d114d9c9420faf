"""From records to rows of the derived tables: the one place where it is decided, for live, import and reindex alike.

Rows depend only on the records and their order, never on how they were batched; a property test holds that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from tidegate.store import schema
from tidegate.store.rows_kv import ROWS_OF_EVENTS, engine_row
from tidegate_collectors import records
from tidegate_collectors.records import (
    AnyRecord,
    CallEnd,
    CallStart,
    EngineSample,
    HostSample,
    MemSample,
    PsiSample,
    Record,
    SchedSample,
    SessionEnd,
    SessionStart,
    Unknown,
)

AnyLine: TypeAlias = AnyRecord | Unknown
Row: TypeAlias = tuple[Any, ...]

MAX_INT: Final = 2**63 - 1
"""The largest integer a database holds; larger ones (nobody measures them) are kept as this in derived tables."""


class _Keys(Struct):
    session: str | None = None
    call: str | None = None


_keys: Final[msgspec.json.Decoder[_Keys]] = msgspec.json.Decoder(_Keys)
_TAGS: Final[dict[type, str]] = {}


def type_of(record: AnyLine) -> str:
    """The ``type`` of the record's line."""
    if isinstance(record, Unknown):
        return record.type
    cls = type(record)
    tag = _TAGS.get(cls)
    if tag is None:
        tag = _TAGS[cls] = str(cls.__struct_config__.tag)
    return tag


def decode_stored(line: bytes) -> AnyLine:
    """A record of the raw log. One that this version can no longer read becomes an :class:`Unknown`, not an error."""
    try:
        return records.decode(line)
    except records.RecordError:
        return Unknown(v=records.VERSION, type="(unreadable)")


TABLES: Final = (
    "subjects", "mem", "sched", "psi", "host_samples", "engine_samples", "events", "engine_events",
    "kv_decisions", "kv_outcomes", "sessions", "calls", "sources",
)  # fmt: skip
"""Tables that rows are of, in the order in which they are written: outcomes find their decisions."""

_SESSION_COLUMNS: Final = tuple(column.name for column in schema.sessions.columns)
_CALL_COLUMNS: Final = tuple(column.name for column in schema.calls.columns)


@dataclass(slots=True)
class Rows:
    """Rows of one batch by table; sessions and calls have one row each however often they are named in it."""

    by_table: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in TABLES})

    def clamp(self) -> None:
        """Cut integers that no database holds to the largest one. Only called when the driver refused the batch."""
        for name, rows in self.by_table.items():
            self.by_table[name] = [tuple(_clamped(value) for value in row) for row in rows]


def _clamped(value: Any) -> Any:
    if isinstance(value, int):
        return max(-MAX_INT, min(MAX_INT, value))
    if isinstance(value, str):
        # A lone surrogate cannot be written as UTF-8.
        return value.encode("utf-8", "replace").decode()
    return value


class RowBuilder:
    """Builds the rows of one run, batch after batch; knows the run's subjects and sessions by then.

    Args:
        run_no: the run's number.
        subjects: (kind, session, call, host-or-None) to number, of the batches before.
        sessions: ids of the sessions of the batches before.
    """

    def __init__(
        self,
        run_no: int,
        subjects: Iterable[tuple[tuple[str, str | None, str | None], int]] = (),
        sessions: Iterable[str] = (),
    ) -> None:
        self._run = run_no
        self._subjects: dict[tuple[str, str | None, str | None], int] = dict(subjects)
        self._sessions = set(sessions)

    def build(self, first_ord: int, records: Sequence[AnyLine], lines: Sequence[bytes]) -> Rows:
        """Rows of the records with ordinals from ``first_ord``; ``lines`` are theirs, in the same order."""
        rows = Rows()
        table = rows.by_table
        mem, sched, psi, host_samples = table["mem"], table["sched"], table["psi"], table["host_samples"]
        events = table["events"]
        run, subject_of = self._run, self._subjects.get
        session_rows: dict[str, dict[str, Any]] = {}
        call_rows: dict[tuple[str, str], dict[str, Any]] = {}
        sources: dict[str, list[int]] = {}
        source: list[int] = [-1, 0, 0]
        current_src: str | None = None
        highest, count, t = -1, 0, 0
        for ordinal, record in enumerate(records, first_ord):
            cls = type(record)
            src = record.src
            if src != current_src:
                source[:] = highest, t, count
                current_src = src
                source = sources.setdefault(src, [-1, 0, 0])
                highest, _, count = source
            t = record.t
            count += 1
            if record.seq > highest:
                highest = record.seq
            if cls is MemSample:
                key = (record.subject, record.session, record.call)  # type: ignore[union-attr]
                no = subject_of(key) or self._new_subject(key, record, table)  # type: ignore[arg-type]
                mem.append((
                    run, no, t, ordinal, record.anon_bytes, record.shmem_bytes, record.file_bytes,  # type: ignore[union-attr]
                    record.swap_bytes, record.peak_bytes, record.charged_bytes,  # type: ignore[union-attr]
                ))  # fmt: skip
            elif cls is SchedSample:
                key = (record.subject, record.session, record.call)  # type: ignore[union-attr]
                no = subject_of(key) or self._new_subject(key, record, table)  # type: ignore[arg-type]
                sched.append((
                    run, no, t, ordinal, record.oncpu_us, record.wait_us, record.wait_max_us,  # type: ignore[union-attr]
                    record.window_us,  # type: ignore[union-attr]
                ))  # fmt: skip
            elif cls is PsiSample:
                key = (record.subject, record.session, record.call)  # type: ignore[union-attr]
                no = subject_of(key) or self._new_subject(key, record, table)  # type: ignore[arg-type]
                psi.append((
                    run, no, t, ordinal, record.memory_some_us, record.memory_full_us, record.cpu_some_us,  # type: ignore[union-attr]
                    record.io_some_us, record.io_full_us, record.window_us,  # type: ignore[union-attr]
                ))  # fmt: skip
            elif cls is HostSample:
                key = ("host", None, None)
                no = subject_of(("host", record.host, None)) or self._new_subject(key, record, table)  # type: ignore[union-attr, arg-type]
                host_samples.append((
                    run, no, t, ordinal, record.mem_available_bytes, record.mem_total_bytes,  # type: ignore[union-attr]
                    record.swap_used_bytes, record.cpu_busy_us, record.window_us,  # type: ignore[union-attr]
                ))  # fmt: skip
            elif cls is EngineSample:
                table["engine_samples"].append(engine_row(run, ordinal, record))  # type: ignore[arg-type]
                if record.session is not None:  # type: ignore[union-attr]
                    self._see(record.session, ordinal, t, session_rows)  # type: ignore[union-attr]
            else:
                line = lines[ordinal - first_ord]
                session, call = _ids(record, line)
                if (of_engine := ROWS_OF_EVENTS.get(cls)) is not None:
                    name, row_of = of_engine
                    table[name].append(row_of(run, ordinal, record))
                events.append((run, ordinal, t, type_of(record), session, call, line))
                if session is not None:
                    self._see(session, ordinal, t, session_rows)
                    if cls is SessionStart or cls is SessionEnd:
                        self._session(session, ordinal, record, session_rows)  # type: ignore[arg-type]
                    elif call is not None and (cls is CallStart or cls is CallEnd):
                        self._call(session, call, ordinal, record, call_rows)  # type: ignore[arg-type]
        source[:] = highest, t, count
        table["sessions"] = [tuple(row.get(name) for name in _SESSION_COLUMNS) for row in session_rows.values()]
        table["calls"] = [tuple(row.get(name) for name in _CALL_COLUMNS) for row in call_rows.values()]
        table["sources"] = [(run, src, seq, t, n) for src, (seq, t, n) in sources.items()]
        return rows

    def _new_subject(self, key: tuple[str, str | None, str | None], record: Record, table: dict[str, list[Row]]) -> int:
        kind, session, call = key
        if kind == "host":
            # Several hosts may write one run: each is a subject of its own.
            key = ("host", record.host, None)
            known = self._subjects.get(key)
            if known is not None:
                return known
        no = self._subjects[key] = len(self._subjects) + 1
        table["subjects"].append((self._run, no, kind, session, call, record.host))
        return no

    def _see(self, session: str, ordinal: int, t: int, rows: dict[str, dict[str, Any]]) -> None:
        if session not in self._sessions:
            self._sessions.add(session)
            rows[session] = {"run": self._run, "id": session, "first_ord": ordinal, "first_us": t}

    def _session(
        self, session: str, ordinal: int, record: SessionStart | SessionEnd, rows: dict[str, dict[str, Any]]
    ) -> None:
        row = rows.get(session)
        if row is None:
            # The first_* columns are not null, but the row that is there keeps its own.
            row = rows[session] = {"run": self._run, "id": session, "first_ord": ordinal, "first_us": record.t}
        if isinstance(record, SessionStart):
            if "started_us" not in row:
                row["started_us"] = record.t
            row.update(
                start_ord=ordinal, host=record.host, agent=record.agent, title=record.title,
                priority=record.priority, budget_bytes=record.budget_bytes,
            )  # fmt: skip
        else:
            row.update(
                end_ord=ordinal, ended_us=None if record.lost else record.t,
                end_reason=None if record.lost else record.reason, exit_code=record.exit_code, signal=record.signal,
            )  # fmt: skip

    def _call(
        self,
        session: str,
        call: str,
        ordinal: int,
        record: CallStart | CallEnd,
        rows: dict[tuple[str, str], dict[str, Any]],
    ) -> None:
        row = rows.setdefault((session, call), {"run": self._run, "session": session, "id": call})
        if isinstance(record, CallStart):
            if "started_us" not in row:
                row["started_us"] = record.t
            row.update(start_ord=ordinal, tool=record.tool, category=record.category, command=record.command)
        else:
            row.update(
                end_ord=ordinal, ended_us=record.t, exit_code=record.exit_code, signal=record.signal,
                oom=int(record.oom), lost=int(record.lost), duration_us=record.duration_us,
                peak_bytes=record.peak_bytes, spike_bytes=record.spike_bytes, kept_bytes=record.kept_bytes,
                cpu_us=record.cpu_us, wait_us=record.runq_wait_us,
            )  # fmt: skip


def _ids(record: AnyLine, line: bytes) -> tuple[str | None, str | None]:
    if not isinstance(record, Unknown):
        return record.session, record.call
    try:
        keys = _keys.decode(line)
    except msgspec.MsgspecError:
        return None, None
    return keys.session, keys.call
