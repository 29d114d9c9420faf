"""Lines and records: what is written is read again, and what is no record says why."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import records as make
from tidegate_collectors import records
from tidegate_collectors.records import (
    MAX_LINE_BYTES,
    TYPES,
    KvTransition,
    MemSample,
    Note,
    Record,
    RecordError,
    Unknown,
    decode,
    encode,
)


@settings(deadline=None)
@given(make.any_records())
def test_what_is_written_is_read_again(record: Record) -> None:
    line = encode(record)
    assert b"\n" not in line
    assert decode(line) == record
    assert json.loads(line)["type"] in TYPES


def test_fields_that_are_not_set_are_left_out() -> None:
    assert json.loads(encode(Note(v=1, t=5, text="x"))) == {"type": "note", "v": 1, "t": 5, "text": "x"}


def test_names_that_python_reserves_are_written_as_the_format_has_them() -> None:
    record = KvTransition(v=1, t=1, from_="host", to="gone", blocks=3, cause="ttl")
    assert json.loads(encode(record))["from"] == "host"
    assert decode(encode(record)) == record


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert decode(b'{"type":"note","v":1,"t":1,"text":"x","mood":"good"}') == Note(v=1, t=1, text="x")


def test_a_type_of_a_later_version_is_kept_by_name() -> None:
    line = b'{"type":"gpu.sample","v":1,"seq":7,"src":"gpu-1","t":99,"watts":300}'
    assert decode(line) == Unknown(v=1, seq=7, src="gpu-1", t=99, type="gpu.sample")


@pytest.mark.parametrize(
    ("line", "message", "column"),
    [
        (b"", "not JSON", None),
        (b"{", "not JSON", None),
        (b'{"type":"note","v":1,"t":1,,}', "not JSON", 28),
        (b"\xff\xfe", "not JSON", 1),
        (b"[]", "not a record", None),
        (b"7", "not a record", None),
        (b'"note"', "not a record", None),
        (b"{}", "not a record", None),
        (b'{"v":1,"t":1}', "a record without a type", None),
        (b'{"type":"note","t":1,"text":"x"}', "record version 0", None),
        (b'{"type":"note","v":2,"t":1,"text":"x"}', "record version 2; this Tidegate reads version 1", None),
        (b'{"type":"gpu.sample","v":2,"t":1}', "record version 2", None),
        (b'{"type":"note","v":1,"text":"x"}', "note: .*required field `t`", None),
        (b'{"type":"note","v":1,"t":"now","text":"x"}', r"Expected `int`, got `str` - at `\$\.t`", None),
        (b'{"type":"mem.sample","v":1,"t":1,"subject":"call","anon_bytes":-1}', r"mem\.sample: .*>= 0", None),
        (b'{"type":"mem.sample","v":1,"t":1,"subject":"planet","anon_bytes":1}', "Invalid enum value 'planet'", None),
        (b'{"type":7,"v":1,"t":1}', "not a record", None),
    ],
)
def test_what_is_no_record_says_why(line: bytes, message: str, column: int | None) -> None:
    with pytest.raises(RecordError, match=message) as error:
        decode(line)
    if column is not None:
        assert error.value.column == column


def test_a_line_that_is_too_long_is_not_even_parsed() -> None:
    line = encode(Note(v=1, t=1, text="x" * MAX_LINE_BYTES))
    with pytest.raises(RecordError, match=f"a line of {len(line)} bytes"):
        decode(line)
    assert isinstance(decode(encode(Note(v=1, t=1, text="x" * (MAX_LINE_BYTES - 100)))), Note)


def test_deep_nesting_is_refused() -> None:
    line = b'{"type":"action","v":1,"t":1,"inputs":' + b"[" * 100_000
    with pytest.raises((RecordError, RecursionError)) as error:
        decode(line)
    assert error.type is RecordError


def check(line: bytes) -> None:
    """Decoding gives a record, an Unknown or a RecordError, and nothing else."""
    try:
        record = decode(line)
    except RecordError as error:
        assert str(error)
        assert error.column is None or error.column >= 1
    else:
        assert isinstance(record, Record | Unknown)
        assert record.v == records.VERSION


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_answered(line: bytes) -> None:
    check(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({field for cls in TYPES.values() for field in cls.__struct_fields__})


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([*sorted(TYPES), "new.type", ""]) | JSON,
    st.sampled_from([1, 1, 1, 0, 2]) | JSON,
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6),
)
def test_any_json_object_is_answered(kind: Any, version: Any, fields: dict[str, Any]) -> None:
    try:
        line = json.dumps({"t": 1, **fields, "type": kind, "v": version}, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate: no UTF-8, no line
        return
    check(line)


@settings(deadline=None, max_examples=150)
@given(make.any_records(), st.data())
def test_a_damaged_line_is_answered(record: Record, data: st.DataObject) -> None:
    line = bytearray(encode(record))
    for _ in range(data.draw(st.integers(1, 4))):
        line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(line))
    check(bytes(line[: data.draw(st.integers(0, len(line)))]))


def test_every_record_has_the_envelope_and_units_in_its_names() -> None:
    for name, cls in TYPES.items():
        assert set(Record.__struct_fields__) <= set(cls.__struct_fields__), name
        assert cls.__doc__, name
        assert msgspec.inspect.type_info(cls).tag == name  # type: ignore[attr-defined]


def test_samples_are_what_the_next_one_says_again() -> None:
    assert MemSample in records.SAMPLE_TYPES
    assert not any(cls in records.SAMPLE_TYPES for name, cls in TYPES.items() if not name.endswith(".sample"))
