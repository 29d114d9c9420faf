"""Continuum's ``scheduler_timestamps`` (a fork of vLLM that pins between turns): what its scheduler did, job by job.

The file is one JSON object: job -> list of things that happened to its requests, each with its time (Unix seconds):
``Request_arrival_time``, ``waiting_to_running`` and ``evicted_to_running`` (with ``prompt_length`` and ``hit_length``
in tokens), ``Request_evicted_from_running_queue_time``, ``Request_departure_time``, ``pinned_time``, ``unpinned_time``.

A job is a session. Blocks are not in it; they are estimated from tokens, :data:`BLOCK_TOKENS` to a block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import BadInputError, NotFoundError
from tidegate_collectors.records import (
    Capability,
    EngineEnd,
    EngineStart,
    KvState,
    KvTransition,
    Note,
    Record,
    RunEnd,
    RunMeta,
    SessionEnd,
    SessionStart,
    TurnEnd,
    TurnStart,
)

from ._build import count, identifier, in_order, micros, printable
from ._files import document, head
from ._skipped import Skipped

ENGINE: Final = "continuum"
BLOCK_TOKENS: Final = 16
"""vLLM's default; the file does not say."""

MAX_JOBS: Final = 20_000

_ARRIVED: Final = "Request_arrival_time"
_LEFT: Final = "Request_departure_time"
_EVICTED: Final = "Request_evicted_from_running_queue_time"
_BEGAN: Final = "waiting_to_running"
_BEGAN_AGAIN: Final = "evicted_to_running"
_PINNED: Final = "pinned_time"
_UNPINNED: Final = "unpinned_time"
_KINDS: Final = (_ARRIVED, _LEFT, _EVICTED, _BEGAN, _BEGAN_AGAIN, _PINNED, _UNPINNED)
_LOOKS: Final = re.compile(rb'^\s*\{\s*"(?:[^"\\]|\\.){0,1024}"\s*:\s*\[\s*\{\s*"Request_arrival_time"\s*:')
_NOTE: Final = (
    "Times and tokens are those of Continuum's scheduler. Estimated: blocks, from tokens "
    f"({BLOCK_TOKENS} to a block); that a prompt's blocks went is known only when the next turn does not find them. "
    "Not in the file: when the first token came; why a pin ended (between turns its time is taken to be over)."
)


def detect(path: Path) -> bool:
    """Whether it is such a file, or a folder with one of that name in it."""
    return bool(_LOOKS.match(head(_file(path), 4096)))


def _file(path: Path) -> Path:
    return path / "scheduler_timestamps" if path.is_dir() else path


def read(path: Path, skipped: Skipped) -> Iterator[Record]:
    """The records in order of time.

    Raises:
        NotFoundError: there is no such file.
        BadInputError: it cannot be read, or has no request.
    """
    file = _file(path)
    if not file.exists():
        raise NotFoundError(f"{file} does not exist")
    try:
        jobs = msgspec.json.decode(document(file), type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(str(error) or "nested too deeply", source=str(file)) from None
    records: list[Record] = []
    taken: set[str] = set()
    for number, (job, history) in enumerate(jobs.items(), 1):
        if number > MAX_JOBS:
            skipped.add(file.name, None, f"only the first {MAX_JOBS} jobs were read")
            break
        session = identifier(job, f"job-{number}")
        if session in taken:
            session = f"{session[:100]}-{number}"
        taken.add(session)
        records += _Job(session, printable(job, 80), file.name, skipped).read(history)
    if not records:
        raise BadInputError("no request in it", source=str(file))
    records = in_order(records)
    start_us, end_us = records[0].t, records[-1].t
    name = path.name.removesuffix(".json")
    yield RunMeta(
        t=start_us, run=identifier(name), title=printable(name, 80), source="imported", block_tokens=BLOCK_TOKENS
    )
    yield Note(t=start_us, text=_NOTE, by="import")
    yield Capability(t=start_us, name="memory", available=False, reason="the file has no host in it")
    yield EngineStart(
        t=start_us, engine=ENGINE, name="continuum", block_tokens=BLOCK_TOKENS, mode="enforce", rule="ttl"
    )
    yield from records
    yield EngineEnd(t=end_us, engine=ENGINE)
    yield RunEnd(t=end_us, clean=True)


class _Job:
    """One job's history, read in its order."""

    def __init__(self, session: str, title: str, place: str, skipped: Skipped) -> None:
        self._session, self._title, self._place, self._skipped = session, title, place, skipped
        self._records: list[Record] = []
        self._turn = 0
        self._arrived_us: int | None = None  # of the turn that is open
        self._began_us: int | None = None
        self._prompt_tokens: int | None = None
        self._cached_tokens: int | None = None
        self._preemptions = 0
        self._blocks = 0  # of the last prompt, wherever they are
        self._state: KvState = "gone"
        self._t_us = 0

    def read(self, history: object) -> list[Record]:
        """Its records; none where nothing in it can be used."""
        if not isinstance(history, list):
            self._odd("is no list")
            return []
        for entry in history:
            kind = next((kind for kind in _KINDS if isinstance(entry, dict) and kind in entry), None)
            t_us = micros(entry[kind]) if kind is not None else None
            if kind is None or t_us is None:
                self._odd("has an entry without a known time")
            elif t_us < self._t_us:
                self._odd("has an entry that lies before the one before it")
            else:
                self._t_us = t_us
                self._take(kind, t_us, entry)
        if self._arrived_us is not None:
            self._odd("has a request without an end")
        if not self._records:
            return []
        start_us = self._records[0].t
        return [
            SessionStart(t=start_us, session=self._session, title=self._title),
            *self._records,
            SessionEnd(t=self._t_us, session=self._session, reason="finished"),
        ]

    def _take(self, kind: str, t_us: int, entry: dict[str, object]) -> None:
        if kind == _ARRIVED:
            self._arrives(t_us)
        elif kind in (_PINNED, _UNPINNED):
            self._pins(t_us, pinned=kind == _PINNED)
        elif self._arrived_us is None:
            self._odd(f"has {kind} without a request")
        elif kind == _EVICTED:
            self._preemptions += 1
            self._moves(t_us, "gone", "preemption")
        elif kind in (_BEGAN, _BEGAN_AGAIN):
            self._begins(t_us, count(entry.get("prompt_length")), count(entry.get("hit_length")))
        else:
            self._leaves(t_us)

    def _arrives(self, t_us: int) -> None:
        if self._arrived_us is not None:
            self._odd("has a request that comes before the one before it has ended")
        self._turn += 1
        self._arrived_us, self._began_us = t_us, None
        self._prompt_tokens = self._cached_tokens = None
        self._preemptions = 0
        self._records.append(TurnStart(t=t_us, session=self._session, turn=str(self._turn), by="import"))

    def _begins(self, t_us: int, prompt_tokens: int | None, hit_tokens: int | None) -> None:
        if self._began_us is None:
            self._began_us, self._prompt_tokens, self._cached_tokens = t_us, prompt_tokens, hit_tokens
        if prompt_tokens is None:
            return
        hit = min(hit_tokens or 0, prompt_tokens) // BLOCK_TOKENS
        lost = self._blocks - hit if self._state != "gone" else 0
        if lost > 0:
            self._tell(t_us, self._state, "gone", lost, "lru", {self._state: hit, "gone": lost})
        if hit:
            before: KvState = self._state if self._state != "gone" else "device_cached"
            self._tell(t_us, before, "device_active", hit, "admitted", {"device_active": hit})
        blocks = prompt_tokens // BLOCK_TOKENS
        if blocks > hit:
            self._tell(t_us, "gone", "device_active", blocks - hit, "computed", {"device_active": blocks})
        self._blocks, self._state = blocks, "device_active"

    def _leaves(self, t_us: int) -> None:
        queue_us = None
        if self._began_us is not None and self._arrived_us is not None:
            queue_us = self._began_us - self._arrived_us
        self._records.append(
            TurnEnd(
                t=t_us, session=self._session, turn=str(self._turn), by="import", prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens, queue_us=queue_us, preemptions=self._preemptions,
            )
        )  # fmt: skip
        self._arrived_us = None
        if self._state == "device_active":
            self._moves(t_us, "device_cached", "finished")

    def _pins(self, t_us: int, *, pinned: bool) -> None:
        if pinned:
            self._moves(t_us, "device_pinned", "decision")
        elif self._state == "device_pinned":
            waits = self._arrived_us is not None
            self._moves(t_us, "device_cached", "superseded" if waits else "ttl")

    def _moves(self, t_us: int, to: KvState, cause: str) -> None:
        if self._state != to and self._blocks:
            self._tell(t_us, self._state, to, self._blocks, cause, {to: self._blocks})
            self._state = to

    def _tell(
        self, t_us: int, from_: KvState, to: KvState, blocks: int, cause: str, residency: dict[str, int]
    ) -> None:  # fmt: skip
        self._records.append(
            KvTransition(
                t=t_us, session=self._session, turn=str(self._turn), engine=ENGINE, from_=from_, to=to, blocks=blocks,
                cause=cause,  # type: ignore[arg-type]
                tokens=blocks * BLOCK_TOKENS, residency={state: left for state, left in residency.items() if left},
            )
        )  # fmt: skip

    def _odd(self, what: str) -> None:
        self._skipped.add(self._place, None, f"job {self._session} {what}")
