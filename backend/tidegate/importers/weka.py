"""WEKA's anonymised Claude Code traces (kv-cache-tester): a ``.json`` file a conversation, or a folder of such files.

Taken: when each request came, how long it took, its tokens and the ids of its blocks. A trace measures no cache, so
what that of one engine would have done is modelled (:mod:`tidegate.analysis.kv_pool`). Conversations of a folder begin
together: the traces have no dates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tidegate.analysis.kv_pool import BlockId, Request
from tidegate.errors import BadInputError, NotFoundError
from tidegate_collectors.records import Record

from ._build import identifier, printable
from ._files import converted, document, head
from ._kv_model import modelled_run
from ._skipped import Skipped

BEGIN_US: Final = 1_767_225_600_000_000
"""Where the time of a trace without dates begins: 2026-01-01, UTC."""

MAX_FILES: Final = 2_000
MAX_BLOCKS: Final = 5_000_000
"""Blocks that all requests of an import name together; more are not read."""

_MAX_SECONDS: Final = 10 * 365 * 86_400.0
_MAX_TOKENS: Final = 100_000_000
_LOOKS: Final = re.compile(rb'"block_size"\s*:\s*\d+[^\[]*"hash_id_scope"|"hash_id_scope"[^\[]*"block_size"')


class _Request(Struct):
    t: float = 0.0
    type: str = "n"
    in_: int = msgspec.field(name="in", default=0)
    out: int = 0
    hash_ids: list[int] = []
    api_time: float = 0.0
    agent_id: str = ""
    requests: list[_Request] = []


class _Trace(Struct):
    id: str
    block_size: int
    requests: list[_Request]


def detect(path: Path) -> bool:
    """Whether it is such a file, or a folder in which one of the first files is one."""
    if path.is_dir():
        return any(_is_trace(file) for file in sorted(path.glob("*.json"))[:8])
    return _is_trace(path)


def _is_trace(path: Path) -> bool:
    return bool(_LOOKS.search(head(path, 4096)))


def read(path: Path, skipped: Skipped) -> Iterator[Record]:
    """The records of a modelled run.

    Raises:
        NotFoundError: there is no such file.
        BadInputError: it cannot be read, or has no request.
    """
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if len(files) > MAX_FILES:
        skipped.add(path.name, None, f"only the first {MAX_FILES} files were read")
    requests: list[Request] = []
    sizes: set[int] = set()
    left = MAX_BLOCKS
    for file in files[:MAX_FILES]:
        trace = _read(file, skipped)
        if trace is None:
            continue
        if sizes and trace.block_size not in sizes:
            skipped.add(file.name, None, f"its blocks have {trace.block_size} tokens, others {min(sizes)}")
            continue
        sizes.add(trace.block_size)
        found = _conversation(trace, file.name, skipped)
        left -= sum(len(request.prompt) for request in found)
        if left < 0:
            skipped.add(
                file.name, None, f"more than {MAX_BLOCKS} blocks in all; this file and later ones were not read"
            )
            break
        requests += found
    if not requests:
        raise BadInputError("no request of a trace in it", source=str(path))
    requests.sort(key=lambda request: request.arrive_us)
    name = path.name.removesuffix(".json")
    what = (
        f"The times and tokens are those of {len({r.session for r in requests})} conversations of the trace, which has "
        f"no dates: all begin together, and the time each request takes is that of the provider that served it."
    )
    titles = {request.session: request.session for request in requests}
    yield from modelled_run(identifier(name), printable(name, 80), requests, sizes.pop(), what=what, titles=titles)


def _read(file: Path, skipped: Skipped) -> _Trace | None:
    try:
        value = msgspec.json.decode(document(file))
    except (msgspec.DecodeError, BadInputError, RecursionError) as error:
        skipped.add(file.name, None, str(error) or "nested too deeply")
        return None
    trace = converted(value, _Trace)
    if isinstance(trace, str):
        skipped.add(file.name, None, trace)
        return None
    if not 1 <= trace.block_size <= 65_536:
        skipped.add(file.name, None, f"a block of {trace.block_size} tokens")
        return None
    return trace


def _conversation(trace: _Trace, place: str, skipped: Skipped) -> list[Request]:
    scope = identifier(trace.id, place)
    lanes: list[tuple[str, float, list[_Request]]] = [(scope, 0.0, [])]
    for number, request in enumerate(trace.requests, 1):
        if request.requests:
            agent = identifier(request.agent_id, f"agent-{number}")
            lanes.append((f"{scope}/{agent}", request.t, request.requests))
        elif request.type == "subagent":
            skipped.add(place, None, f"request {number}: a sub-agent without requests")
        else:
            lanes[0][2].append(request)
    found: list[Request] = []
    for session, begin_s, asked in lanes:
        found += _lane(session, scope, begin_s, asked, trace.block_size, place, skipped)
    return found


def _lane(
    session: str, scope: str, begin_s: float, asked: list[_Request], block_tokens: int, place: str, skipped: Skipped
) -> list[Request]:
    good: list[_Request] = []
    for number, request in enumerate(asked, 1):
        seconds = begin_s + request.t
        if not 0 <= seconds < _MAX_SECONDS or not 0 <= request.api_time < _MAX_SECONDS:
            skipped.add(place, None, f"{session}, request {number}: its times are out of bounds")
        elif not 0 < request.in_ < _MAX_TOKENS or not 0 <= request.out < _MAX_TOKENS:
            skipped.add(place, None, f"{session}, request {number}: its tokens are out of bounds")
        else:
            good.append(request)
    found: list[Request] = []
    for turn, request in enumerate(good, 1):
        ids = request.hash_ids[: request.in_ // block_tokens]
        later = good[turn].hash_ids if turn < len(good) else []
        whole = (request.in_ + request.out) // block_tokens
        output = later[len(ids) : whole] if later[: len(ids)] == ids else []
        found.append(
            Request(
                session=session,
                turn=turn,
                arrive_us=BEGIN_US + round((begin_s + request.t) * 1e6),
                prompt=_blocks(scope, ids),
                output=_blocks(scope, output),
                prompt_tokens=request.in_,
                output_tokens=request.out,
                service_us=round(request.api_time * 1e6) or None,
            )
        )
    return found


def _blocks(scope: str, ids: list[int]) -> list[BlockId]:
    return [(scope, number) for number in ids]
