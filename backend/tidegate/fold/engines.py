"""Records of inference engines: what they are, what they do, and where sessions' KV blocks are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_collectors.records import (
    EngineEnd,
    EngineMode,
    EngineSample,
    EngineStart,
    KvCalibration,
    KvDecision,
    KvOutcome,
    KvTransfer,
    KvTransition,
    Record,
)

from .engine import KEPT_GAPS, Engine, Kv, LastDecision, LastOutcome, Tool
from .limits import cut, cut_deep, cut_or_none, short_id
from .model import Session
from .turns import seen

if TYPE_CHECKING:
    from .state import State

KV_STATES: Final = ("device_active", "device_cached", "device_pinned", "device_and_host", "host", "gone")
"""States of a block, in the order in which pages show them."""
_MODEL: Final = "model"
"""Name of the software of an engine that is a model of one: an importer's."""
_MAX_TOOLS: Final = 64


def engine_start(state: State, record: EngineStart) -> None:
    """An engine is there, or is introduced again. From another process it is a restart: its cache begins empty."""
    engine = _engine(state, record, record.engine)
    if engine is None:
        return
    src = short_id(record.src)
    again = engine.started_us is not None and engine.ended_us is None and engine.src == src and engine.pid == record.pid
    if not again:
        if engine.started_us is not None:
            _emptied(state, engine.engine, record.t)
        engine.started_us, engine.ended_us = record.t, None
        engine.sample = engine.calibration = None
        engine.mode_reason = ""
    engine.lost = False
    engine.src, engine.host, engine.pid = src, short_id(record.host), record.pid
    engine.name, engine.version, engine.model = cut(record.name), cut(record.version), cut(record.model)
    engine.plugin, engine.modelled = record.plugin, record.name == _MODEL
    engine.max_tokens, engine.block_tokens, engine.pool_blocks = (
        record.max_tokens, record.block_tokens, record.pool_blocks,
    )  # fmt: skip
    engine.kv_bytes_per_token, engine.host_tier_bytes = record.kv_bytes_per_token, record.host_tier_bytes
    engine.rule, engine.params = cut(record.rule), cut_deep(record.params)
    if not (again and engine.mode_reason):
        engine.mode = record.mode


def engine_end(state: State, record: EngineEnd) -> None:
    """An engine is gone, and with it what it held; sessions that only it knew have ended."""
    engine = _engine(state, record, record.engine)
    if engine is None:
        return
    engine.ended_us = record.t
    _emptied(state, engine.engine, record.t)
    for session in state.sessions.values():
        kv = session.inference.kv
        if not session.announced and session.phase == "running" and kv is not None and kv.engine == engine.engine:
            session.phase, session.ended_us, session.end_reason = "ended", record.t, "engine"
            _touch(state, session)


def engine_mode(state: State, record: EngineMode) -> None:
    """The plugin changed its mode by itself."""
    engine = _engine(state, record, record.engine)
    if engine is not None:
        engine.mode, engine.mode_reason = record.mode, cut(record.reason)


def engine_sample(state: State, record: EngineSample) -> None:
    """The engine at one instant."""
    engine = _engine(state, record, record.engine)
    if engine is not None and (engine.sample is None or record.t >= engine.sample.t):
        engine.sample = record
        if len(record.waiting_by_reason) > state.limits.names or len(record.missing) > state.limits.names:
            engine.sample = None  # nothing that an engine would say


def calibration(state: State, record: KvCalibration) -> None:
    """What rebuilding, restoring and saving were found to cost."""
    engine = _engine(state, record, record.engine)
    if engine is not None:
        record.samples = {name[:32]: points[-KEPT_GAPS:] for name, points in list(record.samples.items())[:3]}
        engine.calibration = record


def decision(state: State, record: KvDecision) -> None:
    """What shall become of a session's blocks."""
    engine = _engine(state, record, record.engine)
    if engine is not None:
        counted = engine.decisions
        counted.total += 1
        counted.enforced += record.enforced
        counted.overridden += record.overridden_by is not None
        counted.by_action[record.action] = counted.by_action.get(record.action, 0) + 1
        if record.tool:
            _expected(engine, record)
    session = state.session_of(record)
    if session is None:
        return
    seen(session, record.t)
    predicted = record.predicted or {}
    _kv(session, engine, record).last = LastDecision(
        src=short_id(record.src), seq=record.seq, ord=state.ord, t_us=record.t, action=record.action,
        enforced=record.enforced, boundary=record.boundary, rule=cut(record.rule), tool=cut_or_none(record.tool),
        overridden_by=cut_or_none(record.overridden_by), p50_s=_number(predicted.get("p50_s")),
        p90_s=_number(predicted.get("p90_s")),
    )  # fmt: skip
    if record.boundary == "terminal" and not session.announced:
        session.phase, session.ended_us, session.end_reason = "ended", record.t, "terminal"


def transition(state: State, record: KvTransition) -> None:
    """Blocks of a session changed their state."""
    engine = _engine(state, record, record.engine)
    if engine is not None:
        counts = engine.matrix.setdefault(f"{record.from_} {record.to} {record.cause}", [0, 0])
        counts[0] += 1
        counts[1] += max(0, record.blocks)
    session = state.session_of(record)
    if session is None:
        return
    seen(session, record.t)
    kv = _kv(session, engine, record)
    before = kv.main_state()
    kv.t_us = record.t
    kv.blocks = {name: record.residency[name] for name in KV_STATES if record.residency.get(name, 0) > 0}
    kv.shared_blocks = record.shared_blocks
    if kv.main_state() != before:
        kv.since_us = record.t
    if not kv.blocks.get("device_pinned"):
        kv.pinned_until_us = None
    elif record.until_us is not None:
        kv.pinned_until_us = record.until_us


def transfer(state: State, record: KvTransfer) -> None:
    """Blocks were copied between device and host."""
    engine = _engine(state, record, record.engine)
    if engine is not None:
        sums = engine.transfers
        if not record.ok:
            sums.failed += 1
        elif record.direction == "out":
            sums.out_n += 1
            sums.out_bytes += record.bytes
        else:
            sums.in_n += 1
            sums.in_bytes += record.bytes
    session = state.session_of(record)
    if session is not None:
        seen(session, record.t)


def outcome(state: State, record: KvOutcome) -> None:
    """What came of a decision."""
    engine = _engine(state, record, record.engine)
    session = state.session_of(record)
    last: LastDecision | None = None
    if session is not None:
        kv = _kv(session, engine, record)
        kv.outcome = LastOutcome(
            t_us=record.t, action=record.action, returned=record.returned, gap_us=record.gap_us,
            evicted=record.evicted, served_from=cut(record.served_from), hindsight_best=record.hindsight_best,
            regret_s=record.regret_s,
        )  # fmt: skip
        last = kv.last
    if engine is None:
        return
    sums = engine.outcomes
    sums.n += 1
    sums.returned += record.returned
    sums.evicted += record.evicted
    sums.regret_s += record.regret_s or 0.0
    if record.returned:
        sums.by_served[record.served_from] = sums.by_served.get(record.served_from, 0) + 1
        if last is not None and last.tool and (last.src, last.seq) == (short_id(record.src), record.decision_seq):
            _took(engine, last, record.gap_us)


def source_gone(state: State, src: str) -> None:
    """The sender that spoke for an engine will not be heard of."""
    for engine in state.engines.values():
        if engine.src == src and engine.ended_us is None:
            engine.lost = True
            _tell(state, engine)


def _engine(state: State, record: Record, name: str) -> Engine | None:
    src = short_id(record.src)
    key = short_id(name)
    if not key:
        key = next((engine.engine for engine in state.engines.values() if engine.src == src), src)
    engine = state.engines.get(key)
    if engine is None:
        if len(state.engines) >= state.limits.names:
            return None
        engine = state.engines[key] = Engine(engine=key, src=src, host=short_id(record.host))
    if engine.lost and engine.src == src:
        engine.lost = False
    engine.last_t_us = max(engine.last_t_us, record.t)
    _tell(state, engine)
    return engine


def _tell(state: State, engine: Engine) -> None:
    if state.tracker is not None:
        state.tracker.engines.add(engine.engine)


def _touch(state: State, session: Session) -> None:
    # A snapshot keeps a session as it was, unless this says that a record changed it.
    session.ord = state.ord
    if state.tracker is not None:
        state.tracker.sessions.add(session.id)


def _emptied(state: State, engine: str, t_us: int) -> None:
    for session in state.sessions.values():
        kv = session.inference.kv
        if kv is not None and kv.engine == engine and kv.blocks:
            kv.blocks, kv.shared_blocks, kv.pinned_until_us = {}, None, None
            kv.t_us = kv.since_us = t_us
            _touch(state, session)


def _kv(session: Session, engine: Engine | None, record: Record) -> Kv:
    name = short_id(record.src) if engine is None else engine.engine
    kv = session.inference.kv
    if kv is None:
        kv = session.inference.kv = Kv(engine=name)
    kv.engine = name
    return kv


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _tool(engine: Engine, name: str) -> Tool | None:
    name = name[:64]
    tool = engine.tools.get(name)
    if tool is None and len(engine.tools) < _MAX_TOOLS:
        tool = engine.tools[name] = Tool()
    return tool


def _expected(engine: Engine, record: KvDecision) -> None:
    tool = _tool(engine, record.tool or "")
    if tool is not None:
        predicted = record.predicted or {}
        tool.p50_s, tool.p90_s = _number(predicted.get("p50_s")), _number(predicted.get("p90_s"))
        tool.source = str(predicted.get("source") or "")[:32]


def _took(engine: Engine, last: LastDecision, gap_us: int) -> None:
    tool = _tool(engine, last.tool or "")
    if tool is None:
        return
    tool.n += 1
    tool.gaps_us.append(gap_us)
    del tool.gaps_us[:-KEPT_GAPS]
    if last.p90_s is not None:
        tool.expected += 1
        tool.within += gap_us <= last.p90_s * 1e6
