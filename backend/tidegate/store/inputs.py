"""What the charts of sessions are made of, read from the store alone: no fold is needed, whatever the instant shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tidegate.analysis.columns import RUNTIME, SESSION, CallSpan, MemColumns, PsiColumns, SchedColumns
from tidegate.analysis.inputs import SessionInput
from tidegate.analysis.layers import HOLD_US
from tidegate.store.columns import I8, MEM, OF_SESSION, PSI, SCHED, USED, SampleReads
from tidegate.store.model import Run

_MARGIN_US: Final = 60_000_000
"""How much earlier reading begins: where the runtime is what its calls leave of the session, that needs a run-up."""

_SPAN: Final = "c.category, c.started_us, c.ended_us, c.peak_bytes, c.kept_bytes, c.lost"


@dataclass(frozen=True, slots=True)
class Alive:
    """Subjects of a session that may still be sampled after an instant: those open then, and all that came later."""

    subjects: Sequence[int]
    newest: int


@dataclass(slots=True)
class _Of:
    """Subjects and calls of one session while it is read."""

    codes: dict[int, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    spans: dict[str, CallSpan] = field(default_factory=dict)


class InputReads(SampleReads):
    """Reads of whole chart inputs."""

    async def session_inputs(
        self,
        run: Run,
        sessions: Sequence[str],
        from_us: int,
        to_us: int,
        *,
        charts: bool = True,
        alive: Mapping[str, Alive] | None = None,
    ) -> dict[str, SessionInput]:
        """Inputs that give the pictures of these sessions exactly, within ``[from_us, to_us)``.

        Args:
            run: the run.
            sessions: their ids.
            from_us: start.
            to_us: end.
            charts: scheduling and pressure too, not only memory.
            alive: by session, the subjects that matter; by default all. Where a run has many calls that are long over,
                this spares looking each of them up.
        """
        of = await self._subjects_of(run.no, sessions, alive)
        await self._short_calls(run, of, from_us, to_us)
        numbers = sorted(number for one in of.values() for number in one.codes)
        begin_us = from_us - _MARGIN_US
        mem = await self._columns("mem", MEM, run.no, numbers, begin_us, to_us, after=True)
        sched = psi = np.empty((6, 0), dtype=np.int64)
        if charts:
            sched = await self._columns("sched", SCHED, run.no, numbers, begin_us, to_us, after=True)
            psi = await self._columns("psi", PSI, run.no, numbers, begin_us, to_us, after=True)
        ends = await self._session_ends(run, sessions)
        highest = await self._highest(run.no, of, mem, begin_us, to_us)
        of_session = _sessions_of(of)
        result: dict[str, SessionInput] = {}
        for index, (session, one) in enumerate(of.items()):
            m, s, p = (_rows(table, of_session, index, len(of)) for table in (mem, sched, psi))
            codes = np.full(len(of_session) + 1, RUNTIME, dtype=np.int64)
            for number, code in one.codes.items():
                codes[number] = code
            sampled_us = m[0][max(0, int(np.searchsorted(m[0], from_us)) - 1) :]
            m = _without_the_dead(m, codes, one, from_us)
            result[session] = SessionInput(
                mem=MemColumns(m[0], codes[m[1]], m[2], m[3], one.calls),
                sched=SchedColumns(s[0], codes[s[1]], s[2], s[3], s[4], one.calls),
                psi=PsiColumns(p[0], codes[p[1]], p[2], p[3], p[4], p[5], one.calls),
                calls=list(one.spans.values()),
                ended_us=ends.get(session),
                since_us=run.started_us,
                highest=highest.get(session, {}),
                sampled_us=sampled_us,
            )
        return result

    async def _subjects_of(
        self, run_no: int, sessions: Sequence[str], alive: Mapping[str, Alive] | None
    ) -> dict[str, _Of]:
        of = {session: _Of() for session in sessions}
        columns = f"s.no, s.kind, s.session, s.call, {_SPAN}"
        join = "LEFT JOIN calls c ON c.run = s.run AND c.session = s.session AND c.id = s.call"
        if alive is None:
            rows = await self.driver_all(
                f"SELECT {columns} FROM json_each(?) j CROSS JOIN {OF_SESSION} {join} "  # noqa: S608 - constants
                "WHERE s.run = ? AND s.session = j.value ORDER BY s.no",
                (json.dumps(list(sessions)), run_no),
            )
        else:
            numbers = [number for one in alive.values() for number in one.subjects]
            newest = min((one.newest for one in alive.values()), default=0)
            rows = await self.driver_all(
                f"SELECT {columns} FROM json_each(?) j CROSS JOIN subjects s {join} "  # noqa: S608
                "WHERE s.run = ? AND s.no = j.value "
                f"UNION ALL SELECT {columns} FROM subjects s {join} WHERE s.run = ? AND s.no > ? ORDER BY 1",
                (json.dumps(numbers), run_no, run_no, newest),
            )
        for number, kind, session, call, *span in rows:
            one = of.get(session)
            if one is None or number in one.codes:
                continue
            if kind == "call" and call is not None:
                one.calls.append(call)
                one.codes[number] = len(one.calls)
                if span[-1] is not None or span[0] is not None or span[1] is not None:
                    one.spans[call] = _span(call, span)
            elif kind in ("session", "runtime"):
                one.codes[number] = SESSION if kind == "session" else RUNTIME
        return of

    async def _short_calls(self, run: Run, of: dict[str, _Of], from_us: int, to_us: int) -> None:
        """Add the calls within the span that no sample has seen."""
        columns = f"c.session, c.id, {_SPAN}"
        head = f"SELECT {columns} FROM json_each(?) j CROSS JOIN calls c INDEXED BY calls_ended ON c.run = ? "  # noqa: S608
        names = json.dumps(list(of))
        for row in await self.driver_all(
            f"{head} AND c.session = j.value AND c.ended_us >= ? WHERE c.started_us IS NULL OR c.started_us <= ? "
            f"UNION ALL {head} AND c.session = j.value AND c.ended_us IS NULL",
            (names, run.no, from_us - 2 * HOLD_US, to_us, names, run.no),
        ):
            spans = of[row[0]].spans
            if row[1] not in spans:
                spans[row[1]] = _span(row[1], row[2:])

    async def _session_ends(self, run: Run, sessions: Sequence[str]) -> dict[str, int]:
        """When sessions ended; a session of a run that is over ended at its last record where nobody saw its end."""
        rows = await self.driver_all(
            "SELECT s.id, CASE WHEN s.end_ord > COALESCE(s.start_ord, 0) THEN s.ended_us END FROM json_each(?) j "
            "CROSS JOIN sessions s WHERE s.run = ? AND s.id = j.value",
            (json.dumps(list(sessions)), run.no),
        )
        return {session: ended_us for session, ended_us in rows if ended_us is not None}

    async def _highest(
        self, run_no: int, of: Mapping[str, _Of], mem: I8, begin_us: int, to_us: int
    ) -> dict[str, dict[str, int]]:
        """What samples earlier than those read have shown of the calls that end within the span."""
        early = set(mem[1][mem[0] < begin_us].tolist())
        wanted: dict[int, tuple[str, str]] = {}
        for session, one in of.items():
            for number, code in one.codes.items():
                if code <= 0 or number not in early:
                    continue
                span = one.spans.get(one.calls[code - 1])
                if span is not None and span.peak_bytes and begin_us <= (span.ended_us or -1) <= to_us:
                    wanted[number] = (session, span.id)
        found: dict[str, dict[str, int]] = {}
        if wanted:
            for number, most in await self.driver_all(
                f"SELECT m.subject, MAX(MAX({USED}, COALESCE(m.peak_bytes, -1))) FROM json_each(?) s "  # noqa: S608
                "CROSS JOIN mem m ON m.run = ? AND m.subject = s.value AND m.t < ? GROUP BY m.subject",
                (json.dumps(sorted(wanted)), run_no, begin_us),
            ):
                session, call = wanted[number]
                found.setdefault(session, {})[call] = most
        return found


def _span(call: str, row: Sequence[Any]) -> CallSpan:
    category, started_us, ended_us, peak, kept, lost = row
    return CallSpan(call, category or "other", started_us, ended_us, peak, kept, lost=bool(lost))


def _sessions_of(of: Mapping[str, _Of]) -> I8:
    """Subject number to the index of its session."""
    numbers = {number: index for index, one in enumerate(of.values()) for number in one.codes}
    result = np.zeros(max(numbers, default=0) + 1, dtype=np.int64)
    result[list(numbers)] = list(numbers.values())
    return result


def _rows(table: I8, of_session: I8, index: int, count: int) -> I8:
    return table if count == 1 else table[:, of_session[table[1]] == index]


def _without_the_dead(rows: I8, codes: I8, one: _Of, from_us: int) -> I8:
    """Without the last samples of calls that were over, and held nothing any more, before the span."""
    early = rows[0] < from_us
    if not early.any():
        return rows
    until = np.full(len(one.calls) + 1, 1 << 62, dtype=np.int64)
    for code, call in enumerate(one.calls, start=1):
        span = one.spans.get(call)
        if span is not None and span.ended_us is not None:
            until[code] = span.ended_us
    code = codes[rows[1]]
    last = np.zeros(len(one.calls) + 1, dtype=np.int64)
    np.maximum.at(last, np.maximum(code, 0), rows[0])
    over = np.maximum(last, until) + HOLD_US < from_us
    over[0] = False
    dead = over[np.maximum(code, 0)]
    for index in np.flatnonzero(over).tolist():
        one.spans.pop(one.calls[index - 1], None)
    return rows[:, ~dead]
