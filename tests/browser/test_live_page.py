"""The Live page: changes as records arrive, pauses, comes back after the backend was away."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

from tests.support.browsing import Watched
from tests.support.server import Server, running_server
from tests.support.stories import MB, Collector, host, now_us, sample
from tidegate_collectors.records import CallEnd, CallStart, MemBurst, SessionEnd, SessionStart

pytestmark = pytest.mark.browser

Opened = Callable[..., Watched]


def _row(page: Page, session: str) -> str:
    return page.inner_text(f'#sessions tbody tr[data-id="{session}"]')


def _see(page: Page, session: str, words: str) -> None:
    page.wait_for_function(
        """([session, words]) =>
             document.querySelector(`#sessions tbody tr[data-id="${session}"]`)?.innerText.includes(words)""",
        arg=[session, words],
    )


def _begin(collector: Collector, session: str) -> None:
    t = now_us()
    collector.send(host(t), SessionStart(t=t, session=session, agent="aider", title=f"title of {session}"))
    collector.send(*sample(t, session, None, 120 * MB))


def test_empty_state_tells_how_to_start(opened: Opened, server: Server, screenshots: Path) -> None:
    page = opened().open("/")

    page.wait_for_selector("#empty:visible")
    text = page.inner_text("#empty")
    assert "No collector is connected" in text
    command = page.inner_text("#cmd-run")
    assert command.endswith("tidegate run -- COMMAND") and command.startswith("/")
    assert page.inner_text("#cmd-collect").endswith("tidegate collect")
    assert page.inner_text("#badge-conn") == "no collector"
    page.screenshot(path=screenshots / "live-empty.png")


def test_page_changes_when_records_arrive(opened: Opened, collector: Collector) -> None:
    page = opened().open("/")

    _begin(collector, "s1")
    _see(page, "s1", "title of s1")
    _see(page, "s1", "120 MB / 0 B")
    assert page.is_hidden("#empty")
    t = now_us()
    collector.send(
        CallStart(t=t, session="s1", call="c1", tool="pytest", category="tests", command="pytest -q"),
        *sample(t + 1000, "s1", "c1", 777 * MB),
        MemBurst(t=t + 2000, session="s1", call="c1", grown_bytes=777 * MB, window_us=100_000, total_bytes=777 * MB),
    )
    _see(page, "s1", "120 / 777 MB")
    _see(page, "s1", "pytest -q")
    page.wait_for_function("() => document.getElementById('feed').innerText.includes('burst +777 MB')")
    assert page.inner_text("#n-sessions") == "1"
    assert page.inner_text("#n-calls") == "1"
    assert page.inner_text("#n-memory") == "3,000 / 8,000 MB"
    page.wait_for_selector("#host .main-svg")
    # The upper edge of the stack reaches what the host uses.
    known = "(document.querySelector('#host > div').data?.[0].y ?? []).filter(Number.isFinite)"
    page.wait_for_function(f"() => Math.max(0, ...{known}) === 3e9")

    collector.send(CallEnd(t=now_us(), session="s1", call="c1", exit_code=0, peak_bytes=777 * MB, duration_us=500_000))
    _see(page, "s1", "thinking")
    assert "pytest -q" not in _row(page, "s1")
    collector.send(SessionEnd(t=now_us(), session="s1", exit_code=0))
    _see(page, "s1", "ended")


def test_what_nobody_reports_any_more_is_a_gap(opened: Opened, collector: Collector) -> None:
    page = opened().open("/")
    _begin(collector, "g1")
    last = "document.querySelector('#host > div').data?.[0].y?.at(-1)"
    page.wait_for_selector("#host .main-svg")
    page.wait_for_function(f"() => {last} === 3e9")

    page.wait_for_function(f"() => Number.isNaN({last})", timeout=10_000)  # unknown is not zero: it is left empty


def test_age_of_a_call_ticks(opened: Opened, collector: Collector) -> None:
    _begin(collector, "s2")
    collector.send(CallStart(t=now_us(), session="s2", call="c1", tool="make", category="build", command="make all"))
    page = opened().open("/")
    _see(page, "s2", "make all")

    before = page.inner_text('tr[data-id="s2"] [data-def="session.current_age_us"] small')
    page.wait_for_timeout(1500)

    assert page.inner_text('tr[data-id="s2"] [data-def="session.current_age_us"] small') != before


def test_arrow_keys_and_enter(opened: Opened, collector: Collector) -> None:
    for session in ("k1", "k2"):
        _begin(collector, session)
    collector.settle()
    page = opened().open("/")
    page.wait_for_selector('tr[data-id="k2"]')
    assert page.locator("#sessions tbody tr[tabindex='0']").count() == 1

    page.click("#sessions th button:has-text('session')")
    page.focus("#sessions tbody tr[tabindex='0']")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    chosen = page.evaluate("document.activeElement.dataset.id")
    page.keyboard.press("Enter")

    page.wait_for_url(f"**/sessions/{chosen}")
    assert chosen == page.evaluate("decodeURIComponent(location.pathname.split('/').at(-1))")


def test_pause_stays_behind_and_live_catches_up(opened: Opened, collector: Collector) -> None:
    _begin(collector, "p1")
    page = opened().open("/")
    _see(page, "p1", "120 MB")

    page.click("#playhead button[aria-label^=Pause]")
    page.wait_for_function("() => document.getElementById('badge-mode').textContent.startsWith('PAST')")
    collector.send(*sample(now_us(), "p1", None, 444 * MB))
    collector.settle()
    page.wait_for_timeout(700)
    assert "444 MB" not in _row(page, "p1")
    assert "You see the past" in page.inner_text("#past")
    page.click("#catch-up")

    _see(page, "p1", "444 MB")
    assert page.inner_text("#badge-mode") == "LIVE"
    assert page.is_hidden("#past")


def test_winding_back_while_a_session_runs_empties_the_page(opened: Opened, collector: Collector) -> None:
    """Rows of sessions that have not begun at the instant go, and so do their events, however the ticks fall."""
    t = now_us()
    _begin(collector, "w1")
    collector.send(
        CallStart(t=t, session="w1", call="c1", tool="make", category="build", command="make w1"),
        SessionEnd(t=t, session="w1-lost", lost=True),
    )
    page = opened().open("/")
    _see(page, "w1", "make w1")
    page.wait_for_function("() => document.getElementById('feed').innerText.includes('its end was not seen')")
    words = page.inner_text("#feed li:has-text('its end was not seen')")
    assert "✕" in words and "finished" not in words

    for _ in range(2):
        # Drawing is held, so that what a tick has noted as changed is drawn only after the answer to Home.
        page.evaluate(
            "window.held = []; window.raf ??= requestAnimationFrame; requestAnimationFrame = (f) => held.push(f); 0"
        )
        page.wait_for_timeout(700)
        page.keyboard.press("Home")
        page.wait_for_timeout(400)
        page.evaluate("requestAnimationFrame = raf; for (const f of held) f(performance.now())")
        page.wait_for_function("() => document.querySelectorAll('#sessions tbody tr').length === 0")
        page.wait_for_function("() => !document.getElementById('feed').innerText.includes('make w1')")
        page.keyboard.press("l")
        _see(page, "w1", "make w1")
        page.wait_for_function("() => document.getElementById('feed').innerText.includes('make w1')")


def test_a_broken_listener_does_not_keep_the_others_from_knowing(opened: Opened, server: Server) -> None:
    watched = opened()
    page = watched.open("/")

    told = page.evaluate(
        """() => import("/static/js/store.js").then(async ({ store }) => {
          let told = 0;
          const off = [store.subscribe(() => { throw new Error("broken"); }), store.subscribe(() => { told++; })];
          await store.reload();
          for (const one of off) one();
          return told;
        })"""
    )

    assert told > 0
    page.wait_for_timeout(100)
    assert any("broken" in text for text in watched.complaints), "it is still reported"
    watched.complaints[:] = [text for text in watched.complaints if "broken" not in text]


def test_events_can_be_filtered_and_held(opened: Opened, collector: Collector) -> None:
    _begin(collector, "f1")
    page = opened().open("/")
    page.wait_for_function("() => document.getElementById('feed').innerText.includes('f1')")

    page.click("#feed-pause")
    t = now_us()
    collector.send(
        CallStart(t=t, session="f1", call="c1", tool="git", category="git", command="git log"),
        MemBurst(t=t, session="f1", call="c1", grown_bytes=5 * MB, window_us=100_000, total_bytes=5 * MB),
    )
    page.wait_for_function("() => document.getElementById('feed-pause').textContent === 'Held, 2 new'")
    assert "git log" not in page.inner_text("#feed")
    page.click("#feed-pause")
    page.wait_for_function("() => document.getElementById('feed').innerText.includes('git log')")
    page.select_option("#feed-filter", "burst")
    assert "git log" not in page.inner_text("#feed")
    assert "burst +5.0 MB" in page.inner_text("#feed")


def test_session_page_follows_the_live_edge(opened: Opened, collector: Collector) -> None:
    _begin(collector, "live1")
    page = opened().open("/sessions/live1")
    page.wait_for_selector("#follow:visible")
    assert page.get_attribute("#follow", "aria-pressed") == "true"

    t = now_us()
    collector.send(
        CallStart(t=t, session="live1", call="c1", tool="python3", category="python", command="python3 x.py")
    )
    for step in range(8):
        collector.send(*sample(now_us(), "live1", "c1", (step + 1) * 100 * MB))
        time.sleep(0.05)

    page.wait_for_selector("#lanes rect[data-call=c1]")
    page.wait_for_function("() => Math.max(...document.querySelector('#memory > div').data?.[0].y ?? [0]) >= 9e8")
    page.wait_for_function("() => document.getElementById('strip').innerText.includes('120 / ')")


def test_silence_is_shown_as_stale(opened: Opened, collector: Collector) -> None:
    """A connected collector that sends nothing for three seconds; the next record makes the picture fresh again."""
    page = opened().open("/")

    page.wait_for_function("() => document.getElementById('badge-conn').textContent.startsWith('stale ')")
    assert "trouble" in str(page.get_attribute("#badge-conn", "class"))
    collector.send(host(now_us()))

    page.wait_for_function("() => document.getElementById('badge-conn').textContent === 'connected'")


@pytest.fixture
def short_place() -> Iterator[Path]:
    """A directory of this test's own."""
    with tempfile.TemporaryDirectory(prefix="tg-") as directory:
        yield Path(directory)


def test_reconnects_after_the_backend_restarts(opened: Opened, short_place: Path) -> None:
    """The same port, no reload: the page says that it lost the backend, then shows what came meanwhile."""
    with running_server(short_place) as first:
        port = urlsplit(first.base_url).port
        assert port is not None
        collector = Collector(first.link_socket)
        try:
            _begin(collector, "r1")
            watched = opened(to=first)
            page = watched.open("/")
            _see(page, "r1", "120 MB")
            page.evaluate("window.notReloaded = true")

            first.stop()
            page.wait_for_function("() => document.getElementById('badge-conn').textContent === 'reconnecting'")
            with running_server(short_place, port=port, login=False):
                collector.send(*sample(now_us(), "r1", None, 333 * MB))
                _see(page, "r1", "333 MB")
                page.wait_for_function(
                    "() => /^(connected|stale)/.test(document.getElementById('badge-conn').textContent)"
                )
                assert page.evaluate("window.notReloaded") is True
                # The browser itself reports each refused connection; nothing else may have been said.
                expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
                watched.complaints[:] = [
                    text for text in watched.complaints if not any(name in text for name in expected)
                ]
                watched.page.close()
        finally:
            collector.close()
