"""Who is let in, and what every answer carries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from tests.support.backend import BASE_URL, Backend, backend
from tidegate.web.security import COOKIE, CSP, LANDING, FailureLimit

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGES = ["/", "/sessions", "/definitions", "/status"]
API = ["/api/state", "/api/status", "/api/capabilities", "/api/definitions", "/api/runs", "/api/stream"]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def one_backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    async with backend(tmp_path_factory.mktemp("web")) as found:
        yield found


@pytest.fixture
def web(one_backend: Backend) -> Backend:
    one_backend.stranger.cookies.clear()
    one_backend.state.failures = FailureLimit()
    return one_backend


@pytest.mark.parametrize("path", [*PAGES, "/sessions/x", "/nothing", "/docs", "/openapi.json"])
async def test_page_needs_login(web: Backend, path: str) -> None:
    answer = await web.stranger.get(path)
    assert answer.status_code == 401
    assert "login URL" in answer.text
    assert web.state.opened is not None
    assert web.state.opened.run.id not in answer.text


@pytest.mark.parametrize("path", [*API, "/api/nothing", "/api/sessions/x"])
async def test_api_needs_login(web: Backend, path: str) -> None:
    answer = await web.stranger.get(path)
    assert answer.status_code == 401
    assert answer.json() == {"ok": False, "error": answer.json()["error"], "status": 401}


async def test_a_made_up_cookie_is_no_login(web: Backend) -> None:
    answer = await web.stranger.get("/api/state", headers={"cookie": f"{COOKIE}=made-up"})
    assert answer.status_code == 401


async def test_public_paths(web: Backend) -> None:
    health = await web.stranger.get("/health")
    assert (health.status_code, health.json()) == (200, {"status": "UP"})
    assert (await web.stranger.get("/static/css/tidegate.css")).status_code == 200


async def test_static_prefix_is_no_way_around_the_login(web: Backend) -> None:
    for path in ("/static/%2e%2e/%2e%2e/api/state", "/static/..%2f..%2fbackend/tidegate/app.py"):
        request = web.stranger.build_request("GET", BASE_URL)
        request.url = request.url.copy_with(raw_path=path.encode())
        answer = await web.stranger.send(request)
        assert answer.status_code == 404, path


async def test_login_token_works_once(web: Backend) -> None:
    url = web.state.token.publish("127.0.0.1", 6456)
    first = await web.stranger.get(url)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    web.stranger.cookies.clear()
    second = await web.stranger.get(url)
    assert second.status_code == 401
    assert "used before" in second.text
    assert "set-cookie" not in second.headers


async def test_used_url_in_a_logged_in_browser_leads_on(web: Backend) -> None:
    url = web.state.token.publish("127.0.0.1", 6456)
    await web.stranger.get(url)
    assert (await web.stranger.get(url)).headers["location"] == "/"


def look(path: str) -> tuple[int, str]:
    """Mode and content of a file."""
    return Path(path).stat().st_mode & 0o777, Path(path).read_text()


async def test_next_url_is_in_a_private_file(web: Backend) -> None:
    first = web.state.token.publish("127.0.0.1", 6456)
    mode, text = look(web.state.token.file)
    assert mode == 0o600
    assert text.strip() == first
    await web.stranger.get(first)
    web.stranger.cookies.clear()
    second = look(web.state.token.file)[1].strip()
    assert second != first
    assert (await web.stranger.get(second)).status_code == 303
    web.state.token.withdraw()
    with pytest.raises(FileNotFoundError):
        look(web.state.token.file)


async def test_cookie_flags(web: Backend) -> None:
    answer = await web.stranger.get(web.state.token.publish("127.0.0.1", 6456))
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name.startswith(f"{COOKIE}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(attributes)
    assert not any(attribute.lower().startswith(("max-age", "expires")) for attribute in attributes), (
        "a wall screen stays"
    )
    assert not [item for item in attributes if item.lower().startswith("domain")]


async def test_link_from_another_site_logs_in_by_a_page_of_ours(web: Backend) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    answer = await web.stranger.get(web.state.token.publish("127.0.0.1", 6456), headers=headers)
    assert answer.status_code == 200
    assert "set-cookie" in answer.headers
    assert 'url=/"' in answer.text


async def test_a_link_that_was_opened_before_the_login_is_where_it_leads(web: Backend) -> None:
    link = "/sessions/a%2Fb%3C%22?run=r1&at=1800000000000000&x=%22%3E"
    answer = await web.stranger.get(link)
    assert answer.status_code == 401
    assert "brings you to the page that you asked for" in answer.text
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/login", "Max-Age=600"} <= set(cookie.split("; "))
    for path in ("/api/state", "/static/none.css", "/favicon.ico", "/sessions?" + "x" * 1300):
        other = await web.stranger.get(path, headers={"sec-fetch-dest": "image"} if "favicon" in path else {})
        assert "set-cookie" not in other.headers, path
    entered = await web.stranger.get(web.state.token.publish("127.0.0.1", 6456))
    assert (entered.status_code, entered.headers["location"]) == (303, link)
    # It leads there once.
    assert (await web.stranger.get(web.state.token.publish("127.0.0.1", 6456))).headers["location"] == "/"


async def test_a_link_that_was_opened_before_the_login_is_text_in_the_page_that_goes_on(web: Backend) -> None:
    await web.stranger.get("/sessions/'x'?a=1&b=<script>")
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    answer = await web.stranger.get(web.state.token.publish("127.0.0.1", 6456), headers=headers)
    assert "url=/sessions/&#39;x&#39;?a=1&amp;b=" in answer.text
    assert "<script" not in answer.text


@pytest.mark.parametrize(
    "page",
    ["//evil.example", "https://evil.example/", "/\\evil.example", "/\\/evil.example", "\\\\evil.example",
     "evil.example", "javascript:alert(1)", "/\t/evil.example", "/x\r\nset-cookie: a=b", " //evil.example", "/\u2028",
     ""],
)  # fmt: skip
async def test_a_login_leads_to_no_other_server(web: Backend, page: str) -> None:
    """GIVEN a cookie that another port of this machine set THEN the login leads to our own start."""
    url = web.state.token.publish("127.0.0.1", 6456)
    answer = await web.stranger.get(url, headers={"cookie": f"{LANDING}={quote(page, safe='')}"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_prefetch_does_not_use_the_token_up(web: Backend) -> None:
    url = web.state.token.publish("127.0.0.1", 6456)
    assert (await web.stranger.get(url, headers={"sec-purpose": "prefetch"})).status_code == 400
    assert (await web.stranger.get(url)).status_code == 303


async def test_wrong_tokens_are_limited_and_the_right_one_still_works(web: Backend) -> None:
    url = web.state.token.publish("127.0.0.1", 6456)
    answers = [await web.stranger.get("/login", params={"token": f"guess{n}"}) for n in range(12)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
    assert answers[-1].headers["retry-after"] == "60"
    assert (await web.stranger.get(url)).status_code == 303


@pytest.mark.parametrize("host", ["evil.example", "evil.example:6456", "127.0.0.1.evil.example", "192.0.2.1:6456"])
async def test_rebinding_is_refused(web: Backend, host: str) -> None:
    for path in ("/", "/api/state", "/health", "/login"):
        answer = await web.client.get(path, headers={"host": host})
        assert answer.status_code == 421, path


@pytest.mark.parametrize(
    "host", ["", "a b", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1/..", "user@127.0.0.1", "[::1"]
)
async def test_malformed_host_is_refused(web: Backend, host: str) -> None:
    assert (await web.client.get("/api/state", headers={"host": host})).status_code == 400


async def test_two_hosts_are_refused(web: Backend) -> None:
    headers = [("host", "127.0.0.1"), ("host", "evil.example")]
    assert (await web.client.get("/health", headers=headers)).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:6456", "localhost:8000", "LOCALHOST", "[::1]:6456"])
async def test_loopback_names_are_served(web: Backend, host: str) -> None:
    assert (await web.client.get("/health", headers={"host": host})).status_code == 200


async def test_configured_host(tmp_path: Path) -> None:
    async with backend(tmp_path, allowed_hosts=("dev.example:8443", "box.example")) as web:
        for host, status in {
            "dev.example:8443": 200, "dev.example": 421, "dev.example:1": 421, "box.example": 200, "box.example:9": 200,
        }.items():  # fmt: skip
            assert (await web.client.get("/health", headers={"host": host})).status_code == status, host


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/api/state", "/api/stream", "/api/runs"])
async def test_cross_origin_read_is_refused(web: Backend, path: str, headers: dict[str, str]) -> None:
    answer = await web.client.get(path, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["ok"] is False


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_cross_origin_write_is_refused_before_anything_else(web: Backend, method: str) -> None:
    navigation = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for path in ("/", "/api/state", "/login"):
        assert (await web.client.request(method, path, headers=navigation)).status_code == 403


async def test_link_from_another_site_to_a_page_is_a_page(web: Backend) -> None:
    navigation = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await web.client.get("/", headers=navigation)).status_code == 200
    assert (await web.client.get("/", headers={**navigation, "sec-fetch-dest": "iframe"})).status_code == 403
    assert (await web.client.get("/api/state", headers=navigation)).status_code == 403


async def test_own_page_is_let_in(web: Backend) -> None:
    for headers in ({"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": BASE_URL}):
        assert (await web.client.get("/api/state", headers=headers)).status_code == 200


async def _answers(web: Backend, monkeypatch: pytest.MonkeyPatch) -> list[httpx.Response]:
    with monkeypatch.context() as patch:
        patch.setattr(web.state, "opened", None)
        unavailable = await web.client.get("/api/state")
        unavailable_page = await web.client.get("/sessions")
    with monkeypatch.context() as patch:
        patch.setattr(type(web.state.hub), "status", None)
        defect = await web.client.get("/api/status")
    with monkeypatch.context() as patch:
        patch.setattr(web.state, "settings", None)
        defect_page = await web.client.get("/status")
    return [
        unavailable,
        unavailable_page,
        defect,
        defect_page,
        await web.client.get("/"),
        await web.client.get("/api/state"),
        await web.client.get("/api/runs"),
        await web.client.get("/static/css/tidegate.css"),
        await web.client.get("/static/nothing.css"),
        await web.client.get("/nothing"),
        await web.client.get("/api/nothing"),
        await web.client.post("/api/state"),
        await web.client.get("/api/host/series?px=1"),
        await web.client.get("/health"),
        await web.client.get("/health", headers={"host": "evil.example"}),
        await web.client.get("/api/state", headers={"origin": "null"}),
        await web.stranger.get("/"),
        await web.stranger.get("/api/state"),
        await web.stranger.get("/login?token=x"),
    ]


async def test_every_answer_has_the_headers(web: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = await _answers(web, monkeypatch)
    assert {answer.status_code for answer in answers} >= {200, 400, 401, 403, 404, 405, 421, 500, 503}
    for answer in answers:
        headers = answer.headers
        assert headers["content-security-policy"] == CSP, answer
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
        assert "permissions-policy" in headers
        assert "no-store" in headers["cache-control"] or answer.request.url.path.startswith("/static/")
        assert not [name for name in headers if name.startswith("access-control-")]
        assert "server" not in headers


async def test_a_defect_says_nothing_of_the_inside(web: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> None:
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(type(web.state.hub), "status", lambda self: explode())
    answer = await web.client.get("/api/status")
    assert answer.status_code == 500
    assert answer.json()["ok"] is False
    assert "secret" not in answer.text


async def test_csp_has_no_way_out() -> None:
    policy = dict(item.split(" ", 1) for item in CSP.split("; "))
    assert policy["script-src"] == policy["default-src"] == policy["connect-src"] == "'self'"
    assert policy["object-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert "unsafe-eval" not in CSP
