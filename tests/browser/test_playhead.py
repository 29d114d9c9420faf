"""The playhead: a recording is played and sought, the URL holds the position, the live run is wound back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import Page

from tests.support.browsing import LOW_CONTRAST, UNDEFINED_NUMBERS, Watched
from tests.support.scenes import T0, stamped
from tests.support.server import Server, running_server
from tests.support.stories import HOSTILE_ID, MB, Collector, now_us, sample, story
from tidegate_collectors.records import Action, KvDecision, MemEvent, RunEnd, RunMeta, SessionStart

pytestmark = pytest.mark.browser

Opened = Callable[..., Watched]
END = T0 + 23_000_000
SESSION = "pre-commit-2524"
ROW = f'#sessions tbody tr[data-id="{SESSION}"]'
AT = "document.querySelector('#playhead .at b').textContent"


@pytest.fixture(scope="module")
def recorded(place: Path) -> Iterator[Server]:
    """A backend that shows the story as a recording, with an OOM, an action and a decision in it."""
    path = place / "story.jsonl"
    more = [
        MemEvent(t=T0 + 9_600_000, session=SESSION, call="c3", oom_kill=1, oom=1),
        Action(t=T0 + 9_700_000, session=SESSION, plane="kernel", verb="freeze", target="c3", enforced=False),
        KvDecision(t=T0 + 14_050_000, session=SESSION, boundary="call", action="PIN", enforced=False),
    ]
    records = sorted([RunMeta(t=T0, run="r1", title="the <i>story</i>"), *story(T0), *more], key=lambda one: one.t)
    path.write_bytes(b"\n".join(stamped([*records, RunEnd(t=END, clean=True)])) + b"\n")
    with running_server(place / "recorded", replay=path) as running:
        yield running


@pytest.fixture(scope="module")
def keys(server: Server) -> list[str]:
    """Keys of all definitions."""
    with server.client() as client:
        return [entry["key"] for entry in client.get("/api/definitions").json()["definitions"]]


def _at(page: Page) -> float:
    """Seconds from the start of the story, by the URL."""
    return (int(parse_qs(urlsplit(page.url).query)["at"][0]) - T0) / 1e6


def _go(page: Page, text: str) -> None:
    page.fill("#playhead .goto input", text)
    page.press("#playhead .goto input", "Enter")


def _wait_at(page: Page, words: str) -> None:
    page.wait_for_function(f"(words) => {AT} === words", arg=words)


def _see(page: Page, words: str, row: str = ROW) -> None:
    page.wait_for_function("([row, words]) => document.querySelector(row)?.innerText.includes(words)", arg=[row, words])


def _note(page: Page, words: str) -> None:
    page.wait_for_function("(words) => document.getElementById('playhead-note').textContent.includes(words)", arg=words)


def _open(opened: Opened, recorded: Server, path: str = "/") -> Page:
    page = opened(to=recorded).open(path)
    page.wait_for_function(f"() => {AT} !== ''")
    return page


def test_rows_change_while_it_plays(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded)
    page.keyboard.press("Home")
    _wait_at(page, "0:00.0")
    assert "pytest" not in page.inner_text("#sessions")
    page.evaluate(
        """(row) => {
          window.seen = new Set();
          new MutationObserver(() => window.seen.add(document.querySelector(row)?.innerText ?? ""))
            .observe(document.getElementById("sessions"), { subtree: true, childList: true, characterData: true });
        }""",
        ROW,
    )

    for _ in range(3):
        page.keyboard.press("]")
    assert page.input_value("#playhead select[aria-label=Speed]") == "8"
    began = time.monotonic()
    page.keyboard.press(" ")
    page.wait_for_function("() => document.querySelector('#playhead button[aria-label^=Pause]') !== null")
    page.wait_for_function("() => document.getElementById('badge-conn').textContent === 'playing'")
    _wait_at(page, "0:23.0")
    took = time.monotonic() - began

    # 23 s at eight times the speed are three; a loaded machine may take longer, but never less.
    assert took > 2.0
    seen: list[str] = page.evaluate("[...window.seen]")
    assert len(seen) > 5
    for words in ("python3 -m pytest", "thinking", "ended"):
        assert any(words in text for text in seen), words
    page.wait_for_function("() => document.querySelector('#playhead button[aria-label^=Play]') !== null")
    assert page.inner_text("#badge-conn") == "recording"
    assert _at(page) == 23.0


def test_pause_holds_still(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded, f"/?run=r1&at={T0 + 3_000_000}")
    _wait_at(page, "0:03.0")
    page.click("#playhead button[aria-label^=Play]")
    page.wait_for_function(f"() => {AT} > '0:03.5'")
    page.click("#playhead button[aria-label^=Pause]")
    page.wait_for_timeout(300)
    stood = page.evaluate(AT)
    page.wait_for_timeout(700)

    assert page.evaluate(AT) == stood
    assert _at(page) == pytest.approx(float(stood.removeprefix("0:")), abs=0.06)


def test_whoever_plays_and_follows_a_link_plays_on(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded, f"/?run=r1&at={T0 + 5_500_000}")
    _see(page, "pytest tests/")
    page.keyboard.press(" ")
    page.wait_for_function(f"() => {AT} > '0:06.0'")

    page.click(f"{ROW} a")
    page.wait_for_selector("#lanes rect[data-call=c3]")
    page.wait_for_function("() => document.getElementById('badge-conn').textContent === 'playing'")
    at = _at(page)
    page.wait_for_function(
        "(at) => Number(new URLSearchParams(location.search).get('at')) > at", arg=T0 + at * 1e6 + 1e6
    )


def test_seek_by_time_grammar(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded)

    _go(page, "10s")
    _see(page, "python3 -m pytest tests/")
    assert "running" in page.inner_text(ROW)
    assert _at(page) == 10.0
    assert page.inner_text("#badge-mode").startswith("REPLAY") and "0:10.0" in page.inner_text("#badge-mode")
    _go(page, "-7s")
    _see(page, "pip install")
    assert _at(page) == 3.0
    clock = page.evaluate("(us) => new Date(us / 1000).toTimeString().slice(0, 8)", T0 + 16_000_000)
    _go(page, clock)
    _see(page, "tests/unit")
    _go(page, "end")
    _see(page, "ended")

    _go(page, "2h")
    page.wait_for_selector("#playhead-note .trouble")
    assert "2h is after the end: the run is 23.0 s long." in page.inner_text("#playhead-note")
    assert page.get_attribute("#playhead .goto input", "aria-invalid") == "true"
    _go(page, "<b>x")
    assert "<b>x is no time. Expected: 2m or 1:30 after the start" in page.inner_text("#playhead-note")
    assert _at(page) == 23.0


def test_seek_on_the_track(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded)
    box = page.locator("#playhead .track").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2

    page.mouse.click(box["x"] + box["width"] / 2, y)
    _see(page, "python3 -m pytest tests/")
    assert _at(page) == pytest.approx(11.5, abs=0.1)

    # Held down, the page follows the hand; let go, that is the position.
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.3, y)
    page.mouse.move(box["x"] + box["width"] * 3.0 / 23, y, steps=4)
    _see(page, "pip install")
    page.mouse.up()
    assert _at(page) == pytest.approx(3.0, abs=0.1)
    slider = page.locator("#playhead [role=slider]")
    assert slider.get_attribute("aria-valuenow") == "3"
    assert slider.get_attribute("aria-valuetext", timeout=1000).startswith("0:0")  # type: ignore[union-attr]


def test_keys_move_the_position(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded, f"/?run=r1&at={T0 + 10_000_000}")
    _wait_at(page, "0:10.0")

    for key, words in (("ArrowRight", "0:11.0"), ("Shift+ArrowLeft", "0:01.0"), ("Home", "0:00.0"), ("End", "0:23.0")):
        page.keyboard.press(key)
        _wait_at(page, words)
    page.keyboard.press("L")
    assert "This run has ended" in page.inner_text("#playhead-note")
    page.keyboard.press("?")
    assert "play or pause" in page.inner_text("#playhead-help")
    page.keyboard.press("Escape")
    assert page.is_hidden("#playhead-help")


def test_keys_are_not_taken_from_fields_and_lists(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded, f"/sessions?run=r1&at={T0 + 10_000_000}")
    page.wait_for_selector("#sessions tbody tr")
    page.focus("#filter")
    page.keyboard.type("l , . [ ? ")
    page.keyboard.press("Home")
    assert page.input_value("#filter") == "l , . [ ? "
    assert _at(page) == 10.0

    page = _open(opened, recorded, f"/sessions/{SESSION}?run=r1&at={T0 + 10_000_000}")
    page.wait_for_selector("#lanes rect[data-call=c3]")
    page.focus("#lanes")
    page.keyboard.press("Home")
    assert page.get_attribute("#lanes", "aria-activedescendant") == "bar-1"
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    page.wait_for_function("() => location.hash.includes('call=c2')")
    assert _at(page) == 10.0


def test_steps_go_from_event_to_event(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded, f"/?run=r1&at={T0 + 5_500_000}")
    _wait_at(page, "0:05.5")
    kinds = "#playhead select[aria-label^=Kind]"

    def step(kind: str, key: str) -> float:
        page.select_option(kinds, kind)
        page.evaluate("document.activeElement.blur()")
        before = page.url
        page.keyboard.press(key)
        page.wait_for_function("(url) => location.href !== url", arg=before)
        return _at(page)

    assert step("call", ".") == 7.0
    _note(page, "rg -n")
    assert step("call", ",") == 5.0
    assert step("oom", ".") == 9.6
    _see(page, "pytest")
    page.wait_for_function(f"() => document.querySelector('{ROW}').lastChild.textContent === '1'")
    assert step("action", ".") == 9.7
    _note(page, "freeze c3 (observed only)")
    assert step("decision", ".") == 14.05
    _note(page, "PIN (only observed)")
    assert step("burst", ",") == pytest.approx(9.8, abs=0.5)
    page.select_option(kinds, "decision")
    page.click("#playhead button[aria-label^=Previous]")
    _note(page, "No earlier decisions.")


def test_the_url_shows_another_browser_the_same(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded, f"/sessions/{SESSION}")
    page.wait_for_selector("#lanes rect[data-call=c3]")
    _go(page, "12.5s")
    page.wait_for_function("() => document.getElementById('strip').innerText.includes('running')")
    page.click("#lanes rect[data-call=c3]", position={"x": 30, "y": 6})
    page.wait_for_selector("#call ul.tree")
    strip, call, url = page.inner_text("#strip"), page.inner_text("#call"), page.url
    assert "at=" in url and "run=r1" in url and "call=c3" in url
    name, value = next(iter(recorded.cookies.items()))

    # A browser of its own: nothing is shared but the link and the right to read.
    browser = page.context.browser
    assert browser is not None
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        context.add_cookies([{"name": name, "value": value, "url": recorded.base_url}])
        other = context.new_page()
        other.goto(url, wait_until="domcontentloaded")
        other.wait_for_selector("#call ul.tree")
        _wait_at(other, "0:12.5")
        assert other.inner_text("#strip") == strip
        assert other.inner_text("#call") == call
        assert other.url == url
    finally:
        context.close()


def test_links_keep_run_and_position_and_back_returns(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded)
    _go(page, "10s")
    _see(page, "pytest tests/")
    page.wait_for_timeout(1100)  # steps in quick succession count as one
    _go(page, "3s")
    _see(page, "pip install")

    page.click(f"{ROW} a")
    page.wait_for_selector("#lanes rect[data-call=c2]")
    assert urlsplit(page.url).path == f"/sessions/{SESSION}"
    assert _at(page) == 3.0
    page.click("nav a:has-text('Sessions')")
    _see(page, "running")
    assert _at(page) == 3.0
    page.go_back()
    page.wait_for_selector("#lanes")
    page.go_back()
    _see(page, "pip install")
    page.go_back()
    _see(page, "pytest tests/")
    assert _at(page) == 10.0
    page.go_forward()
    _see(page, "pip install")


def test_session_page_draws_the_whole_and_veils_the_future(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded, f"/sessions/{SESSION}?run=r1&at={T0 + 6_000_000}")
    page.wait_for_selector("#memory .main-svg")
    page.wait_for_function("() => Math.max(...document.querySelector('#memory > div').data?.[0].y ?? [0]) > 1e9")
    assert page.locator("#lanes rect.bar").count() == 3
    assert page.inner_text("#strip [data-def='session.calls_total'] b") == "3"
    assert page.inner_text("#strip [data-def='session.duration_us'] b") == "6.0 s"
    assert page.evaluate("document.getElementById('axis').textContent.includes('0:20')")
    edges = page.evaluate(
        """() => ["head", "veil", "memory"].map((id) => {
          const box = document.getElementById(id).getBoundingClientRect();
          return [box.left, box.right];
        })"""
    )
    (head, _), (veil, right), (_, memory) = edges
    assert head == pytest.approx(veil, abs=2)
    assert right == pytest.approx(memory, abs=20)
    page.click('[data-twin="lanes"]')
    page.wait_for_selector("#panels table.figures")
    assert page.locator("#panels table.figures tbody tr").count() == 3
    page.click('[data-twin="lanes"]')

    # A click on the axis goes there, and with Shift one in a panel; without, it chooses the call.
    axis = page.locator("#axis")
    width = axis.evaluate("(axis) => axis.getBoundingClientRect().width")
    axis.click(position={"x": width * 0.5, "y": 8})
    page.wait_for_function("() => document.querySelectorAll('#lanes rect.bar').length > 3")
    assert _at(page) == pytest.approx(9.7, abs=0.5)
    page.click("#wait .drag", position={"x": 250, "y": 20}, modifiers=["Shift"])
    page.wait_for_function("() => document.querySelectorAll('#lanes rect.bar').length <= 3")
    assert "call=" not in page.url


def test_a_session_that_has_not_begun(opened: Opened, recorded: Server) -> None:
    page = _open(opened, recorded, f"/sessions/{quote(HOSTILE_ID, safe='')}?run=r1&at={T0 + 5_000_000}")
    page.wait_for_selector("#readout button")
    assert "has not begun" in page.inner_text("#readout")

    page.click("#readout button")

    page.wait_for_function("() => document.getElementById('strip').innerText.includes('running')")
    assert _at(page) == 21.0


def test_a_run_that_is_not_there(opened: Opened, recorded: Server) -> None:
    watched = opened(to=recorded)
    page = watched.page
    page.goto(f"{recorded.base_url}/?run=nope%3Cb%3E", wait_until="domcontentloaded")

    assert "There is no run" in page.inner_text("main")
    assert "<b>" in page.inner_text("main")
    watched.complaints[:] = [text for text in watched.complaints if "404" not in text]
    page.click("nav a:has-text('Runs')")
    page.wait_for_selector("#runs tbody tr")


@pytest.mark.parametrize("width", [1280, 800])
def test_pages_in_a_replay(opened: Opened, recorded: Server, keys: list[str], screenshots: Path, width: int) -> None:
    for scheme in ("dark", "light"):
        watched = opened(scheme, to=recorded)
        watched.page.set_viewport_size({"width": width, "height": 900})
        pages = {"live": "/", "sessions": "/sessions", "session": f"/sessions/{SESSION}", "status": "/status"}
        for name, path in pages.items():
            page = watched.open(f"{path}?run=r1&at={T0 + 9_610_000}")
            page.wait_for_function("() => document.getElementById('badge-mode')?.textContent.includes('0:09.6')")
            if name != "status":
                page.keyboard.press("?")
                page.keyboard.press(".")
                page.wait_for_selector("#playhead-note:visible")
            page.wait_for_timeout(400)

            assert page.evaluate(UNDEFINED_NUMBERS, keys) == []
            assert page.evaluate(LOW_CONTRAST) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.locator("main i").count() == 0
            page.screenshot(path=screenshots / f"replay-{name}-{width}-{scheme}.png")


# --- live


def test_the_live_run_is_wound_back_and_caught_up(opened: Opened, collector: Collector, screenshots: Path) -> None:
    collector.send(SessionStart(t=now_us(), session="w1", agent="aider", title="wound"))
    collector.send(*sample(now_us(), "w1", None, 120 * MB))
    collector.settle()
    time.sleep(1.2)
    before = now_us()
    collector.send(*sample(now_us(), "w1", None, 777 * MB))
    collector.settle()
    page = opened().open("/")
    row = '#sessions tbody tr[data-id="w1"]'
    _see(page, "777 MB", row)
    assert page.is_hidden("#past")
    assert page.get_attribute("#playhead button[aria-label^='Go live']", "aria-pressed") == "true"

    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#past:visible")
    page.evaluate("(at) => import('/static/js/store.js').then(({ store }) => store.seek(at))", before - 300_000)
    _see(page, "120 MB / 0 B", row)
    assert page.inner_text("#badge-mode").startswith("PAST")
    assert re.search(r"at=\d+", page.url)
    assert page.inner_text("#badge-conn") == "wound back"
    page.screenshot(path=screenshots / "live-wound-back.png")
    collector.send(*sample(now_us(), "w1", None, 888 * MB))
    collector.settle()
    page.wait_for_timeout(500)
    assert "888 MB" not in page.inner_text(row)

    page.keyboard.press("l")

    _see(page, "888 MB", row)
    assert page.inner_text("#badge-mode").strip() == "LIVE"
    assert "at=" not in page.url
    page.wait_for_function("() => document.getElementById('badge-conn').textContent.match(/connected|stale/)")
    collector.send(*sample(now_us(), "w1", None, 999 * MB))
    _see(page, "999 MB", row)


def test_what_is_played_up_to_now_becomes_live(opened: Opened, collector: Collector) -> None:
    collector.send(SessionStart(t=now_us(), session="w2", agent="aider"))
    collector.send(*sample(now_us(), "w2", None, 120 * MB))
    collector.settle()
    page = opened().open("/")
    page.wait_for_selector('#sessions tbody tr[data-id="w2"]')
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#past:visible")

    for _ in range(4):
        page.keyboard.press("]")
    page.keyboard.press(" ")

    page.wait_for_function("() => document.getElementById('badge-mode')?.textContent.trim() === 'LIVE'")
    assert "at=" not in page.url
