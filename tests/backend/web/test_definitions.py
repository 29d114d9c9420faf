"""Definitions are complete, and every field of the views has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate.fold import shapes
from tidegate.web.definitions import DEFINITIONS

KEYS = [definition.key for definition in DEFINITIONS]
FRONTEND = Path(__file__).resolve().parents[3] / "frontend"
USED = re.compile(r"""(?:data-def=|"data-def", |\bdef: ?)["'`]([\w.]+)["'`]""")


def test_keys_are_unique_and_can_be_anchors() -> None:
    assert len(set(KEYS)) == len(KEYS)
    assert all(re.fullmatch(r"[a-z_]+(\.[a-z_]+){1,2}", key) or key == key.strip() for key in KEYS)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=KEYS)
def test_a_definition_is_complete(definition: object) -> None:
    for name in ("key", "label", "meaning", "formula", "source"):
        text = getattr(definition, name)
        assert text
        assert text == text.strip()
    key, unit = getattr(definition, "key", ""), getattr(definition, "unit", "")
    if key.endswith("_bytes"):
        assert unit == "bytes"
    if key.endswith("_ratio"):
        assert unit.startswith("ratio")
    if key.endswith("percent"):
        assert unit.startswith("percent")
    if key.endswith("_us"):
        assert unit in ("microseconds", "microseconds UTC")
    if unit:
        assert getattr(definition, "is_not", "") or key.startswith("health."), "a number says what it is not"


@pytest.mark.parametrize(
    ("prefix", "shape"),
    [
        ("session", shapes.SessionView),
        ("call", shapes.CallView),
        ("process", shapes.ProcessView),
        ("host", shapes.HostView),
        ("host.own", shapes.OwnView),
        ("run", shapes.RunView),
        ("lost", shapes.LostAt),
    ],
)
def test_every_field_of_a_view_has_a_definition(prefix: str, shape: type) -> None:
    fields: tuple[str, ...] = shape.__struct_fields__  # type: ignore[attr-defined]
    missing = {f"{prefix}.{field}" for field in fields} - set(KEYS) - {"host.own"}
    assert not missing


def test_every_key_that_a_page_uses_has_a_definition() -> None:
    used: dict[str, str] = {}
    for path in sorted([*FRONTEND.rglob("*.html"), *FRONTEND.rglob("*.js")]):
        for key in USED.findall(path.read_text(encoding="utf-8")):
            used.setdefault(key, path.name)
    assert used
    assert {key: path for key, path in used.items() if key not in KEYS} == {}
