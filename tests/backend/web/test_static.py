"""Files of ours: types, revalidation, the Plotly bundle, and nothing from outside the directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response

from tidegate.web.static import StaticFiles, frontend_dir


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    (tmp_path / "secret.txt").write_text("secret")
    root = tmp_path / "static"
    (root / "js").mkdir(parents=True)
    (root / "js" / "a.js").write_text("let a = 1;")
    (root / "b.css").write_text("b {}")
    (root / "c.svg").write_text("<svg/>")
    (root / "odd.exe").write_text("MZ")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    static = StaticFiles(root)
    app = FastAPI()

    @app.get("/static/{path:path}")
    async def serve(request: Request, path: str) -> Response:
        return await static.respond(request, path)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as found:
        found.headers["x-plotly"] = static.plotly_url
        yield found


@pytest.mark.parametrize(
    ("name", "kind"), [("js/a.js", "text/javascript"), ("b.css", "text/css"), ("c.svg", "image/svg+xml")]
)
async def test_types(client: httpx.AsyncClient, name: str, kind: str) -> None:
    answer = await client.get(f"/static/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].split(";")[0] == kind
    assert answer.headers["cache-control"] == "no-cache"


async def test_revalidation(client: httpx.AsyncClient, tmp_path: Path) -> None:
    first = await client.get("/static/b.css")
    again = await client.get("/static/b.css", headers={"if-none-match": f'"x", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    (tmp_path / "static" / "b.css").write_text("c {}, larger")
    changed = await client.get("/static/b.css", headers={"if-none-match": first.headers["etag"]})
    assert (changed.status_code, changed.text) == (200, "c {}, larger")


@pytest.mark.parametrize(
    "path",
    ["none.js", "", "js", "js/", "../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "/etc/passwd", "link.txt",
     "odd.exe", "b.css%00", "js/%2e%2e/%2e%2e/secret.txt", "x" * 5000 + ".js"],
)  # fmt: skip
async def test_nothing_else_is_served(client: httpx.AsyncClient, path: str) -> None:
    request = client.build_request("GET", "http://x/static/")
    request.url = request.url.copy_with(raw_path=b"/static/" + path.encode())
    assert (await client.send(request)).status_code == 404


async def test_plotly_is_compressed_once_and_kept_for_good(client: httpx.AsyncClient) -> None:
    url = client.headers["x-plotly"]
    assert url.startswith("/static/plotly-")
    packed = await client.get(url, headers={"accept-encoding": "gzip, br"})
    plain = await client.get(url, headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content  # httpx unpacks
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    for answer in (packed, plain):
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["vary"] == "accept-encoding"
        assert answer.headers["content-type"].startswith("text/javascript")
    assert b"Plotly" in plain.content


def test_frontend_is_found() -> None:
    assert (frontend_dir() / "templates" / "base.html").is_file()
