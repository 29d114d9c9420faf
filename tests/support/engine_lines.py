"""Lines of the engine plane: builders with the fields that tests do not care about, and hostile ones."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.support.records import ENGINE_TYPES, random_struct
from tests.support.scenes import T0
from tidegate_collectors.link import Stamper
from tidegate_collectors.records import KvDecision, KvOutcome, KvTransition

HUGE: Final = 10**30


def decision(t: int, session: str | None = "s", **fields: Any) -> KvDecision:
    """A decision at ``T0 + t``: four-state keeps, and does it."""
    fields = {"engine": "e", "boundary": "call", "action": "KEEP", "enforced": True, "rule": "four-state", **fields}
    return KvDecision(t=T0 + t, session=session, **fields)


def outcome(t: int, decision_seq: int, session: str | None = "s", **fields: Any) -> KvOutcome:
    """The session came back, and was served from the device."""
    fields = {"engine": "e", "gap_us": 5, "evicted": False, "served_from": "device", **fields}
    return KvOutcome(t=T0 + t, session=session, decision_seq=decision_seq, **fields)


def transition(t: int, session: str = "s", engine: str = "e", **residency: int) -> KvTransition:
    """Blocks were computed; after it the session has those of ``residency``."""
    return KvTransition(
        t=T0 + t, session=session, engine=engine, from_="gone", to="device_active", blocks=1, cause="computed",
        residency=residency,
    )  # fmt: skip


def random_engine_lines(seed: int, count: int = 60) -> list[bytes]:
    """Records of the engine plane that meet: few names, decisions that outcomes name, times in no order."""
    rng = random.Random(seed)
    stampers = [Stamper(f"engine-{n}", "h") for n in range(2)]
    lines = []
    for _ in range(count):
        record = random_struct(rng.choice(ENGINE_TYPES), rng)
        record.v, record.seq, record.src, record.host = 0, -1, "", ""
        if isinstance(record, KvOutcome):
            record.decision_seq = rng.randrange(count)
        lines.append(rng.choice(stampers).stamp(record))
    return lines


def hostile_engine_lines() -> list[bytes]:
    """Lines that a collector could send to do harm, all of which can be read as records."""
    envelope = b'"v":1,"src":"engine-x","t":%d' % T0
    return [
        b'{"type":"engine.sample",%s,"seq":0,"engine":"e","running":%d,"waiting_by_reason":{"a":%d,"b\\u0000":1}}'
        % (envelope, HUGE, HUGE),
        b'{"type":"engine.sample",%s,"seq":1,"engine":"%s","missing":["%s"]}' % (envelope, b"e" * 5000, b"m" * 5000),
        b'{"type":"engine.sample",%s,"seq":2,"waiting_by_reason":{%s}}'
        % (envelope, b",".join(b'"r%d":%d' % (n, n) for n in range(500))),
        b'{"type":"engine.sample",%s,"seq":3,"running":1,"running":2,"engine":"first","engine":"NaN"}' % envelope,
        b'{"type":"kv.decision",%s,"seq":4,"boundary":"call","action":"KEEP","enforced":true,"blocks":%d,"tool":"NaN",'
        b'"session":"\\ud83e\\udd86","margin_s":-1.7e308,"rule":"\xe2\x80\xae"}' % (envelope, HUGE),
        b'{"type":"kv.decision",%s,"seq":%d,"boundary":"call","action":"DROP","enforced":false,"tool":"%s"}'
        % (envelope, HUGE, b"t" * 100_000),
        b'{"type":"kv.outcome",%s,"seq":6,"decision_seq":4,"gap_us":%d,"evicted":true,"served_from":"mixed","regret_s":1e308}'
        % (envelope, HUGE),
        b'{"type":"kv.outcome",%s,"seq":7,"decision_seq":%d,"gap_us":0,"evicted":true,"served_from":"host"}'
        % (envelope, -HUGE),
        b'{"type":"kv.transition",%s,"seq":8,"session":"s","from":"host","to":"gone","blocks":%d,"cause":"lru",'
        b'"residency":{"host":%d,"x":-5}}' % (envelope, -HUGE, HUGE),
    ]
