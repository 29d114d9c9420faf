"""Ids become directories: only what is safe there is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_collectors.names import check_id, is_safe_id, safe_id_part


@pytest.mark.parametrize("text", ["a", "c1", "claude-101500-ab12", "...", "A.b_c-9", "x" * 64])
def test_safe_ids_are_taken(text: str) -> None:
    assert check_id("session", text) == text


@pytest.mark.parametrize(
    "text", ["", ".", "..", "../x", "a/b", "a b", "x" * 65, "é", "a\n", "\0", "</script>", "a\u202eb", "+1"]
)
def test_all_others_are_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"session id .* is refused: use 1 to 64 of"):
        check_id("session", text)


def test_a_refusal_shows_hostile_text_escaped_and_cut() -> None:
    with pytest.raises(ValueError) as caught:
        check_id("call", "\x1b[2J" + "x" * 10_000)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 250


@given(st.text())
def test_any_text_can_be_made_part_of_an_id(text: str) -> None:
    assert is_safe_id("s-" + safe_id_part(text))
