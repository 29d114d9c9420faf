"""The engine plane on the pages: a session's turns, KV blocks and decisions, the page KV cache, and Live's columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Page

from tests.support.browsing import LOW_CONTRAST, OVERFLOWING, UNDEFINED_NUMBERS, Watched
from tests.support.engine_story import ENGINE, SESSION, STOCK, engine_story
from tests.support.server import Server, running_server
from tidegate.web.definitions import DEFINITIONS

pytestmark = pytest.mark.browser

Opened = Callable[..., Watched]
KEYS = [definition.key for definition in DEFINITIONS]
SESSION_PATH = f"/sessions/{quote(SESSION, safe='')}"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, place: Path) -> Iterator[Server]:
    """A backend that shows the story of both planes."""
    with running_server(place / "story", replay=engine_story(tmp_path_factory.mktemp("story") / "s.jsonl")) as server:
        yield server


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory whose name is short enough for unix sockets."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tg-") as directory:
        (Path(directory) / "story").mkdir()
        yield Path(directory)


def _session(opened: Opened, story: Server, hash_: str = "", scheme: Literal["dark", "light"] = "dark") -> Page:
    page = opened(scheme, to=story).open(SESSION_PATH + hash_)
    page.wait_for_selector("#kv .main-svg")
    page.wait_for_selector("#decisions [data-decision]")
    return page


def _kv(opened: Opened, story: Server, query: str = "", scheme: Literal["dark", "light"] = "dark") -> Page:
    page = opened(scheme, to=story).open(f"/kv{query}")
    page.wait_for_selector("#pool .main-svg")
    page.wait_for_selector("#decisions tbody tr")
    return page


def test_a_session_shows_turns_blocks_and_decisions_on_its_axis(opened: Opened, story: Server) -> None:
    page = _session(opened, story)

    traces = page.evaluate("document.querySelector('#kv > div').data.map((t) => [t.name, Math.max(...t.y)])")
    assert {name for name, _ in traces} == {"device_active", "device_pinned", "device_cached", "host"}
    assert max(top for _, top in traces) == 60
    assert page.locator("#decisions [data-decision]").count() == 6
    assert page.locator("#turns .turn").count() == 6
    assert page.locator("#strip").inner_text().count("device / host / again") == 1
    assert page.locator("#engine-note").is_hidden()
    # All panels have one axis: a decision stands where its time is.
    x = page.evaluate(
        "(() => { const g = document.querySelector('#decisions [data-decision]').parentElement;"
        " return Number(g.getAttribute('transform').match(/[\\d.]+/)[0]); })()"
    )
    first = page.evaluate("Number(document.querySelector('#turns .decode').getAttribute('x'))")
    assert 0 < x - first < 60


def test_a_decision_is_told_in_full(opened: Opened, story: Server) -> None:
    page = _session(opened, story)
    page.locator("#decisions [data-decision]").nth(1).click()

    panel = page.locator("#engine-detail")
    panel.locator("ul.costs").wait_for()
    text = panel.inner_text()
    for words in ("OFFLOAD", "Expected delay", "KEEP", "PIN", "DROP", "margin", "taken again", "the same", "came back"):
        assert words in text, words
    assert panel.locator("li.chosen").inner_text().startswith("OFFLOAD")
    assert "decision=" in page.url
    # A link to it opens it again, and other keys of the URL stay.
    again = _session(opened, story, "#decision=" + page.url.rpartition("decision=")[2].partition("&")[0] + "&kept=1")
    again.locator("#engine-detail ul.costs").wait_for()
    again.keyboard.press("Escape")
    again.wait_for_function("() => document.getElementById('engine-detail').hidden")
    assert again.url.endswith("#kept=1")


def test_a_turn_leads_to_the_calls_that_it_ran(opened: Opened, story: Server) -> None:
    page = _session(opened, story)
    page.locator("#turns .turn .decode").nth(2).click()

    panel = page.locator("#engine-detail")
    panel.locator("ul.tools a").wait_for()
    text = panel.inner_text()
    assert "480 tokens" in text and "likely" in text and "Bash" in text
    panel.locator("ul.tools a").click()
    page.wait_for_function("() => document.getElementById('call').innerText.includes('Call 3')")
    assert "call=c3" in page.url and "turn=" in page.url


def test_the_numbers_are_in_tables(opened: Opened, story: Server) -> None:
    page = _session(opened, story)
    page.wait_for_selector("#kv .ytick")
    assert page.evaluate(UNDEFINED_NUMBERS, KEYS) == []
    for name, head, row in (
        ("turns", "prefill", "500 ms"),
        ("kv", "why", "brought back from the host"),
        ("decisions", "margin", "OFFLOAD"),
    ):
        page.click(f"[data-twin='{name}']")
        table = page.locator(f"#{name} + .twin-table")
        table.locator("table").wait_for()
        assert head in table.inner_text() and row in table.inner_text()
    assert page.evaluate(UNDEFINED_NUMBERS, KEYS) == []


def test_a_session_without_an_engine_says_what_to_do(opened: Opened, told: object) -> None:
    page = opened().open("/sessions/pre-commit-2524")
    page.wait_for_selector("#engine-note:not([hidden])")
    assert "tidegate gateway" in page.locator("#engine-note").inner_text()
    assert page.locator("#kv").is_hidden()
    page = opened().open("/kv")
    page.wait_for_selector("#empty:not([hidden])")
    assert "collect --engine" in page.locator("#empty").inner_text()
    assert page.locator("#shown").is_hidden()


def test_the_kv_page_of_an_engine_with_the_plugin(opened: Opened, story: Server) -> None:
    page = _kv(opened, story, f"#engine={ENGINE}")

    names = page.evaluate("document.querySelector('#pool > div').data.map((t) => t.name).sort()")
    assert names == ["active", "cached", "free", "pinned"]
    strip = page.locator("#strip").inner_text()
    for words in ("enforce", "four-state", "200 blocks", "60 / 10 / 30 %"):
        assert words in strip, words
    assert page.locator("#holders tbody tr").count() == 3
    assert page.locator("#decisions tbody tr").count() == 18
    assert "as decided" in page.locator("#matrix").inner_text()
    assert page.locator("#calibration .sample").count() == 12
    assert "break-even" in page.locator("#calibration").inner_text()
    assert "pytest" in page.locator("#tools").inner_text()
    assert page.evaluate(UNDEFINED_NUMBERS, KEYS) == []


def test_decisions_are_filtered_and_opened(opened: Opened, story: Server) -> None:
    page = _kv(opened, story)
    page.select_option("#filters [name='action']", "PIN")
    page.wait_for_function("() => document.querySelectorAll('#decisions tbody tr').length === 3")
    page.select_option("#filters [name='enforced']", "false")
    page.wait_for_function("() => document.querySelectorAll('#decisions tbody tr').length === 1")
    page.click("#decisions tbody tr")
    page.locator("#decision ul.costs").wait_for()
    assert "only observed" in page.locator("#decision").inner_text()
    page.locator("#decision dd a").click()
    page.wait_for_selector("#engine-detail ul.costs")
    assert "/sessions/agent-3" in page.url
    page.go_back()
    page.wait_for_selector("#decisions tbody tr")
    page.select_option("#filters [name='action']", "DROP")
    page.wait_for_selector("#no-decisions:not([hidden])")
    assert page.locator("#no-decisions").inner_text() == "No decision matches."


def test_what_only_the_plugin_knows_is_not_drawn_of_a_stock_engine(opened: Opened, story: Server) -> None:
    page = _kv(opened, story, f"#engine={quote(ENGINE)}")
    page.select_option("#strip select", STOCK)
    page.wait_for_function(
        "() => document.querySelector('#pool > div').data?.map((t) => t.name).sort().join() === 'used'"
    )
    page.wait_for_function("() => document.getElementById('about').innerText.includes('from outside')")
    assert "does not tell" in page.locator("#about").inner_text()
    assert "Only the plugin measures" in page.locator("#calibration").inner_text()
    page.wait_for_function("() => document.getElementById('no-decisions').innerText.includes('with the plugin')")


def test_the_kv_page_at_an_instant_of_before(opened: Opened, story: Server) -> None:
    with story.client() as client:
        start_us = client.get("/api/state").json()["playhead"]["start_us"]
    page = opened(to=story).open(f"/kv?at={start_us + 3_000_000}#engine={ENGINE}")
    page.wait_for_selector("#pool .now", state="attached")
    page.wait_for_selector("#decisions tbody tr")
    assert page.locator("#decisions tbody tr").count() == 1
    assert page.locator("#holders tbody tr").count() in (1, 2)


def test_live_shows_where_blocks_are_and_what_was_decided_last(opened: Opened, story: Server) -> None:
    page = opened(to=story).open("/")
    page.wait_for_selector("#sessions .kv-bar")
    row = page.locator("#sessions tbody tr", has_text="agent-2")
    assert "60 host" in row.inner_text() and "OFFLOAD" in row.inner_text()
    page.wait_for_function("() => /ended after/.test(document.getElementById('feed').innerText)")
    page.select_option("#feed-filter", "engine")
    page.wait_for_function("() => !/ended after/.test(document.getElementById('feed').innerText)")
    lines = page.locator("#feed li").all_inner_texts()
    assert any("OFFLOAD" in line for line in lines) and any("engine" in line for line in lines)
    assert all(re.search("OFFLOAD|PIN|KEEP|engine", line) for line in lines)
    page = opened(to=story).open("/sessions")
    page.wait_for_selector("#sessions tbody tr")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_pages_can_be_read(opened: Opened, story: Server, screenshots: Path, scheme: Literal["dark", "light"]) -> None:
    session = _session(opened, story, scheme=scheme)
    session.locator("#decisions [data-decision]").nth(3).click()
    session.locator("#engine-detail ul.costs").wait_for()
    kv = _kv(opened, story, scheme=scheme)
    kv.click("#decisions tbody tr")
    kv.locator("#decision ul.costs").wait_for()
    for name, page in (("session-engine", session), ("kv", kv)):
        assert page.evaluate(LOW_CONTRAST) == [], name
        page.screenshot(path=screenshots / f"{name}-{scheme}.png", full_page=True)
        page.set_viewport_size({"width": 800, "height": 900})
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), name
    assert [box for box in kv.evaluate(OVERFLOWING) if box.startswith("decisions")] == []
