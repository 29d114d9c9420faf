"""Debian's Chromium, driven by playwright, against a real backend.

One browser a module: playwright's own event loop lives as long as the browser, and no other test may find it running.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, sync_playwright

from tests.support.browsing import Watched
from tests.support.server import Server, running_server
from tests.support.stories import Collector, now_us, story

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, ViewportSize

CHROMIUM = os.environ.get("TIDEGATE_TEST_CHROMIUM") or "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZE: ViewportSize = {"width": 1280, "height": 900}
TIMEOUT_MS = 20_000
"""Generous: the machine may be busy with other tests; nothing here takes a second of its own."""


@pytest.fixture(scope="session")
def profile_directory() -> Iterator[Path]:
    """Chromium's profile: on disk, so that it keeps the compiled Plotly from page to page, as a user's does."""
    with tempfile.TemporaryDirectory(prefix="tg-profile-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def browser(profile_directory: Path) -> Iterator[BrowserContext]:
    """Chromium, or a skip that says what is missing."""
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"no Chromium at {CHROMIUM} (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile_directory, executable_path=CHROMIUM, args=ARGUMENTS, viewport=SIZE
        )
        context.set_default_timeout(TIMEOUT_MS)
        yield context
        context.close()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory whose name is short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="tg-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    """A live backend without any record."""
    with running_server(place) as running:
        yield running


@pytest.fixture(scope="module")
def collector(server: Server) -> Iterator[Collector]:
    """Something that speaks for a kernel collector; has sent nothing yet."""
    speaking = Collector(server.link_socket)
    yield speaking
    speaking.close()


@pytest.fixture(scope="module")
def told(collector: Collector) -> Collector:
    """The collector after it has told the story; it ended a second ago."""
    collector.send(*story(now_us() - 24_000_000))
    collector.settle()
    return collector


@pytest.fixture
def opened(browser: BrowserContext, server: Server) -> Iterator[Callable[..., Watched]]:
    """Make a page that is logged in; at the end no page may have complained."""
    pages: list[Watched] = []

    def make(scheme: Literal["dark", "light"] = "dark", to: Server = server) -> Watched:
        # A cookie knows no port: the one of the backend that is meant goes over any other's.
        name, value = next(iter(to.cookies.items()))
        browser.add_cookies([{"name": name, "value": value, "url": to.base_url}])
        page = browser.new_page()
        page.emulate_media(color_scheme=scheme)
        watched = Watched(page, to.base_url)
        pages.append(watched)
        page.on("console", lambda message: _console(watched, message))
        page.on("pageerror", lambda error: watched.complaints.append(f"error {error}"))
        page.on("dialog", lambda dialog: _dialog(watched, dialog))
        return watched

    yield make
    for watched in pages:
        watched.page.close()
    assert [watched.complaints for watched in pages if watched.complaints] == []


def _console(watched: Watched, message: ConsoleMessage) -> None:
    # A refused Content-Security-Policy load is a console error too.
    if message.type in ("error", "warning"):
        watched.complaints.append(f"{message.type}: {message.text}")


def _dialog(watched: Watched, dialog: Dialog) -> None:
    watched.complaints.append(f"dialog: {dialog.message}")
    dialog.dismiss()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where pictures of the pages are kept; git does not."""
    directory = Path(__file__).parents[2] / "test-artifacts" / "screenshots"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
