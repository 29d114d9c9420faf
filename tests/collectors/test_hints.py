"""Hints and sizes: the grammar, and refusals that say what is meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_collectors import hints


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512k", 512 << 10),
        ("512m", 512 << 20),
        ("512M", 512 << 20),
        ("512MB", 512 << 20),
        ("2GiB", 2 << 30),
        ("1.5g", 3 << 29),
        (" 4g ", 4 << 30),
        ("1t", 1 << 40),
    ],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert hints.parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "m", "-1m", "0", "0g", "1x", "1.m", "1..5g", "1e9", "٣m", "0x10", "9" * 30, "2048t", "nan", "inf", "1 2m"],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no size|out of range"):
        hints.parse_size(text)


@pytest.mark.parametrize(
    ("text", "level", "size"),
    [
        ("memory:low", "low", None),
        ("memory:MEDIUM", "medium", None),
        ("Memory:High", "high", None),
        ("memory:300m", None, 300 << 20),
        ("MEMORY:1.5G", None, 3 << 29),
        (" memory : 2g ", None, 2 << 30),
    ],
)
def test_hints_are_understood(text: str, level: str | None, size: int | None) -> None:
    hint = hints.parse(text)
    assert (hint.level, hint.bytes, hint.error) == (level, size, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names a resource"),
        ("high", "names a resource"),
        ("cpu:high", "only resource"),
        ("memory:", "is no size"),
        ("memory:lots", "is no size"),
        ("memory:-5m", "is no size"),
        ("memory:0m", "out of range"),
    ],
)
def test_a_bad_hint_is_kept_with_the_reason(text: str, reason: str) -> None:
    hint = hints.parse(text)
    assert hint.text == text
    assert hint.bytes is None
    assert hint.level is None
    assert reason in hint.error


@given(st.text(max_size=400))
def test_no_text_breaks_the_parser_and_none_is_kept_whole(text: str) -> None:
    hint = hints.parse(text)
    assert len(hint.text) <= hints.MAX_HINT_CHARS
    # Exactly one of level, bytes and error.
    assert sum((hint.level is not None, hint.bytes is not None, hint.error != "")) == 1
