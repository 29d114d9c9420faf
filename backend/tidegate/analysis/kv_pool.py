"""A model of an engine's KV pool under prefix caching: what requests would find there, and what they would push out.

After vLLM's v1 block pool: a prompt takes up the longest beginning of it that is cached; the rest takes blocks from the
front of the free queue, where the least recently used lie, and what they held is gone. A request holds its blocks while
it runs; when it ends they go to the back of the queue, its last block first, so that a beginning outlives its end.
A request that finds too few free blocks waits, in order of arrival. Nothing is preempted, nothing is pinned.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

BlockId = tuple[str, int]
"""A scope and an id in it: equal ids are equal tokens after an equal beginning."""

_ARRIVAL, _END = 1, 0  # an end comes before an arrival of the same instant: its blocks are free by then


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    Attributes:
        session: whose it is.
        turn: which of the session's, from 1.
        arrive_us: when it came.
        prompt: its full blocks, in order.
        output: those of them that its answer fills, as far as a later prompt shows them.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens of the answer.
        service_us: how long it takes once it runs; None: as :class:`Speed` says.
    """

    session: str
    turn: int
    arrive_us: int
    prompt: Sequence[BlockId]
    output: Sequence[BlockId]
    prompt_tokens: int
    output_tokens: int
    service_us: int | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """How long a request takes that does not say so, in microseconds a token."""

    prefill_us: float = 100.0
    decode_us: float = 20_000.0

    def service_us(self, computed_tokens: int, output_tokens: int) -> tuple[int, int]:
        """Time to the first token, and from there to the last."""
        return round(computed_tokens * self.prefill_us), round(output_tokens * self.decode_us)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request runs: ``cached_blocks`` of its prompt were there; ``known_blocks`` its session had had before."""

    t_us: int
    request: Request
    cached_blocks: int
    known_blocks: int
    new_blocks: int
    residency: dict[str, int]


@dataclass(frozen=True, slots=True)
class Evicted:
    """Blocks of a session were taken by a request of another one, or of its own."""

    t_us: int
    session: str
    blocks: int
    victim_of: str
    residency: dict[str, int]


@dataclass(frozen=True, slots=True)
class Ended:
    """A request has ended; times as in a turn's record."""

    t_us: int
    request: Request
    cached_blocks: int
    known_blocks: int
    blocks: int
    queue_us: int
    prefill_us: int
    decode_us: int
    residency: dict[str, int]


@dataclass(frozen=True, slots=True)
class Refused:
    """A request needs more blocks than the pool has."""

    t_us: int
    request: Request
    blocks: int


Event = Admitted | Evicted | Ended | Refused


@dataclass(slots=True)
class Counts:
    """The pool at one instant, each block counted once; the token counters are cumulative."""

    active: int = 0
    cached: int = 0
    free: int = 0
    running: int = 0
    waiting: int = 0
    queries_tokens: int = 0
    hits_tokens: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class _Session:
    chain: dict[BlockId, None] = field(default_factory=dict)
    had: set[BlockId] = field(default_factory=set)


@dataclass(slots=True)
class _Run:
    request: Request
    blocks: list[BlockId]
    spare: int
    cached: int
    known: int
    started_us: int
    prefill_us: int = 0
    decode_us: int = 0


class Pool:
    """The pool, driven by :meth:`play`.

    Args:
        blocks: how many blocks there are.
        block_tokens: tokens in one.
        speed: how long requests take that do not say so.
    """

    def __init__(self, blocks: int, block_tokens: int, speed: Speed | None = None) -> None:
        if blocks < 1 or block_tokens < 1:
            raise ValueError("a pool has at least one block of one token")
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._speed = speed or Speed()
        self._references: dict[BlockId, int] = {}  # of blocks that requests hold
        self._spare = 0  # blocks that requests hold and nobody can find again
        self._cached: OrderedDict[BlockId, None] = OrderedDict()  # least recently used first
        self._holders: dict[BlockId, set[str]] = {}
        self._sessions: dict[str, _Session] = {}
        self._waiting: deque[Request] = deque()
        self._running = 0
        self._totals = Counts()
        self._heap: list[tuple[int, int, int, Request | _Run]] = []
        self._order = 0

    def counts(self) -> Counts:
        """The pool as it stands."""
        totals = self._totals
        active = len(self._references) + self._spare
        return Counts(
            active, len(self._cached), self.blocks - active - len(self._cached), self._running, len(self._waiting),
            totals.queries_tokens, totals.hits_tokens, totals.recomputed_tokens, totals.prompt_tokens,
            totals.output_tokens,
        )  # fmt: skip

    def play(self, requests: Iterable[Request]) -> Iterator[Event]:
        """What happens when these requests come, in order of time."""
        for request in requests:
            self._push(request.arrive_us, _ARRIVAL, request)
        while self._heap:
            t_us, _, _, item = heapq.heappop(self._heap)
            if isinstance(item, Request):
                needed = self._needed(item)
                if needed > self.blocks:
                    yield Refused(t_us, item, needed)
                    continue
                self._waiting.append(item)
            else:
                yield self._end(t_us, item)
            while self._waiting and self._fits(self._waiting[0]):
                yield from self._admit(t_us, self._waiting.popleft())

    def _push(self, t_us: int, rank: int, item: Request | _Run) -> None:
        self._order += 1
        heapq.heappush(self._heap, (t_us, rank, self._order, item))

    def _needed(self, request: Request) -> int:
        return -(-(request.prompt_tokens + request.output_tokens) // self.block_tokens)

    def _found(self, request: Request) -> int:
        # The last token is always computed, so a prompt is never found whole.
        most = min(len(request.prompt), max(0, request.prompt_tokens - 1) // self.block_tokens)
        for index in range(most):
            block = request.prompt[index]
            if block not in self._references and block not in self._cached:
                return index
        return most

    def _fits(self, request: Request) -> bool:
        found = request.prompt[: self._found(request)]
        held = sum(block in self._references for block in found)
        free = self.blocks - len(self._references) - self._spare
        return self._needed(request) - held <= free

    def _admit(self, t_us: int, request: Request) -> Iterator[Event]:
        found = self._found(request)
        session = self._sessions.setdefault(request.session, _Session())
        known = 0
        while known < len(request.prompt) and request.prompt[known] in session.had:
            known += 1
        chain = dict.fromkeys((*request.prompt, *request.output))
        blocks = list(chain)
        for block in blocks[:found]:
            self._hold(block)
        fresh = [block for block in blocks[found:] if block not in self._references]
        spare = max(0, self._needed(request) - len(blocks))
        evicted = self._make_room(len(fresh) + spare, fresh)
        for block in blocks[found:]:  # one behind the hole that another request holds is shared with it
            self._hold(block)
        self._spare += spare
        for block in session.chain:
            if block not in chain:
                self._release_holder(block, request.session)
        for block in chain:
            self._holders.setdefault(block, set()).add(request.session)
        session.chain = chain
        session.had.update(chain)
        self._running += 1
        computed = request.prompt_tokens - found * self.block_tokens
        prefill_us, decode_us = self._speed.service_us(computed, request.output_tokens)
        if request.service_us is not None:
            prefill_us = min(prefill_us, request.service_us)
            decode_us = request.service_us - prefill_us
        run = _Run(request, blocks, spare, found, known, t_us, prefill_us, decode_us)
        self._push(t_us + prefill_us + decode_us, _END, run)
        totals = self._totals
        totals.queries_tokens += request.prompt_tokens
        totals.hits_tokens += found * self.block_tokens
        totals.recomputed_tokens += max(0, known - found) * self.block_tokens
        totals.prompt_tokens += request.prompt_tokens
        for name, count in evicted.items():
            yield Evicted(t_us, name, count, request.session, self.residency(name))
        yield Admitted(t_us, request, found, known, len(fresh), self.residency(request.session))

    def _hold(self, block: BlockId) -> None:
        self._cached.pop(block, None)
        self._references[block] = self._references.get(block, 0) + 1

    def _make_room(self, wanted: int, fresh: list[BlockId]) -> dict[str, int]:
        """Evict until so many blocks are free and empty; how many each session lost."""
        lost: dict[str, int] = {}
        for block in fresh:  # cached behind a hole: computed again in place of what is there
            self._cached.pop(block, None)
        free = self.blocks - len(self._references) - self._spare - len(self._cached)
        while free < wanted:
            block, _ = self._cached.popitem(last=False)
            free += 1
            for name in self._holders.get(block, ()):
                lost[name] = lost.get(name, 0) + 1
        return lost

    def _release_holder(self, block: BlockId, session: str) -> None:
        holders = self._holders.get(block)
        if holders is not None:
            holders.discard(session)
            if not holders:
                del self._holders[block]

    def _end(self, t_us: int, run: _Run) -> Ended:
        for block in reversed(run.blocks):
            left = self._references[block] - 1
            if left:
                self._references[block] = left
            else:
                del self._references[block]
                self._cached[block] = None
        self._spare -= run.spare
        self._running -= 1
        self._totals.output_tokens += run.request.output_tokens
        return Ended(
            t_us, run.request, run.cached, run.known, len(run.blocks), run.started_us - run.request.arrive_us,
            run.prefill_us, run.decode_us, self.residency(run.request.session),
        )  # fmt: skip

    def residency(self, session: str) -> dict[str, int]:
        """Blocks of the last prompt and answer of a session, by state."""
        active = cached = gone = 0
        for block in self._sessions[session].chain:
            if block in self._references:
                active += 1
            elif block in self._cached:
                cached += 1
            else:
                gone += 1
        return {"device_active": active, "device_cached": cached, "gone": gone}


REFERENCE_POOL_TOKENS: Final = 193_000
"""Pool of Qwen3-8B in AgentKV-OS's main configuration; what a modelled run takes when nobody says otherwise."""


def pool_blocks(requests: Sequence[Request], block_tokens: int, tokens: int = REFERENCE_POOL_TOKENS) -> int:
    """Blocks of a pool of so many tokens, or of as many as the largest request needs."""
    largest = max((request.prompt_tokens + request.output_tokens for request in requests), default=0)
    return -(-max(tokens, largest) // block_tokens)
