"""Records for tests: small builders, and a hypothesis strategy for streams in which records meet."""

from __future__ import annotations

import random
from typing import Any, Final, Literal

import msgspec
import msgspec.inspect as mi
from hypothesis import strategies as st

from tidegate_collectors import records
from tidegate_collectors.records import (
    AnyRecord,
    CallEnd,
    CallStart,
    HostSample,
    MemBurst,
    MemSample,
    PsiSample,
    Record,
    SchedSample,
    SessionEnd,
    SessionStart,
)

T0: Final = 1_790_000_000_000_000
"""A time in microseconds UTC, the zero of the builders below."""

MB: Final = 1_000_000

_ENVELOPE: Final[dict[str, Any]] = {"v": 1, "seq": 0, "src": "kernel-0001", "host": "h"}


def at(seconds: float) -> int:
    """Microseconds UTC, ``seconds`` after :data:`T0`."""
    return T0 + round(seconds * 1_000_000)


def session_start(seconds: float, session: str = "s", **fields: Any) -> SessionStart:
    """A session of agent ``agent`` begins."""
    return SessionStart(**{**_ENVELOPE, "t": at(seconds), "session": session, "agent": "agent", **fields})


def session_end(seconds: float, session: str = "s", **fields: Any) -> SessionEnd:
    """It ends by itself with exit code 0."""
    return SessionEnd(**{**_ENVELOPE, "t": at(seconds), "session": session, "exit_code": 0, **fields})


def call_start(seconds: float, call: str = "c1", session: str = "s", **fields: Any) -> CallStart:
    """A call begins: a test run by default."""
    fields = {"tool": "pytest", "category": "tests", **fields}
    return CallStart(**{**_ENVELOPE, "t": at(seconds), "session": session, "call": call, **fields})


def call_end(seconds: float, call: str = "c1", session: str = "s", **fields: Any) -> CallEnd:
    """It ends with exit code 0."""
    return CallEnd(**{**_ENVELOPE, "t": at(seconds), "session": session, "call": call, "exit_code": 0, **fields})


def mem(
    seconds: float, used_mb: float, peak_mb: float | None = None, call: str | None = None, session: str = "s",
    subject: Literal["runtime", "call", "session"] | None = None, **fields: Any,
) -> MemSample:  # fmt: skip
    """Memory of a call, or of the runtime when no call is named."""
    fields = {
        "subject": subject or ("call" if call else "runtime"),
        "anon_bytes": round(used_mb * MB),
        "peak_bytes": None if peak_mb is None else round(peak_mb * MB),
        **fields,
    }
    return MemSample(**{**_ENVELOPE, "t": at(seconds), "session": session, "call": call, **fields})


def burst(seconds: float, grown_mb: float, total_mb: float, call: str | None = None, **fields: Any) -> MemBurst:
    """Memory grew within a window of 100 ms."""
    fields = {
        "session": "s", "window_us": 100_000, "grown_bytes": round(grown_mb * MB),
        "total_bytes": round(total_mb * MB), **fields,
    }  # fmt: skip
    return MemBurst(**{**_ENVELOPE, "t": at(seconds), "call": call, **fields})


def sched(seconds: float, oncpu_us: int, wait_us: int | None, call: str | None = None, **fields: Any) -> SchedSample:
    """Time on a CPU and waiting for one in a window of 100 ms."""
    fields = {
        "session": "s", "subject": "call" if call else "runtime", "oncpu_us": oncpu_us, "wait_us": wait_us,
        "window_us": 100_000, **fields,
    }  # fmt: skip
    return SchedSample(**{**_ENVELOPE, "t": at(seconds), "call": call, **fields})


def psi(seconds: float, memory_some_us: int, **fields: Any) -> PsiSample:
    """Memory stall of a session in a window of 100 ms."""
    fields = {"session": "s", "memory_some_us": memory_some_us, "window_us": 100_000, **fields}
    return PsiSample(**{**_ENVELOPE, "t": at(seconds), **fields})


def host(seconds: float, available_mb: float, total_mb: float = 16_000, **fields: Any) -> HostSample:
    """The host in a window of a second."""
    fields = {
        "mem_available_bytes": round(available_mb * MB), "mem_total_bytes": round(total_mb * MB),
        "window_us": 1_000_000, **fields,
    }  # fmt: skip
    return HostSample(**{**_ENVELOPE, "t": at(seconds), **fields})


def numbered(*stream: Any, first: int = 1) -> list[tuple[int, AnyRecord | records.Unknown]]:
    """The records with ordinals."""
    return list(enumerate(stream, first))


# --- hypothesis ------------------------------------------------------------------------------------------------------

HOSTILE: Final = (
    "</script><script>alert(1)</script>", "a\x00b\x1b[2J", "\u202egnp.exe", "../x", "'; DROP TABLE runs; --",
    "x" * 10_000, "", " ", "naïve 🦆",
)  # fmt: skip
"""Names that an agent could choose to do harm."""

_POOLS: Final[dict[str, tuple[Any, ...]]] = {
    "v": (1,),
    "src": ("kernel-0001", "kernel-0001", "kernel-0002", "engine-7", "backend-1", ""),
    "host": ("h", "h", "h2", ""),
    "session": ("s", "s", "s", "s2", "s3", None, HOSTILE[0]),
    "call": ("c1", "c1", "c2", "c3", None, HOSTILE[2]),
    "pid": (1, 2, 3, 4, 5, 6),
    "turn": ("t1", "t1", "t2", "t3", None, HOSTILE[3]),
    "req": ("t2", "r1", None),
    "engine": ("e", "e", "e2", "", HOSTILE[4]),
    "decision_seq": (0, 1, 2),
    "residency": ({}, {"device_active": 3}, {"device_cached": 2, "gone": 1}, {"device_pinned": 4, "host": 1}, {"?": 1}),
}
_ALWAYS: Final = frozenset({"v", "seq", "src", "host", "session", "call", "turn"})
_TIMES: Final = frozenset({"t", "since_us", "until_us", "began_us"})


def _value(info: mi.Type, rng: random.Random) -> Any:
    match info:
        case mi.Metadata():
            return _value(info.type, rng)
        case mi.UnionType():
            return _value(rng.choice(info.types), rng)
        case mi.NoneType():
            return None
        case mi.LiteralType():
            return rng.choice(list(info.values))
        case mi.BoolType():
            return rng.random() < 0.5
        case mi.IntType():
            low = 0 if info.ge is None else info.ge
            return rng.choice((low, rng.randrange(low, 300_000), rng.randrange(low, 10**9), 2**53))
        case mi.FloatType():
            return rng.choice((0.0, -1.5, rng.uniform(-1e9, 1e9)))
        case mi.StrType() | mi.AnyType():
            return rng.choice(HOSTILE)
        case mi.ListType():
            return [_value(info.item_type, rng) for _ in range(rng.randrange(4))]
        case mi.DictType():
            return {rng.choice(HOSTILE): _value(info.value_type, rng) for _ in range(rng.randrange(4))}
        case mi.StructType():
            return random_struct(info.cls, rng)
    raise TypeError(f"no value for {info}")


def random_struct(cls: type[Any], rng: random.Random) -> Any:
    """An instance of a struct; names come from small pools, so that records meet."""
    info = mi.type_info(cls)
    assert isinstance(info, mi.StructType)
    fields: dict[str, Any] = {}
    for field in info.fields:
        if not field.required and field.name not in _ALWAYS and rng.random() < 0.4:
            continue
        if field.name in _POOLS and (cls, field.name) != (records.RunMeta, "engine"):  # an object of another kind
            fields[field.name] = rng.choice(_POOLS[field.name])
        elif field.name in _TIMES:
            fields[field.name] = T0 + rng.randrange(200) * 100_000
        else:
            fields[field.name] = _value(field.type, rng)
    return cls(**fields)


def any_records(*, types: tuple[type[Record], ...] | None = None) -> st.SearchStrategy[Any]:
    """One record of any type, or of those given. A failing stream shrinks by whole records."""
    return st.builds(
        lambda cls, seed: random_struct(cls, random.Random(seed)),
        st.sampled_from(types or tuple(records.TYPES.values())),
        st.integers(0, 2**32),
    )


SPINE_TYPES: Final[tuple[type[Record], ...]] = (
    records.SessionStart, records.SessionEnd, records.CallStart, records.CallEnd, records.ProcExec, records.ProcExit,
    records.MemSample, records.MemBurst, records.MemEvent, records.SchedSample, records.PsiSample, records.HostSample,
    records.RunMeta, records.RunEnd, records.Loss,
)  # fmt: skip
"""The records that the fold makes most of."""
ENGINE_TYPES: Final[tuple[type[Record], ...]] = (
    records.TurnStart, records.TurnFirstToken, records.TurnEnd, records.TurnTool, records.EngineStart,
    records.EngineEnd, records.EngineMode, records.EngineSample, records.KvCalibration, records.KvDecision,
    records.KvTransition, records.KvTransfer, records.KvOutcome, records.Loss, records.SessionStart,
)  # fmt: skip
"""Those of the engine plane, and what they meet with."""


def streams(*, max_size: int = 40) -> st.SearchStrategy[list[Any]]:
    """Streams in no sensible order, mostly of :data:`SPINE_TYPES` or of :data:`ENGINE_TYPES`."""
    spine = any_records(types=SPINE_TYPES)
    engine = any_records(types=ENGINE_TYPES)
    return st.lists(spine | spine | any_records(), max_size=max_size) | st.lists(spine | engine, max_size=max_size)


def round_trip(record: Record) -> Any:
    """The record as it comes out of a line."""
    return records.decode(records.encode(record))


def plain(view: Any) -> Any:
    """A view as plain JSON values; fails when it cannot be written as JSON."""
    return msgspec.json.decode(msgspec.json.encode(view))
