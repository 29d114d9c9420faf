"""The intake's way for many good lines at once gives what looking at each line gives."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Literal
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scenes import T0, stamped
from tidegate.ingest import intake as module
from tidegate.ingest.account import LineError, SourceState
from tidegate.ingest.intake import Intake
from tidegate_collectors.link import Stamper
from tidegate_collectors.records import Loss, MemSample, Note, SchedSample

ODD = (
    b"",
    b" ",
    b"{}",
    b'{"a":',
    b'{"type":"note","v":1,"seq":3,"src":"k-1","t":9,"text":"a"}{"type":"note","v":1,"seq":4,"src":"k-1","t":9,"text":"b"}',
    b'{"type":"action","v":1,"seq":2,"src":"k-1","t":5,"plane":"kernel","verb":"kill","target":"x","enforced":true,"inputs":',
    b'{"x":1}}',
    b'{"type":"note","v":2,"seq":5,"src":"k-1","t":9,"text":"later"}',
    b'{"type":"of.later","v":1,"seq":6,"src":"k-1","t":9}',
    b'{"type":"note","v":1,"seq":7,"src":"k-1","t":-1,"text":"x"}',
    b'{"type":"note","v":1,"seq":8,"src":"k-1","t":9,"text":"x","more":1}',
    b'{"type":"note","v":1,"src":"k-1","t":9,"text":"no seq"}',
    b'{"type":"note","v":1,"seq":9,"src":"","t":9,"text":"no src"}',
    b"\xff\xfe{",
    b"[" * 5000,
    b'{"type":"note","v":1,"seq":9,"src":"k-1","t":9,"text":"' + b"x" * (1 << 20) + b'"}',
)


def good(rng: random.Random, count: int) -> list[bytes]:
    """Lines of two senders, with holes, repetitions and clocks that go back."""
    lines: list[bytes] = []
    for src in ("k-1", "k-2"):
        records = [
            rng.choice((
                MemSample(t=T0 + n, session="s", subject="runtime", anon_bytes=n),
                SchedSample(t=T0 + n - rng.choice((0, 0, 3_000_000)), session="s", oncpu_us=n),
                Note(t=T0 + n, text="a"),
                Loss(t=T0 + n, where="link", count=1, of=src),
            ))
            for n in range(count)
        ]  # fmt: skip
        lines += stamped(records, src=src)
    if rng.random() < 0.5:
        rng.shuffle(lines)
    return [line for line in lines if rng.random() < 0.95]


def fed(lines: list[bytes], sizes: list[int], where: Literal["link", "import"], expect: bool) -> Any:
    errors: list[LineError] = []
    stamper = Stamper("own-1", "box")
    with patch.object(stamper, "stamp", lambda record: repr(record).encode()):
        intake = Intake(stamper, where=where, on_error=errors.append)
        state = SourceState("k-1", last_seq=-1) if expect else None
        if state is not None:
            intake.sources["k-1"] = state
        batch = intake.new_batch()
        at = 0
        for size in [*sizes, len(lines)]:
            intake.feed(batch, lines[at : at + size], source="f", first_line=at + 1, expect=state)
            at += size
    sources = {src: dataclasses.asdict(one) for src, one in intake.sources.items()}
    return batch.records, batch.lines, dataclasses.asdict(intake.counts), sources, errors


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from(ODD), max_size=3),
    st.lists(st.integers(1, 30), max_size=5),
    st.sampled_from(["link", "import"]),
    st.booleans(),
)
def test_many_at_once_is_each_by_itself(
    seed: int, odd: list[bytes], sizes: list[int], where: Literal["link", "import"], expect: bool
) -> None:
    rng = random.Random(seed)
    lines = good(rng, rng.randrange(20))
    for line in odd:
        lines.insert(rng.randrange(len(lines) + 1), line)
    if rng.random() < 0.3:
        lines += odd  # next to each other: half a value, and the other half
    found = fed(lines, sizes, where, expect)
    with patch.object(module, "_decoded", lambda _: None):
        assert found == fed(lines, sizes, where, expect)


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"a":1}{"b":2}', b""],
        [b"{}", b" {}"],
        [ODD[5], ODD[6], ODD[4]],
        [ODD[4], b"{}"],
        [b"{}" * 3, b"}", b"{"],
    ],
)
def test_lines_that_could_shift_those_behind_them_are_looked_at_one_by_one(lines: list[bytes]) -> None:
    assert module._decoded(lines) is None
