"""Templates use the documented fields of their context and nothing else."""

from __future__ import annotations

import dataclasses

import jinja2.meta
import pytest

from tidegate.web.contexts import CONTEXTS, NavItem, navigation
from tidegate.web.static import frontend_dir
from tidegate.web.templates import Templates


@pytest.fixture(scope="module")
def templates() -> Templates:
    return Templates(frontend_dir() / "templates")


def used_names(templates: Templates, name: str) -> set[str]:
    """Variables of a template and of what it extends, includes and imports."""
    environment = templates.environment
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, name)
    tree = environment.parse(source)
    names = set(jinja2.meta.find_undeclared_variables(tree))
    for other in jinja2.meta.find_referenced_templates(tree):
        assert other is not None, f"{name} refers to a template by a computed name"
        names |= used_names(templates, other)
    return names


@pytest.mark.parametrize("name", sorted(CONTEXTS))
def test_template_uses_only_its_context(templates: Templates, name: str) -> None:
    fields = {field.name for field in dataclasses.fields(CONTEXTS[name])}
    assert used_names(templates, name) <= fields


def test_every_template_has_a_context() -> None:
    pages = {path.name for path in (frontend_dir() / "templates").glob("*.html")}
    assert pages - {"base.html"} == set(CONTEXTS)


@pytest.mark.parametrize("cls", [*CONTEXTS.values(), NavItem])
def test_every_field_is_explained(cls: type) -> None:
    for field in dataclasses.fields(cls):
        assert field.metadata.get("help"), f"{cls.__name__}.{field.name}"


def test_autoescape_and_strictness(templates: Templates) -> None:
    environment = templates.environment
    assert environment.from_string("{{ x }}").render(x="<&\"'\x1b") == "&lt;&amp;&#34;&#39;\\x1b"
    with pytest.raises(jinja2.UndefinedError):
        environment.from_string("{{ missing }}").render()


def test_template_marks_nothing_as_safe() -> None:
    for path in (frontend_dir() / "templates").glob("*.html"):
        text = path.read_text()
        for way_out in ("|safe", "| safe", "autoescape false", "<script>"):
            assert way_out not in text, path


def test_navigation_marks_where_we_are() -> None:
    assert [item.key for item in navigation("session") if item.current] == ["sessions"]
    assert [item.label for item in navigation("live")] == [
        "Live", "Sessions", "KV cache", "Runs", "Definitions", "Health",
    ]  # fmt: skip
