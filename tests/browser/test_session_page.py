"""The Session page: zoom, call panel, URL, table twins."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Request

from tests.support.browsing import Watched
from tests.support.stories import CALLS, Collector, now_us
from tidegate_collectors.records import CallStart, ProcExec, ProcExit, SessionStart

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("told")]

Opened = Callable[..., Watched]
PATH = "/sessions/pre-commit-2524"
AXIS = "document.getElementById('axis').textContent"


def _open(opened: Opened, hash_: str = "") -> Page:
    page = opened().open(PATH + hash_)
    page.wait_for_selector("#memory .main-svg")
    page.wait_for_function("() => document.querySelector('#memory > div').data?.some((trace) => trace.y.length > 50)")
    return page


def _series(requests: list[Request]) -> list[dict[str, float]]:
    out = []
    for request in requests:
        parts = urlsplit(request.url)
        if parts.path.endswith("/series"):
            out.append({key: float(values[0]) for key, values in parse_qs(parts.query).items()})
    return out


def _drag(page: Page, start: float, end: float) -> None:
    box = page.locator("#memory").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (start + end) / 2, y)
    page.mouse.move(box["x"] + box["width"] * end, y)
    page.mouse.up()


def test_zoom_refetches_and_changes_the_axis(opened: Opened) -> None:
    page = _open(opened)
    requests: list[Request] = []
    page.on("request", lambda request: requests.append(request))
    before = page.evaluate(AXIS)

    with page.expect_response(lambda response: "/series?" in response.url):
        _drag(page, 0.3, 0.5)
    page.wait_for_function(f"(before) => {AXIS} !== before", arg=before)

    asked = _series(requests)[-1]
    assert 2e6 < asked["to_us"] - asked["from_us"] < 8e6
    assert f"from={int(asked['from_us'])}" in page.url

    # Keys: out by two, then all.
    with page.expect_response(lambda response: "/series?" in response.url):
        page.keyboard.press("-")
    wider = _series(requests)[-1]
    assert wider["to_us"] - wider["from_us"] == pytest.approx(2 * (asked["to_us"] - asked["from_us"]), rel=0.05)
    with page.expect_response(lambda response: "/series?" in response.url):
        page.keyboard.press("Escape")
    page.wait_for_function(f"(before) => {AXIS} === before", arg=before)
    assert "from=" not in page.url


def test_quick_zooms_ask_once(opened: Opened) -> None:
    page = _open(opened)
    page.wait_for_timeout(400)
    requests: list[Request] = []
    page.on("request", lambda request: requests.append(request))

    # At once: on a busy machine four keys by hand may take longer than the pause that is waited for.
    page.evaluate(
        """() => {
          const press = () => new KeyboardEvent("keydown", { key: "+", bubbles: true });
          for (let i = 0; i < 4; i++) document.body.dispatchEvent(press());
        }"""
    )
    page.wait_for_timeout(600)

    assert len(_series(requests)) == 1


def test_double_click_shows_all(opened: Opened) -> None:
    page = _open(opened)
    _drag(page, 0.3, 0.5)
    page.wait_for_function("() => location.hash.includes('from=')")

    page.dblclick("#wait .drag")

    page.wait_for_function("() => !location.hash.includes('from=')")


def _is_third_call(page: Page) -> None:
    page.wait_for_selector("#call ul.tree")
    panel = page.inner_text("#call")
    assert "Call 3" in panel and CALLS[2][2] in panel
    figures = ("0:05.0 / 9.0 s", "900 MB", "+898 MB", "412 MB/s", "907 MB", "7.2 s / 900 ms", "40 ms")
    for words in (*figures, "2, none left behind", "memory:high", "<b>child", "overlaps"):
        assert words in panel, words
    assert re.search(r"exit\s+1", panel)
    assert "call=c3" in page.url


def test_click_on_a_bar_opens_the_call(opened: Opened) -> None:
    page = _open(opened)

    page.click("#lanes rect[data-call=c3]", position={"x": 30, "y": 6})

    _is_third_call(page)
    assert page.get_attribute("#lanes rect[data-call=c3]", "aria-selected") == "true"


def test_keyboard_opens_the_call_and_follows_neighbours(opened: Opened) -> None:
    page = _open(opened)

    page.focus("#lanes")
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.get_attribute("#lanes", "aria-activedescendant") == "bar-3"
    page.keyboard.press("Enter")

    _is_third_call(page)
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.getElementById('call').innerText.includes('No call selected')")
    page.keyboard.press("Enter")
    _is_third_call(page)
    page.click("#call ul.links a >> nth=0")
    page.wait_for_function("() => location.hash.includes('call=c2')")
    assert "pip install" in page.inner_text("#call")


def test_the_field_of_the_playhead_does_not_scroll_the_page(opened: Opened) -> None:
    page = _open(opened)
    page.set_viewport_size({"width": 1280, "height": 500})
    page.wait_for_timeout(200)

    page.keyboard.press("g")
    page.wait_for_function("() => document.activeElement.matches('#playhead input')")
    page.wait_for_timeout(200)

    assert page.evaluate("scrollY") == 0


def test_processes_are_listed_by_size(opened: Opened, told: Collector) -> None:
    """The big one is first though it started last, a fork without a name says whose it is, the rest is counted."""
    start = now_us() - 5_000_000
    told.send(
        SessionStart(t=start, session="forks", agent="x"),
        CallStart(t=start, session="forks", call="c1", tool="make", category="build", command="make -j"),
        ProcExec(t=start, session="forks", call="c1", pid=100, ppid=1, comm="make"),
        *(ProcExec(t=start + pid, session="forks", call="c1", pid=pid, ppid=100) for pid in range(101, 113)),
        ProcExit(t=start + 400, session="forks", call="c1", pid=150, hiwater_bytes=1000),
        ProcExec(t=start + 900, session="forks", call="c1", pid=200, ppid=101, comm="cc1plus"),
        ProcExit(t=start + 1000, session="forks", call="c1", pid=200, exit_code=0, hiwater_bytes=700_000_000),
    )
    told.settle()

    page = opened().open("/sessions/forks#call=c1")
    page.wait_for_selector("#call ul.tree")

    first = page.locator("#call ul.tree").first
    assert first.locator("li").count() == 10
    assert "cc1plus" in first.locator("li").first.inner_text() and "700 MB" in first.locator("li").first.inner_text()
    assert "fork of make" in first.inner_text() and "fork, no exec seen" in first.inner_text()
    page.click("#call summary:has-text('5 more')")
    page.wait_for_timeout(1500)
    assert page.locator("#call ul.tree li:visible").count() == 15


def test_overlapping_calls_lie_in_different_lanes(opened: Opened) -> None:
    page = _open(opened)

    tops = {call: page.locator(f"#lanes rect[data-call={call}]").get_attribute("y") for call in ("c3", "c4", "c6")}

    assert tops["c3"] != tops["c4"]
    assert tops["c3"] == tops["c6"]


def test_the_url_brings_call_and_zoom_back(opened: Opened) -> None:
    page = _open(opened)
    _drag(page, 0.2, 0.6)
    page.click("#lanes rect[data-call=c3]", position={"x": 30, "y": 6})
    page.wait_for_function("() => location.hash.includes('call=c3') && location.hash.includes('from=')")
    axis, url = page.evaluate(AXIS), page.url

    again = opened().page
    again.goto(url, wait_until="domcontentloaded")

    _is_third_call(again)
    again.wait_for_function(f"(axis) => {AXIS} === axis", arg=axis)


def test_crosshair_reads_all_panels(opened: Opened) -> None:
    page = _open(opened)
    box = page.locator("#wait").bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)

    page.wait_for_selector("#crosshair:visible")
    words = page.inner_text("#readout")
    for part in ("runtime", "tests", "wait", "memory pressure", "call"):
        assert part in words, part


def _table(page: Page, name: str) -> list[list[float]]:
    page.click(f'[data-twin="{name}"]')
    page.wait_for_selector(f'.panel:has([data-twin="{name}"]) table.figures')
    rows: list[list[float]] = page.evaluate(
        """(name) => [...document.querySelector(`.panel:has([data-twin="${name}"]) table.figures tbody`).rows]
             .map((row) => [...row.cells].map((cell) => Number(cell.dataset.value)))""",
        name,
    )
    return rows


def test_table_twin_has_the_numbers_of_the_chart(opened: Opened) -> None:
    page = _open(opened)
    # The uppermost edge that Plotly draws is the sum of the layers; the last point only carries it to the end.
    drawn: list[float] = page.evaluate("Array.from(document.querySelector('#memory > div').data[0].y)")
    runtime: list[float] = page.evaluate("Array.from(document.querySelector('#memory > div').data.at(-1).y)")

    rows = _table(page, "memory")

    assert len(rows) > 50
    count = len(rows)
    assert [row[-1] for row in rows] == pytest.approx(drawn[:count])
    assert [row[1] for row in rows] == pytest.approx(runtime[:count])
    # The highest sample is there: the call's peak on top of the runtime, and the cells say it in MB.
    highest = max(row[-1] for row in rows)
    assert highest > 1_050_000_000
    assert f"{highest / 1e6:,.1f}" in page.inner_text('.panel:has([data-twin="memory"]) table.figures')


def test_table_of_calls_has_each_call(opened: Opened) -> None:
    page = _open(opened)

    rows = _table(page, "lanes")

    assert [row[0] for row in rows] == list(range(1, len(CALLS) + 1))
    assert [row[5] for row in rows] == [call[5] * 1_000_000 for call in CALLS]


def _floats(column: dict[str, str]) -> list[float]:
    raw = base64.b64decode(column["bdata"])
    return [value for (value,) in struct.iter_unpack("<d", raw)]


def test_series_on_the_page_is_the_servers(opened: Opened) -> None:
    page = _open(opened)

    with page.expect_response(lambda response: "/series?" in response.url) as answer:
        _drag(page, 0.25, 0.75)
    memory = answer.value.json()["memory"]
    layers = [_floats(column) for column in (memory["runtime_bytes"], *memory["calls"].values())]
    together = [sum(value for value in values if value > 0) for values in zip(*layers, strict=True)]

    # The last drawn point only carries the last value to the end of the axis.
    page.wait_for_function(
        "(n) => [n, n + 1].includes(document.querySelector('#memory > div').data[0].y.length)", arg=len(together)
    )
    drawn: list[float] = page.evaluate("Array.from(document.querySelector('#memory > div').data[0].y)")
    assert drawn[: len(together)] == pytest.approx(together)
