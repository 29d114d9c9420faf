"""A state written down in parts, and read again: folding on from there gives what folding from the start gives.

A part that did not change since the snapshot before is not written again; the root names for each part the snapshot
that it was written with. Pure, as all of the fold: where parts are kept is the caller's affair.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from .coverage import WrittenSpans
from .engine import Engine
from .events import EventView
from .kept import Written
from .limits import Limits
from .model import Host, LostCount, Run, Session, Source
from .packing import Part, pack, unpack
from .saved import GROUP_SESSIONS
from .state import State

VERSION: Final = 2
"""Raised whenever the fold makes something else of the same records, or remembers it in another form; snapshots of
other versions are passed over. A test tells when that is."""

HEAD: Final = "head"


class Root(Struct, array_like=True):
    """What a snapshot consists of: part names with the ordinals of the snapshots that they were written with."""

    version: int
    limits: tuple[int, ...]
    ord: int
    last_t_us: int
    groups: list[tuple[int, int]]

    def parts(self) -> list[tuple[str, int]]:
        """The parts that :func:`restore` asks for at once, the first one first."""
        return [(HEAD, self.ord), *((f"g{number}", ord_) for number, ord_ in self.groups)]


class Dump(Struct):
    """A snapshot after record ``ord``: the root, and the parts that are new with it. ``t_us`` is the greatest time."""

    ord: int
    t_us: int
    root: bytes
    parts: dict[str, bytes]


class _Head(Struct, array_like=True):
    run: Run
    hosts: list[Host]
    engines: list[Engine]
    sources: list[tuple[str, Source]]
    lost: list[tuple[str, str, LostCount]]
    capabilities: list[tuple[str, str, str, bool, str]]
    unknown_types: dict[str, int]
    machine: dict[str, tuple[str | None, int | None, int | None]]
    sessions_total: int
    events: list[EventView]


class _Kept(Struct, array_like=True):
    session: Session
    calls: Written
    spans: WrittenSpans


def dump(state: State) -> Dump:
    """Write down the state; what has not changed since the last dump (or restore) is not in it.

    A dump that could not be kept has to be followed by :func:`forget`.
    """
    saved, ord_ = state.saved, state.ord
    parts = {HEAD: pack(_head(state))}
    groups: dict[int, list[Session]] = {}
    for session in state.sessions.values():
        number = session.no // GROUP_SESSIONS
        groups.setdefault(number, []).append(session)
        if session.ord > saved.ord:
            saved.stale.add(number)
    for number, sessions in groups.items():
        if number in saved.stale or number not in saved.groups:
            for session in sessions:
                parts |= session.calls.write(f"c{session.no}.", ord_)
                parts |= session.coverage.write(f"v{session.no}.", ord_)
            parts[f"g{number}"] = pack(
                [_Kept(session, session.calls.written(), session.coverage.written()) for session in sessions]
            )
            saved.groups[number] = ord_
    saved.groups = {number: saved.groups[number] for number in groups}
    saved.stale.clear()
    saved.ord = ord_
    root = Root(VERSION, _numbers(state.limits), ord_, state.last_t_us, list(saved.groups.items()))
    return Dump(ord_, state.last_t_us, msgspec.msgpack.encode(root), parts)


def forget(state: State) -> None:
    """The next dump holds everything: the last one was not kept."""
    state.saved.ord = 0
    state.saved.groups.clear()
    for session in state.sessions.values():
        session.calls.forget_written()
        session.coverage.forget_written()


def read_root(data: bytes, limits: Limits) -> Root | None:
    """The root; None when this version of the fold, or a state with these limits, cannot go on from it."""
    try:
        root = msgspec.msgpack.decode(data, type=Root)
    except msgspec.MsgspecError:
        return None
    return root if root.version == VERSION and root.limits == _numbers(limits) else None


def restore(root: Root, limits: Limits, part: Part) -> tuple[State, list[tuple[str, int]]]:
    """The state of a snapshot, without a tracker.

    Args:
        root: what :func:`read_root` gave for these limits.
        part: gives a part by its name and the ordinal it was written with; those of ``root.parts()`` at once, those
            returned here whenever an old call is asked for.

    Returns:
        the state, and the parts that may be asked for later.

    Raises:
        ValueError: a part is damaged.
    """
    state = State(limits, track=False)
    head: _Head = unpack(part(HEAD, root.ord), _Head)
    state.ord, state.last_t_us = root.ord, root.last_t_us
    state.run = head.run
    state.hosts = {host.host: host for host in head.hosts}
    state.engines = {engine.engine: engine for engine in head.engines}
    state.sources = dict(head.sources)
    state.lost = {(where, of): count for where, of, count in head.lost}
    state.capabilities = {(a, b, c): (available, reason) for a, b, c, available, reason in head.capabilities}
    state.unknown_types = head.unknown_types
    state.machine = head.machine
    state.sessions_total = head.sessions_total
    state.events.extend(head.events)
    later: list[tuple[str, int]] = []
    for number, ord_ in root.groups:
        for kept in unpack(part(f"g{number}", ord_), list[_Kept]):
            session: Session = kept.session
            session.calls.attach(kept.calls, f"c{session.no}.", part)
            session.coverage.attach(kept.spans, f"v{session.no}.", part)
            later += session.calls.closed() + session.coverage.closed()
            state.sessions[session.id] = session
    state.saved.ord, state.saved.groups = root.ord, dict(root.groups)
    return state, later


def _head(state: State) -> _Head:
    return _Head(
        run=state.run,
        hosts=list(state.hosts.values()),
        engines=list(state.engines.values()),
        sources=list(state.sources.items()),
        lost=[(*key, count) for key, count in state.lost.items()],
        capabilities=[(*key, *word) for key, word in state.capabilities.items()],
        unknown_types=state.unknown_types,
        machine=state.machine,
        sessions_total=state.sessions_total,
        events=list(state.events),
    )


def _numbers(limits: Limits) -> tuple[int, ...]:
    return tuple(getattr(limits, name) for name in Limits.__dataclass_fields__)
