"""A recording on the same pages: the badge says so, nothing ticks or follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.browsing import Watched
from tests.support.scenes import T0, stamped
from tests.support.server import running_server
from tests.support.stories import CALLS, story
from tidegate_collectors.records import RunEnd, RunMeta

pytestmark = pytest.mark.browser


def test_a_recording_is_shown_on_the_same_pages(opened: Callable[..., Watched], place: Path, screenshots: Path) -> None:
    recording = place / "pre-commit.jsonl"
    end = T0 + 23_000_000
    records = [RunMeta(t=T0, run="r1", title="pre-commit <b>2524</b>"), *story(T0), RunEnd(t=end, clean=True)]
    recording.write_bytes(b"\n".join(stamped(records)) + b"\n")

    with running_server(place / "replay", replay=recording) as server:
        watched = opened(to=server)
        page = watched.open("/sessions/pre-commit-2524#call=c3")
        page.wait_for_selector("#call ul.tree")
        page.wait_for_function("() => Math.max(...document.querySelector('#memory > div').data?.[0].y ?? [0]) > 1e9")
        badge = page.inner_text("#badge-mode")
        assert badge.startswith("REPLAY") and ("<b>2524</b>" in badge or "pre-commit.jsonl" in badge)
        assert page.is_hidden("#follow")
        assert page.locator("#lanes rect.bar").count() == len(CALLS)
        assert page.inner_text("#strip [data-def='session.duration_us'] b") == "20.0 s"
        page.screenshot(path=screenshots / "session-replay.png")

        page = watched.open("/")
        page.wait_for_selector("#sessions tbody tr")
        assert page.inner_text("#badge-conn") == "recording"
        assert page.is_hidden("#empty")
        before = page.inner_text("#sessions")
        page.wait_for_timeout(1500)
        assert page.inner_text("#sessions") == before
        watched.page.close()
