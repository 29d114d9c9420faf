"""Charts of a run at the resolution of the screen: from rollups where they reach, from the samples elsewhere."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tidegate.analysis.columns import I8
from tidegate.analysis.decimate import columns, edges
from tidegate.analysis.inputs import SessionInput
from tidegate.analysis.intervals import Span, gap_threshold_us, silences
from tidegate.analysis.layers import Layer
from tidegate.analysis.picture import Picture, host_picture, joined, nothing, part, session_picture
from tidegate.analysis.series import MAX_PX, SessionSeries, draw_host, draw_session
from tidegate.store.blocks import BLOCK_BUCKETS, DamagedRollupError, picture_of, total_of
from tidegate.store.inputs import Alive
from tidegate.store.model import Run
from tidegate.store.rollup_states import HOST, RUN, SESSION, Known, known_states
from tidegate.store.store import Store

log = logging.getLogger(__name__)

_HOST_STRETCH: Final = 2.0
"""A host's chart shows many sessions: it takes wider columns rather than every sample of each."""

_BLOCKS: Final = (
    "FROM json_each(?) j CROSS JOIN rollups r ON r.run = ? AND r.kind = ? AND r.name = j.value AND r.bucket_us = ? "
    "AND r.block <= ? AND r.block >= COALESCE((SELECT MAX(e.block) FROM rollups e WHERE e.run = r.run AND "
    "e.kind = r.kind AND e.name = r.name AND e.bucket_us = r.bucket_us AND e.block < ?), 0) ORDER BY r.name, r.block"
)


async def session_chart(
    store: Store,
    run: Run,
    session: str,
    *,
    from_us: int,
    to_us: int,
    px: int,
    gaps: Sequence[Span] = (),
    exact: bool = False,
) -> SessionSeries:
    """Chart series of a session over ``[from_us, to_us)`` on at most ``px`` columns.

    Args:
        store: where the run is.
        run: the run.
        session: id of the session.
        from_us: start.
        to_us: end.
        px: number of columns, 1 to :data:`~tidegate.analysis.series.MAX_PX`.
        gaps: spans in which records are known to be lost.
        exact: draw the same columns from the samples, past the rollups.

    Raises:
        StoreError: the run cannot be read.
    """
    try:
        return await _session_chart(store, run, session, from_us, to_us, px, gaps, exact=exact)
    except DamagedRollupError as error:
        log.warning("%s: run %s: %s; drawn from the samples", store.path, run.id, error)
        return await _session_chart(store, run, session, from_us, to_us, px, gaps, exact=True)


async def _session_chart(
    store: Store, run: Run, session: str, from_us: int, to_us: int, px: int, gaps: Sequence[Span], *, exact: bool
) -> SessionSeries:
    px, to_us = min(max(px, 1), MAX_PX), max(to_us, from_us + 1)
    run_state = (await known_states(store, run, RUN, [""])).get("")
    bucket_us, borders = _columns(run_state, from_us, to_us, px, 4 / 3)
    begin, end = int(borders[0]), int(borders[-1])
    state = None if run_state is None else (await known_states(store, run, SESSION, [session])).get(session)
    until = begin if run_state is None or bucket_us == 0 or exact else _until(run_state, state)
    tail = await _tail(store, run, [session], until, begin, end, run_state, {} if state is None else {session: state})
    if not tail and state is not None and (state.noted.last_us or 0) < end:
        # Whether the silence at the end is one depends on when the next sample came.
        tail = await _tail(store, run, [session], until, begin, until + 1, run_state, {session: state})
    usual_us = None if state is None else state.noted.usual_us
    rows: Sequence[Any] = []
    if until > begin:
        rows = await store.reads.driver_all(
            f"SELECT r.total, r.layers, r.shares {_BLOCKS}",
            _block_key(run, SESSION, [session], bucket_us, begin, min(end, until)),
        )

    def draw() -> SessionSeries:
        pictures = [part(joined([picture_of(*row) for row in rows]), None, until)] if rows else []
        found = list(gaps)
        if session in tail:
            data = tail[session]
            pictures.append(part(session_picture(data, from_us=until), until if rows else None, None))
        if run.source in ("live", "recorded"):
            found += _silences(None if until == begin else state, tail.get(session), until, end, usual_us=usual_us)
        picture = joined(pictures) if pictures else Picture([nothing("runtime")], nothing("total"))
        return draw_session(picture, found, borders, from_us=from_us, to_us=to_us, px=px)

    return await asyncio.to_thread(draw)


async def host_chart(
    store: Store,
    run: Run,
    sessions: Sequence[str],
    *,
    from_us: int,
    to_us: int,
    px: int,
    cpus: int | None,
    exact: bool = False,
) -> dict[str, Any]:
    """The answer of ``/api/host/series``: the host, and the total of each of these sessions, a value a column.

    The arguments are those of :func:`session_chart`. Raises StoreError.
    """
    try:
        return await _host_chart(store, run, sessions, from_us, to_us, px, cpus, exact=exact)
    except DamagedRollupError as error:
        log.warning("%s: run %s: %s; drawn from the samples", store.path, run.id, error)
        return await _host_chart(store, run, sessions, from_us, to_us, px, cpus, exact=True)


async def _host_chart(
    store: Store, run: Run, sessions: Sequence[str], from_us: int, to_us: int, px: int, cpus: int | None, *, exact: bool
) -> dict[str, Any]:
    px, to_us = min(max(px, 1), MAX_PX), max(to_us, from_us + 1)
    run_state = (await known_states(store, run, RUN, [""])).get("")
    bucket_us, borders = _columns(run_state, from_us, to_us, px, _HOST_STRETCH)
    begin, end = int(borders[0]), int(borders[-1])
    states: Mapping[str, Known] = {} if run_state is None else await known_states(store, run, SESSION, list(sessions))
    rolled = run_state is not None and bucket_us != 0 and not exact
    untils = {
        name: _until(run_state, states.get(name)) if rolled and run_state is not None else begin for name in sessions
    }
    until = min(untils.values(), default=begin)
    tail = await _tail(store, run, sessions, until, begin, end, run_state, states, charts=False)
    totals: dict[str, list[bytes]] = {}
    host_rows: Sequence[Any] = []
    host_until = begin
    if rolled and run_state is not None:
        host_state = (await known_states(store, run, HOST, [""])).get("")
        host_until = _until(run_state, host_state) if host_state is not None else begin
        for name, total in await store.reads.driver_all(
            f"SELECT r.name, r.total {_BLOCKS}",
            _block_key(run, SESSION, sessions, bucket_us, begin, end),
        ):
            totals.setdefault(name, []).append(total)
        host_rows = await store.reads.driver_all(
            f"SELECT r.total, r.layers, r.shares {_BLOCKS}",
            _block_key(run, HOST, [""], bucket_us, begin, end),
        )
    host = None
    if host_until < end:
        host = await store.reads.host_points(run.id, max(host_until, begin), end, after=True)

    def draw() -> dict[str, Any]:
        drawn: dict[str, Layer] = {}
        for name in sessions:
            pieces = [part(Picture([], total_of(blob)), None, untils[name]) for blob in totals.get(name, ())]
            if name in tail:
                picture = session_picture(tail[name], from_us=until)
                pieces.append(part(Picture([], picture.total), untils[name] if pieces else None, None))
            drawn[name] = joined(pieces).total if pieces else nothing("total")
        pictures = [part(picture_of(*row), None, host_until) for row in host_rows]
        if host is not None:
            pictures.append(part(host_picture(host), host_until if pictures else None, None))
        picture = joined(pictures) if pictures else Picture([], nothing("total"))
        return draw_host(picture, drawn, borders, cpus=cpus)

    return await asyncio.to_thread(draw)


def _columns(run_state: Known | None, from_us: int, to_us: int, px: int, stretch: float) -> tuple[int, I8]:
    if run_state is None or run_state.until_us <= from_us:
        return 0, edges(from_us, to_us, px)
    return columns(from_us, to_us, px, stretch=stretch)


def _until(run_state: Known, state: Known | None) -> int:
    """How far the rollups of a session go. One that was not looked at again had no samples since."""
    return run_state.until_us if state is None else max(run_state.until_us, state.until_us)


def _block_key(run: Run, kind: str, names: Sequence[str], bucket_us: int, begin: int, end: int) -> tuple[Any, ...]:
    length = bucket_us * BLOCK_BUCKETS
    return (json.dumps(list(names)), run.no, kind, bucket_us, end // length, begin // length)


async def _tail(
    store: Store,
    run: Run,
    sessions: Sequence[str],
    until: int,
    begin: int,
    end: int,
    run_state: Known | None,
    states: Mapping[str, Known],
    *,
    charts: bool = True,
) -> dict[str, SessionInput]:
    """What the rollups do not have, of the sessions that may have it."""
    if until >= end or not sessions:
        return {}
    if until <= begin or run_state is None:
        return await store.reads.session_inputs(run, sessions, begin, end, charts=charts)
    newest = run_state.noted.newest
    alive = {name: Alive(states[name].noted.subjects, newest) if name in states else Alive([], 0) for name in sessions}
    # A session that was not there when the rollups were built: all its subjects are new.
    for name in sessions:
        if name not in states:
            alive[name] = Alive([], newest)
    return await store.reads.session_inputs(run, sessions, until, end, charts=charts, alive=alive)


def _silences(
    state: Known | None, tail: SessionInput | None, until: int, end: int, *, usual_us: float | None
) -> list[Span]:
    """Silences that the rollups have noted, and those of the samples behind them."""
    found: list[Span] = []
    t_us = np.empty(0, dtype=np.int64) if tail is None else tail.sample_times_us
    ended_us = None if tail is None else tail.ended_us
    if state is not None:
        noted = state.noted
        threshold = gap_threshold_us(usual_us or 0.0)
        pairs = zip(noted.silences[::2], noted.silences[1::2], strict=True)
        found = [(a, b) for a, b in pairs if b - a > threshold and b < until]
        last = [] if noted.last_us is None else [noted.last_us]
        t_us = np.concatenate((np.array(last, dtype=np.int64), t_us[t_us >= until]))
        ended_us = noted.ended_us if tail is None else ended_us
    expected = end if ended_us is None else min(ended_us, end)
    return found + silences(t_us, until_us=expected, usual_us=usual_us)
