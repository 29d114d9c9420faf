"""KV events off the wire, in both forms."""

from __future__ import annotations

import gc
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stock_engine import CLEARED, Form, batch, removed, stored
from tidegate_collectors.engine.stock.events import (
    Cleared,
    EventError,
    Removed,
    Stored,
    decode,
    decode_json,
    sequence_of,
)

FORMS: tuple[Form, ...] = ("map", "array")


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_say_the_same(form: Form) -> None:
    found = decode(batch([stored([1, 2**63 + 5]), removed([1], "CPU"), CLEARED], 12.5, form))

    assert found.events == (Stored((1, 2**63 + 5), 32, "GPU", 0, None), Removed((1,), "CPU", 0), Cleared())
    assert (found.ts_s, found.rank, found.unknown) == (12.5, 0, 0)


def test_the_session_is_on_the_newer_form() -> None:
    (event,) = decode(batch([stored([1], "agent-1")], 1.0)).events

    assert isinstance(event, Stored) and event.session == "agent-1"


def test_hashes_may_be_bytes() -> None:
    (event,) = decode(batch([stored([b"\x01" * 32])], 1.0)).events

    assert isinstance(event, Stored) and event.hashes == (b"\x01" * 32,)


def test_fields_of_a_later_version_are_passed_over() -> None:
    later = stored([1], "s", lookahead_token_ids=[1, 2], something={"new": [1]})
    array = ["BlockRemoved", [7], "GPU", 0, "LOCAL", None, {"more": 1}]
    payload = msgspec.msgpack.encode([1.0, [later, array], None, "and more"])

    assert decode(payload).events == (Stored((1,), 32, "GPU", 0, "s"), Removed((7,), "GPU", 0))


def test_arrays_of_the_oldest_versions_are_shorter() -> None:
    payload = msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [5] * 16, 16, None], ["BlockRemoved", [1]]]])

    assert decode(payload).events == (Stored((1,), 16, "GPU", 0, None), Removed((1,), "GPU", 0))


@pytest.mark.parametrize("form", FORMS)
def test_token_ids_never_become_objects(form: Form) -> None:
    secret = 770_077
    payload = batch([stored([1], "s")], 1.0, form)
    assert payload.count(secret.to_bytes(4, "big")) == 32

    found = decode(payload)
    for event in found.events:
        reached = gc.get_referents(event, *gc.get_referents(event))
        assert secret not in [item for item in reached if isinstance(item, int)]
        assert not [item for item in reached if isinstance(item, bytes) and secret.to_bytes(4, "big") in item]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlockMoved", "block_hashes": [1]},
        {"type": "BlockStored"},
        stored(["x" * 500]),  # type: ignore[list-item]
        stored([1.5]),  # type: ignore[list-item]
        stored([1], block_size=0),
        stored([1], group_idx=-1),
        stored([1], session_id=7),
        ["BlockMoved", 1],
        [],
        "BlockStored",
        7,
        None,
    ],
)
def test_an_event_that_is_none_is_counted_and_the_others_are_taken(event: object) -> None:
    found = decode(msgspec.msgpack.encode([1.0, [event, removed([3])]]))

    assert (found.events, found.unknown) == ((Removed((3,), "GPU", 0),), 1)


@pytest.mark.parametrize(
    "value", [None, 7, [], [1.0], ["x", []], [math.nan, []], [math.inf, []], {"ts": 1.0}, [1.0, 7], [1.0, {}]]
)
def test_a_batch_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(EventError):
        decode(msgspec.msgpack.encode(value))


@given(st.binary(max_size=300))
def test_rubbish_never_surprises(payload: bytes) -> None:
    try:
        decode(payload)
    except EventError as error:
        assert str(error).isprintable()


@given(st.integers(0, 200), st.integers(0, 255))
def test_damage_never_surprises(at: int, value: int) -> None:
    payload = bytearray(batch([stored([1, 2], "s"), removed([1])], 1.0))
    payload[at % len(payload)] = value
    try:
        decode(bytes(payload))
    except EventError as error:
        assert str(error).isprintable()


def test_a_session_name_is_cut() -> None:
    (event,) = decode(batch([stored([1], "s" * 5000)], 1.0)).events

    assert isinstance(event, Stored) and event.session == "s" * 128


def test_numbers_of_messages() -> None:
    assert sequence_of([b"topic", (9).to_bytes(8, "big"), b"x"]) == (9, b"x")
    assert sequence_of([b"", b"topic", b"\xff" * 8, b""]) == (-1, b"")
    for frames in ([], [b"x"], [b"t", b"short", b"x"], [b"t"] * 9):
        with pytest.raises(EventError):
            sequence_of(frames)


def test_a_line_of_json() -> None:
    line = b'{"seq":1,"type":"BlockStored","block_hashes":[3,"ab"],"token_ids":64,"block_size":32,"medium":"CPU"}'

    assert decode_json(line) == Stored((3, "ab"), 32, "CPU", 0, None)
    assert decode_json(b'{"type":"Other"}') is None
    with pytest.raises(msgspec.MsgspecError):
        decode_json(b"{")
