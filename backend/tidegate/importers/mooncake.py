"""Mooncake's request traces (FAST25): a ``.jsonl`` file with a request a line.

A line has ``timestamp`` (milliseconds), ``input_length``, ``output_length`` (tokens) and ``hash_ids`` (blocks of 512
tokens, the same id for the same beginning, over the whole file). Who asked is not in it: a request that goes on where
an earlier one ended is taken for the next turn of the same session. What a cache would have done is modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tidegate.analysis.kv_pool import BlockId, Request, Speed
from tidegate.errors import BadInputError
from tidegate_collectors.records import Record

from ._build import identifier, printable
from ._files import decoded, head, lines
from ._kv_model import modelled_run
from ._skipped import Skipped
from .weka import BEGIN_US, MAX_BLOCKS

BLOCK_TOKENS: Final = 512

POOL_TOKENS: Final = 3_000_000
"""The traces are of a cluster: the pool of one engine would have had requests wait for half an hour."""

_MAX_MS: Final = 10 * 365 * 86_400_000
_MAX_TOKENS: Final = 100_000_000
_MAX_IDS: Final = 1 << 20
_SPEED: Final = Speed()


class _Line(Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


_decoder: Final[msgspec.json.Decoder[_Line]] = msgspec.json.Decoder(_Line)


def detect(path: Path) -> bool:
    """Whether the first line is such a request."""
    first = head(path, 1 << 16).partition(b"\n")[0]
    found: _Line | str = decoded(_decoder, first)
    return not isinstance(found, str)


def read(path: Path, skipped: Skipped) -> Iterator[Record]:
    """The records of a modelled run.

    Raises:
        NotFoundError, BadInputError: there is no such file, it cannot be read, or has no request.
    """
    sessions = _Sessions()
    requests: list[Request] = []
    left = MAX_BLOCKS
    for number, line in lines(path, path.name, skipped):
        found = decoded(_decoder, line)
        problem = found if isinstance(found, str) else _problem(found)
        if problem or isinstance(found, str):
            skipped.add(path.name, number, problem)
            continue
        left -= len(found.hash_ids)
        if left < 0:
            skipped.add(
                path.name, number, f"more than {MAX_BLOCKS} blocks in all; this line and later ones were not read"
            )
            break
        requests.append(sessions.request(found))
    if not requests:
        raise BadInputError("no request of a trace in it", source=str(path))
    requests.sort(key=lambda request: request.arrive_us)
    name = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".jsonl")
    what = (
        f"The trace says when {len(requests):,} requests came and which blocks they share, neither who asked nor how "
        f"long it took: sessions are requests that go on where one ended, a prompt is computed in "
        f"{_SPEED.prefill_us:g} µs a token, an answer in {_SPEED.decode_us / 1000:g} ms a token."
    )
    yield from modelled_run(
        identifier(name), printable(name, 80), requests, BLOCK_TOKENS, what=what, titles={}, pool_tokens=POOL_TOKENS
    )


def _problem(line: _Line) -> str:
    if not 0 <= line.timestamp < _MAX_MS:
        return "its timestamp is out of bounds"
    if not 0 < line.input_length < _MAX_TOKENS or not 0 <= line.output_length < _MAX_TOKENS:
        return "its lengths are out of bounds"
    if len(line.hash_ids) > _MAX_IDS:
        return f"more than {_MAX_IDS} blocks"
    return ""


class _Sessions:
    """Finds whose a request is: the one whose last prompt is the beginning of this one."""

    def __init__(self) -> None:
        self._last: dict[BlockId, str] = {}  # last full block of a session's last prompt
        self._turns: dict[str, int] = {}

    def request(self, line: _Line) -> Request:
        prompt = [("", block) for block in line.hash_ids[: line.input_length // BLOCK_TOKENS]]
        session = next((self._last[block] for block in reversed(prompt) if block in self._last), None)
        if session is None:
            session = f"request-{len(self._turns) + 1}"
        turn = self._turns[session] = self._turns.get(session, 0) + 1
        if len(prompt) > 1:  # the first block alone is a system prompt that many share
            self._last[prompt[-1]] = session
        return Request(
            session=session,
            turn=turn,
            arrive_us=BEGIN_US + round(line.timestamp * 1000),
            prompt=prompt,
            output=[],
            prompt_tokens=line.input_length,
            output_tokens=line.output_length,
        )
