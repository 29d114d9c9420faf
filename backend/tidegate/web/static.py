"""Style sheets, scripts and the Plotly bundle.

Our own files are few and small and may change with any update, so browsers ask each time and mostly hear "not
modified": the ETag is of the content, since the files of an installed wheel all bear the same date. The bundle is large
and its URL names its version, so it is kept for good; it is compressed once, in a thread, when it is first wanted.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""Media types by suffix; a file of another kind is not served."""

IMMUTABLE: Final = "public, max-age=31536000, immutable"


def frontend_dir() -> Path:
    """Where templates and static files are: inside the installed package, or in the checkout of an editable install.

    Raises:
        FileNotFoundError: in neither.
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "frontend", package.parents[1] / "frontend"):
        if (candidate / "templates").is_dir():
            return candidate
    raise FileNotFoundError(f"no frontend in {package} or {package.parents[1]}: the installation is incomplete")


def _plotly_bundle() -> Path:
    # find_spec does not import the package, which would take a second.
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the plotly package is not installed")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


@dataclass(frozen=True, slots=True)
class _File:
    stamp: tuple[int, int]
    data: bytes
    etag: str


class StaticFiles:
    """Serves ``/static/``.

    Args:
        directory: the files; nothing outside of it is ever read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._files: dict[Path, _File] = {}
        self._plotly_name = f"plotly-{importlib.metadata.version('plotly')}.min.js"
        self._plotly_gzip: asyncio.Task[bytes] | None = None

    @property
    def plotly_url(self) -> str:
        """Path of the bundle; another version has another path."""
        return f"/static/{self._plotly_name}"

    async def respond(self, request: Request, path: str) -> Response:
        """Answer for ``/static/<path>``; ``path`` as in the URL.

        Raises:
            HTTPException: 404.
        """
        name = unquote(path)
        if name == self._plotly_name:
            return await self._plotly(request)
        file = await asyncio.to_thread(self._read, name)
        if file is None:
            raise HTTPException(404, "There is no such file.")
        headers = {"cache-control": "no-cache", "etag": file.etag}
        if file.etag in [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=headers)
        return Response(file.data, media_type=TYPES[Path(name).suffix], headers=headers)

    def warm(self) -> None:
        """Begin to compress the bundle, so that the first page does not wait for it."""
        if self._plotly_gzip is None:
            self._plotly_gzip = asyncio.create_task(asyncio.to_thread(_compress), name="tidegate-plotly")

    async def _plotly(self, request: Request) -> Response:
        headers = {"cache-control": IMMUTABLE, "vary": "accept-encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            data = await asyncio.to_thread(_plotly_bundle().read_bytes)
            return Response(data, media_type=TYPES[".js"], headers=headers)
        self.warm()
        assert self._plotly_gzip is not None  # noqa: S101 - warm made it
        # One client that leaves must not take the work away from the others.
        data = await asyncio.shield(self._plotly_gzip)
        return Response(data, media_type=TYPES[".js"], headers={**headers, "content-encoding": "gzip"})

    def _read(self, name: str) -> _File | None:
        if "\0" in name or Path(name).suffix not in TYPES:
            return None
        try:
            path = (self._directory / name).resolve()
            if not path.is_relative_to(self._directory):
                return None
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            known = self._files.get(path)
            if known is not None and known.stamp == stamp:
                return known
            data = path.read_bytes()
        except (OSError, ValueError):
            return None
        etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        file = self._files[path] = _File(stamp, data, etag)
        return file


def _compress() -> bytes:
    return gzip.compress(_plotly_bundle().read_bytes(), 6, mtime=0)
