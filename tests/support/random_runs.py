"""Random runs whose charts are hard to draw: bursts between samples, calls told late, silences, late records."""

from __future__ import annotations

import random
from typing import Final, Literal

from tests.support.scenes import T0
from tidegate_collectors.records import (
    CallEnd,
    CallStart,
    HostSample,
    MemSample,
    PsiSample,
    Record,
    SchedSample,
    SessionEnd,
    SessionStart,
)

SECOND: Final = 1_000_000
CATEGORIES: Final = ("git", "tests", "read", "other")


def random_run(seed: int, *, sessions: int = 2, minutes: int = 12, late: bool = True) -> list[Record]:
    """Records in the order they come. Peaks are either those of a kernel, which never fall, or not known at all."""
    rng = random.Random(seed)
    out: list[tuple[float, Record]] = []
    for number in range(sessions):
        out += _session(rng, f"s{number}", minutes, late=late)
    total = 16 << 30
    for tick in range(0, minutes * 60, 3):
        t = T0 + tick * SECOND + rng.randrange(SECOND)
        sample = HostSample(
            t=t, mem_total_bytes=total, mem_available_bytes=rng.randrange(total), cpu_busy_us=rng.randrange(3 * SECOND),
            window_us=3 * SECOND,
        )  # fmt: skip
        out.append((t, sample))
    out.sort(key=lambda pair: pair[0])
    return [record for _, record in out]


def _session(rng: random.Random, session: str, minutes: int, *, late: bool) -> list[tuple[float, Record]]:
    out: list[tuple[float, Record]] = []

    def say(record: Record, delay_us: int = 0) -> None:
        out.append((record.t + delay_us + rng.random(), record))

    length = minutes * 60 * SECOND
    begin = T0 + rng.randrange(length // 4)
    end = begin + rng.randrange(length // 2, length)
    kernel = rng.random() < 0.7
    say(SessionStart(t=begin, session=session))
    _subject(rng, say, session, None, begin, end, kernel=kernel, late=late)
    t = begin
    for index in range(rng.randrange(1, 14)):
        t += rng.choice((0, rng.randrange(SECOND), rng.randrange(60 * SECOND)))
        call, started = f"c{index}", t
        lasts = rng.choice((rng.randrange(1, SECOND), rng.randrange(1, 90 * SECOND), SECOND))
        ended = min(started + lasts, end)
        category = rng.choice(CATEGORIES)
        say(CallStart(t=started, session=session, call=call, category=category))  # type: ignore[arg-type]
        if late and rng.random() < 0.2:  # a hook names it later
            other = rng.choice(CATEGORIES)
            say(CallStart(t=started, session=session, call=call, category=other), rng.randrange(240 * SECOND))  # type: ignore[arg-type]
        peak = 0
        if rng.random() < 0.8:
            left = rng.choice((0, 0, rng.randrange(20 * SECOND)))
            peak = _subject(rng, say, session, call, started, ended + left, kernel=kernel, late=late)
        if rng.random() < 0.9:
            unseen = rng.choice((None, peak, peak + rng.randrange(1 << 30)))
            kept = rng.choice((None, 0, rng.randrange(1 << 20)))
            lost = rng.random() < 0.1
            say(
                CallEnd(t=ended, session=session, call=call, peak_bytes=unseen, kept_bytes=kept, lost=lost),
                rng.choice((0, 0, rng.randrange(200 * SECOND))) if late else 0,
            )
        t = rng.choice((started, ended))
    if rng.random() < 0.7:
        say(SessionEnd(t=end, session=session))
    return out


def _subject(
    rng: random.Random, say: object, session: str, call: str | None, begin: int, end: int, *, kernel: bool, late: bool
) -> int:
    """Samples of a subject; returns the most that was seen of it."""
    assert callable(say)
    subject: Literal["call", "runtime"] = "call" if call else "runtime"
    t, peak, used = begin, 0, 0
    before = begin
    while t < end:
        used = rng.choice((used, rng.randrange(1 << 28), rng.randrange(1 << 31)))
        peak = max(peak, used, rng.choice((0, 0, 0, used + rng.randrange(1 << 30))))
        delay = rng.choice((0,) * 30 + (rng.randrange(300 * SECOND),)) if late else 0
        known = peak if kernel else None
        say(MemSample(t=t, session=session, call=call, subject=subject, anon_bytes=used, peak_bytes=known), delay)
        if rng.random() < 0.3 and t > before:
            wait = rng.randrange(t - before)
            say(
                SchedSample(
                    t=t, session=session, call=call, subject=subject, oncpu_us=1, wait_us=wait, window_us=t - before
                ),
                delay,
            )
        if call is None and rng.random() < 0.2:
            say(PsiSample(t=t, session=session, memory_some_us=rng.randrange(SECOND), window_us=SECOND), delay)
        before = t
        step = rng.choice((rng.randrange(1, SECOND), rng.randrange(1, 3 * SECOND), 100_000))
        if rng.random() < 0.03:
            step = rng.randrange(150 * SECOND)
        t += step
        if rng.random() < 0.2:  # exactly where a bucket begins
            t = (t // SECOND + 1) * SECOND
    return peak if kernel else used
