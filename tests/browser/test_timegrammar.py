"""The time grammar of the playhead's field: the module itself, in the browser that runs it."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from tests.support.server import Server

pytestmark = pytest.mark.browser

# A run of twenty minutes on 2026-11-30, 14:00 to 14:20 by the browser's clock, the position a minute into it.
PARSE = """async ([text, writing]) => {
  const { parseTime } = await import("/static/js/timegrammar.js");
  const startUs = new Date(2026, 10, 30, 14, 0, 0).getTime() * 1000;
  const extent = { startUs, endUs: startUs + 1200e6, atUs: startUs + 60e6, writing };
  try {
    const { atUs, live } = parseTime(text, extent);
    return [(atUs - startUs) / 1e6, live];
  } catch (error) { return [error.name, error.message]; }
}"""


@pytest.fixture(scope="module")
def page(browser: Any, server: Server) -> Page:
    """A page of the backend, without a login: the module is static."""
    found: Page = browser.new_page()
    found.goto(server.base_url + "/login")
    return found


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2m", 120),
        ("90s", 90),
        ("1m30s", 90),
        ("1m 30s", 90),
        ("1.5m", 90),
        ("500ms", 0.5),
        ("0.2h", 720),
        ("1:30", 90),
        ("0:12.5", 12.5),
        ("14:05:30", 330),
        ("14:05:30.25", 330.25),
        ("2026-11-30 14:05:30", 330),
        ("+10s", 70),
        ("-30s", 30),
        ("−30s", 30),
        ("-0:30", 30),
        ("- 30s", 30),
        ("-2m", 0),
        ("+1h", 1200),
        ("start", 0),
        ("END", 1200),
    ],
)
def test_a_time_is_read(page: Page, text: str, seconds: float) -> None:
    assert page.evaluate(PARSE, [text, False]) == [seconds, False]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "2m or 1:30 after the start"),
        ("soon", "soon is no time. Expected: 2m"),
        ("90", "90 of what? Say 90s, 90m or 90h"),
        ("2h", "the run is 20:00 long"),
        ("13:59:59", "not within this run, which goes from"),
        ("2026-11-29 14:05:30", "not within this run"),
        ("25:00:00", "hours go to 23"),
        ("1:75", "1:75 is no time"),
        ("+soon", "a length is expected"),
        ("now", "This run has ended"),
    ],
)
def test_an_error_says_what_was_expected(page: Page, text: str, says: str) -> None:
    name, message = page.evaluate(PARSE, [text, False])

    assert name == "TimeError"
    assert says in message


@pytest.mark.parametrize("text", ["now", "end", "live", "+1h"])
def test_the_end_of_a_run_that_is_written_is_now(page: Page, text: str) -> None:
    assert page.evaluate(PARSE, [text, True]) == [1200, True]


def test_a_time_of_day_that_comes_twice_is_the_nearer_one(page: Page) -> None:
    script = """async (atHours) => {
      const { parseTime } = await import("/static/js/timegrammar.js");
      const startUs = new Date(2026, 10, 29, 8, 0, 0).getTime() * 1000;
      const extent = { startUs, endUs: startUs + 72 * 3600e6, atUs: startUs + atHours * 3600e6 };
      return (parseTime("09:00:00", extent).atUs - startUs) / 3600e6;
    }"""

    assert page.evaluate(script, 2) == 1
    assert page.evaluate(script, 40) == 49
