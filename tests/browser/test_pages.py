"""Every page: no complaint, each number defined, hostile names as text, readable in both themes, pictures kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.browsing import LOW_CONTRAST, OVERFLOWING, UNDEFINED_NUMBERS, Watched
from tests.support.server import Server
from tests.support.stories import HOSTILE_ID, HOSTILE_TITLE, Collector

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("told")]

Opened = Callable[..., Watched]

PAGES = {
    "live": "/",
    "sessions": "/sessions",
    "runs": "/runs",
    "session": "/sessions/pre-commit-2524#call=c3",
    "hostile": f"/sessions/{quote(HOSTILE_ID, safe='')}",
    "definitions": "/definitions",
    "status": "/status",
    "error": "/sessions/no-such-session",
}


@pytest.fixture(scope="module")
def keys(server: Server) -> list[str]:
    """Keys of all definitions."""
    with server.client() as client:
        return [entry["key"] for entry in client.get("/api/definitions").json()["definitions"]]


def _open(watched: Watched, name: str) -> Any:
    page = watched.open(PAGES[name])
    if name == "session":
        page.wait_for_selector("#call ul.tree")
    if name in ("session", "hostile"):
        page.wait_for_selector("#memory .main-svg")
    if name == "live":
        page.wait_for_selector("#sessions tbody tr")
        page.wait_for_selector("#host .main-svg")
    if name == "runs":
        page.wait_for_selector("#runs tbody tr")
    if name == "status":
        page.wait_for_selector("#ingest dd")
    if name == "error":
        # The browser reports the page's own 404; that is what was asked for.
        watched.complaints[:] = [complaint for complaint in watched.complaints if "404" not in complaint]
    return page


@pytest.mark.parametrize("name", list(PAGES))
def test_page_in_both_themes(opened: Opened, keys: list[str], screenshots: Path, name: str) -> None:
    for scheme in ("dark", "light"):
        page = _open(opened(scheme), name)
        page.wait_for_timeout(400)

        assert page.evaluate(UNDEFINED_NUMBERS, keys) == []
        assert page.evaluate(LOW_CONTRAST) == []
        assert page.locator("main").count() == 1
        assert page.locator("h1").count() == 1
        page.screenshot(path=screenshots / f"{name}-{scheme}.png")


def test_numbers_in_table_twins_are_defined(opened: Opened, keys: list[str]) -> None:
    page = _open(opened(), "session")

    for name in ("lanes", "memory", "wait", "pressure"):
        page.click(f'[data-twin="{name}"]')
    page.wait_for_function("() => document.querySelectorAll('#panels table.figures').length === 4")

    assert page.evaluate(UNDEFINED_NUMBERS, keys) == []


def test_the_check_for_definitions_finds_a_bare_number(opened: Opened, keys: list[str]) -> None:
    page = _open(opened(), "sessions")

    page.evaluate("document.querySelector('h1').append(' 42')")

    assert page.evaluate(UNDEFINED_NUMBERS, keys) == ["no definition: 42"]


def test_wall_screen(opened: Opened, screenshots: Path) -> None:
    watched = opened()
    watched.page.set_viewport_size({"width": 2560, "height": 1440})
    for name in ("live", "session"):
        page = _open(watched, name)
        page.wait_for_timeout(400)

        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") > 16
        page.screenshot(path=screenshots / f"{name}-wall.png")


def test_narrow_screen(opened: Opened, screenshots: Path) -> None:
    """800 px: what counts is there without a sideways scroll, and the top bar is one line."""
    watched = opened()
    watched.page.set_viewport_size({"width": 800, "height": 900})
    for name, last in (
        ("live", "session.ooms"),
        ("sessions", "session.exit_code"),
        ("session", None),
        ("status", None),
    ):
        page = _open(watched, name)
        page.wait_for_timeout(300)

        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if last is not None:
            assert page.evaluate(OVERFLOWING) == []
            assert page.locator(f'#sessions tbody td[data-def="{last}"]').first.is_visible()
        theme, brand = page.locator("#theme").bounding_box(), page.locator(".brand").bounding_box()
        assert theme is not None and brand is not None
        assert theme["y"] < brand["y"] + brand["height"], "the top bar has wrapped"
        page.screenshot(path=screenshots / f"{name}-800.png")


def test_labels_over_bars_have_a_border_of_the_background(opened: Opened) -> None:
    page = _open(opened(), "live")
    page.wait_for_selector("#host .over text", state="attached")

    style = page.evaluate(
        """() => { const { paintOrder, stroke } = getComputedStyle(document.querySelector("#host .over text"));
                   const card = getComputedStyle(document.querySelector(".card")).backgroundColor;
                   return [paintOrder.split(" ")[0], stroke === card]; }"""
    )

    assert style == ["stroke", True]


def test_hostile_names_are_text(opened: Opened, told: Collector) -> None:
    """No markup of a name is parsed, no dialog opens; hidden characters are made visible."""
    watched = opened()
    for name in ("live", "sessions", "hostile"):
        page = _open(watched, name)
        if name == "hostile":
            page.focus("#lanes")
            page.keyboard.press("Home")
            page.keyboard.press("Enter")
            page.wait_for_selector("#call .facts")
            page.click('[data-twin="lanes"]')
            page.wait_for_selector("#panels table.figures")
        page.wait_for_timeout(300)

        body = page.inner_text("body")
        assert "<script>alert(2)</script>" in body
        assert "\\u202e" in body and "\u202e" not in body
        assert "\\x1b" in body
        assert page.locator("main img, main script, svg[onload], main i, main u").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert HOSTILE_TITLE not in watched.page.title()
    assert watched.complaints == []


def test_links_to_a_hostile_id_stay_inside(opened: Opened) -> None:
    page = _open(opened(), "sessions")

    page.click("#sessions tbody tr a:has-text('alert(2)')")
    page.wait_for_selector("#session")

    assert page.url.endswith(f"/sessions/{quote(HOSTILE_ID, safe='')}") or json.dumps(page.url).count("/sessions/") == 1


def test_sessions_can_be_found_and_sorted(opened: Opened) -> None:
    page = _open(opened(), "sessions")
    page.wait_for_selector("#sessions tbody tr")

    page.fill("#filter", "pre-commit")
    assert page.locator("#sessions tbody tr").count() == 1
    assert "1 of 2" in page.inner_text("#shown")
    page.fill("#filter", "")
    page.click("#sessions th button:has-text('peak')")
    assert page.get_attribute("#sessions th:has-text('peak')", "aria-sort") == "descending"
    assert "pre-commit" in page.inner_text("#sessions tbody tr:first-child")
    page.select_option("#state", "running")
    assert page.locator("#sessions tbody tr").count() == 1


def test_definitions_are_all_there_and_can_be_found(opened: Opened, keys: list[str]) -> None:
    page = opened().open(f"/definitions#{keys[-1]}")

    assert page.locator("#definitions tbody tr").count() == len(keys)
    page.fill("#filter", keys[0])
    assert page.locator("#definitions tbody tr:visible").count() < len(keys)


def test_definition_is_shown_at_a_number(opened: Opened) -> None:
    page = _open(opened(), "session")

    page.hover("#strip a.label >> nth=3")
    page.wait_for_selector("#tip:visible")

    assert page.get_attribute("#tip a", "href").startswith("/definitions#session.")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")


def test_theme_is_kept(opened: Opened) -> None:
    page = _open(opened("dark"), "live")
    assert page.get_attribute("html", "data-scheme") == "dark"

    page.click("#theme")
    assert page.get_attribute("html", "data-scheme") == "light"
    page.reload()

    assert page.get_attribute("html", "data-scheme") == "light"
    assert page.inner_text("#theme") == "Theme: light"
    page.evaluate("localStorage.clear()")


def test_health_tells_what_is_missing_and_what_was_lost(opened: Opened) -> None:
    page = _open(opened(), "status")

    page.wait_for_selector("#capabilities tbody tr")
    assert "use one with sched_ext <6.12>" in page.inner_text("#capabilities")
    assert "12" in page.inner_text("#loss-box")
    assert "connected" in page.inner_text("#sources")
    assert page.is_hidden("#guide")
    assert page.inner_text("#badge-lost") == "12 lost"
