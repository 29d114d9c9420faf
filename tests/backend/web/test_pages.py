"""The pages: they render, and no name that an agent chose gets through as markup or as a trick on the eye."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
import pytest_asyncio

from tests.support.backend import T0_US, Backend, a_session, backend
from tidegate.web.templates import short, visible
from tidegate_collectors.records import CallStart, Note

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{7*7}}"
TRICKS = "a\x00b\x1b[31mc\u202ed\u2066e\u200bf\u2028g\x9b\U000e0041"
LONG = "L" * 10_240
HOSTILE = MARK + TRICKS
IDS = [HOSTILE, "../x", LONG, "%2e%2e", "a/b?c#d", "plain"]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def web(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    async with backend(tmp_path_factory.mktemp("pages")) as found:
        for number, name in enumerate(IDS):
            await found.record(*a_session(name, calls=1, t_us=T0_US + number, title=HOSTILE + LONG, agent=HOSTILE))
            await found.record(
                CallStart(t=T0_US + 9_000_000, session=name, call=HOSTILE, tool=HOSTILE, command=HOSTILE),
                Note(t=T0_US + 9_000_000, session=name, text=HOSTILE),
            )
        yield found


def harmless(html: str) -> None:
    assert "alert(1)</script>" not in html
    assert "<img" not in html
    assert "49" not in re.findall(r"\{\{7\*7\}\}|\b49\b", html)
    hidden = [hex(ord(char)) for char in html if visible(char) != char]
    assert hidden == []
    # No inline script and no inline handler: the CSP forbids them, so one of ours would be dead.
    for script in re.findall(r"<script\b([^>]*)>(.*?)</script>", html, re.DOTALL):
        assert "src=" in script[0]
        assert script[1].strip() == ""
    assert not re.search(r"<[^>]+\son[a-z]+=", html)


async def test_every_page_renders(web: Backend) -> None:
    for path in ("/", "/sessions", "/definitions", "/status", "/sessions/plain"):
        answer = await web.client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        harmless(answer.text)


async def test_page_of_each_hostile_session(web: Backend) -> None:
    for session in list(web.state.state.sessions):
        answer = await web.client.get(f"/sessions/{quote(session, safe='')}")
        assert answer.status_code == 200, session
        harmless(answer.text)


async def test_hostile_text_in_errors(web: Backend) -> None:
    segment = quote(HOSTILE + "x", safe="")
    for path in (f"/sessions/{segment}", f"/{segment}", f"/login?token={segment}"):
        answer = await web.stranger.get(path)
        assert answer.status_code == 401
        harmless(answer.text)
    answer = await web.client.get(f"/sessions/{segment}")
    assert answer.status_code == 404
    harmless(answer.text)
    refused = await web.client.get("/", headers={"host": "evil.example"})
    harmless(refused.text)


async def test_error_page_tells_a_stranger_nothing(web: Backend) -> None:
    assert web.state.opened is not None
    answer = await web.stranger.get("/", headers={"host": "evil.example"})
    assert web.state.opened.run.id not in answer.text
    assert str(web.state.settings.link_socket) not in answer.text


async def test_login_page_names_the_file(web: Backend) -> None:
    web.state.token.publish("127.0.0.1", 6456)
    context = web.state.pages.base("login", "x", known=False)
    assert (context["run_id"], context["link_socket"], context["nav"]) == ("", "", [])
    assert web.state.token.file.endswith("login-url-6456")


async def test_visible() -> None:
    assert visible(TRICKS) == r"a\x00b\x1b[31mc\u202ed\u2066e\u200bf\u2028g\x9b\U000e0041"
    assert visible("plain\ttext\nÜ 漢字 🙂") == "plain\ttext\nÜ 漢字 🙂"
    assert visible("\ud800").encode() == rb"\ud800"


async def test_short() -> None:
    assert short("x" * 80) == "x" * 80
    assert short("x" * 81) == "x" * 79 + "…"
