"""Traces of requests that name their blocks -> a modelled run: the records that a model of the pool gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tidegate.analysis.kv_pool import (
    REFERENCE_POOL_TOKENS,
    Admitted,
    Ended,
    Event,
    Evicted,
    Pool,
    Refused,
    Request,
    Speed,
    pool_blocks,
)
from tidegate_collectors.records import (
    Capability,
    EngineEnd,
    EngineSample,
    EngineStart,
    KvTransition,
    Note,
    Record,
    RunEnd,
    RunMeta,
    SessionEnd,
    SessionStart,
    TurnEnd,
    TurnFirstToken,
    TurnStart,
)

from ._build import in_order

ENGINE: Final = "model"
_SAMPLE_US: Final = 1_000_000
_SPEED: Final = Speed()


def modelled_run(
    run: str,
    title: str,
    requests: Sequence[Request],
    block_tokens: int,
    *,
    what: str,
    titles: dict[str, str],
    pool_tokens: int = REFERENCE_POOL_TOKENS,
) -> Iterator[Record]:
    """The records of a modelled run in order of time.

    Args:
        run: id of the run.
        title: its name for people.
        requests: the trace, in order of arrival; at least one.
        block_tokens: tokens in a block.
        what: what the trace says of itself and what was assumed, for the run's note.
        titles: names of sessions for people.
        pool_tokens: tokens that the modelled pool holds.
    """
    blocks = pool_blocks(requests, block_tokens, pool_tokens)
    start_us = requests[0].arrive_us
    model = (
        f"modelled: nothing here was measured. {what} The pool has {blocks:,} blocks of {block_tokens} tokens, "
        f"evicts the least recently used and pins nothing."
    )
    yield RunMeta(
        t=start_us, run=run, title=title, source="modelled", block_tokens=block_tokens, pool_blocks=blocks,
    )  # fmt: skip
    yield Note(t=start_us, text=model, by="import")
    yield Capability(t=start_us, name="memory", available=False, reason="a trace of requests has no host in it")
    yield EngineStart(
        t=start_us, engine=ENGINE, name="model", model="modelled", block_tokens=block_tokens, pool_blocks=blocks,
        host_tier_bytes=0, mode="off", rule="lru",
    )  # fmt: skip
    records = list(_records(requests, Pool(blocks, block_tokens, _SPEED), titles))
    yield from in_order(records)
    end_us = max(record.t for record in records)
    yield EngineEnd(t=end_us, engine=ENGINE)
    yield RunEnd(t=end_us, clean=True)


def _records(requests: Sequence[Request], pool: Pool, titles: dict[str, str]) -> Iterator[Record]:
    last_of: dict[str, int] = {}
    seen: set[str] = set()
    for request in requests:
        if request.session not in seen:
            seen.add(request.session)
            yield SessionStart(t=request.arrive_us, session=request.session, title=titles.get(request.session, ""))
        yield TurnStart(
            t=request.arrive_us, session=request.session, turn=str(request.turn), by="import",
            prompt_tokens=request.prompt_tokens,
        )  # fmt: skip
    sampled_us = 0
    for event in pool.play(requests):
        session = event.session if isinstance(event, Evicted) else event.request.session
        if not isinstance(event, Evicted):
            last_of[session] = max(event.t_us, last_of.get(session, 0))
        yield from _event(event, pool.block_tokens)
        if event.t_us - sampled_us >= _SAMPLE_US:
            sampled_us = event.t_us
            yield _sample(event.t_us, pool)
    yield _sample(max(last_of.values()), pool)
    for name, t_us in last_of.items():
        yield SessionEnd(t=t_us, session=name, reason="finished")


def _event(event: Event, block_tokens: int) -> Iterator[Record]:
    if isinstance(event, Evicted):
        yield KvTransition(
            t=event.t_us, session=event.session, engine=ENGINE, from_="device_cached", to="gone", blocks=event.blocks,
            tokens=event.blocks * block_tokens, cause="lru", victim_of=event.victim_of, residency=event.residency,
        )  # fmt: skip
        return
    request = event.request
    session, turn = request.session, str(request.turn)
    if isinstance(event, Refused):
        yield TurnEnd(
            t=event.t_us, session=session, turn=turn, by="import", finish_reason="error",
            error=f"it needs {event.blocks} blocks, more than the modelled pool has",
        )  # fmt: skip
    elif isinstance(event, Admitted):
        if event.cached_blocks:
            yield KvTransition(
                t=event.t_us, session=session, turn=turn, engine=ENGINE, from_="device_cached", to="device_active",
                blocks=event.cached_blocks, tokens=event.cached_blocks * block_tokens, cause="admitted",
                residency=event.residency,
            )  # fmt: skip
        if event.new_blocks:
            yield KvTransition(
                t=event.t_us, session=session, turn=turn, engine=ENGINE, from_="gone", to="device_active",
                blocks=event.new_blocks, tokens=event.new_blocks * block_tokens, cause="computed",
                residency=event.residency,
            )  # fmt: skip
    else:
        yield from _ended(event, block_tokens)


def _ended(event: Ended, block_tokens: int) -> Iterator[Record]:
    request = event.request
    session, turn = request.session, str(request.turn)
    yield TurnFirstToken(
        t=event.t_us - event.decode_us, session=session, turn=turn, by="import",
        ttft_us=event.queue_us + event.prefill_us,
    )  # fmt: skip
    yield TurnEnd(
        t=event.t_us, session=session, turn=turn, by="import", prompt_tokens=request.prompt_tokens,
        cached_tokens=event.cached_blocks * block_tokens, cached_device_tokens=event.cached_blocks * block_tokens,
        cached_host_tokens=0, recomputed_tokens=max(0, event.known_blocks - event.cached_blocks) * block_tokens,
        output_tokens=request.output_tokens, stable_prefix_tokens=event.known_blocks * block_tokens,
        queue_us=event.queue_us, prefill_us=event.prefill_us, decode_us=event.decode_us, preemptions=0,
    )  # fmt: skip
    yield KvTransition(
        t=event.t_us, session=session, turn=turn, engine=ENGINE, from_="device_active", to="device_cached",
        blocks=event.blocks, tokens=event.blocks * block_tokens, cause="finished", residency=event.residency,
    )  # fmt: skip


def _sample(t_us: int, pool: Pool) -> EngineSample:
    counts = pool.counts()
    return EngineSample(
        t=t_us, engine=ENGINE, running=counts.running, waiting=counts.waiting, blocks_total=pool.blocks,
        blocks_active=counts.active, blocks_cached=counts.cached, blocks_pinned=0, blocks_free=counts.free,
        prefix_queries_tokens=counts.queries_tokens, prefix_hits_tokens=counts.hits_tokens,
        recomputed_tokens=counts.recomputed_tokens, preemptions=0, prompt_tokens=counts.prompt_tokens,
        output_tokens=counts.output_tokens,
    )  # fmt: skip
