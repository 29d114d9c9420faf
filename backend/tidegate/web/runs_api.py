"""The API of the runs: which there are, imports, and what may be done with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from tidegate.exporters.jsonl import export_lines
from tidegate.exporters.packing import ENDINGS, packed
from tidegate.importers import FORMATS, format_named
from tidegate.runs.folder import safe_id
from tidegate.runs.jobs import Jobs
from tidegate.runs.library import Library, RunBusyError
from tidegate.runs.messages import TIDEGATE
from tidegate.store.retention import give_back
from tidegate.web.appstate import app_state
from tidegate.web.responses import json_response

router: Final = APIRouter(prefix="/api")

_FORMATS: Final = [
    {"name": TIDEGATE, "title": "Tidegate recording"},
    *({"name": known.name, "title": known.title} for known in FORMATS),
]
_MEDIA: Final = {"none": "application/x-ndjson", "gz": "application/gzip", "zst": "application/zstd"}


class Renamed(BaseModel):
    """Body of the request that gives a run another title."""

    title: str


@router.get("/runs")
async def runs(request: Request) -> Response:
    """All runs, all imports, and the formats that can be imported."""
    library, jobs = _runs(request)
    state = app_state(request.scope)
    return json_response(
        {
            "runs": await library.list(),
            "jobs": [job.to_dict() for job in jobs.list()],
            "formats": _FORMATS,
            "max_upload_bytes": jobs.max_upload_bytes,
            # What is uploaded to a backend that shows a recording goes when it ends.
            "temporary": state.replay,
        }
    )


@router.post("/runs")
async def upload(
    request: Request,
    name: Annotated[str, Query(max_length=1000)] = "upload",
    format: Annotated[str | None, Query(max_length=100)] = None,  # noqa: A002 - the name in the URL
) -> Response:
    """Take a file, written to the disk as it comes, and import it when its turn comes."""
    _, jobs = _runs(request)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/octet-stream":
        raise HTTPException(415, "Send the file's bytes as application/octet-stream.")
    if format and format != TIDEGATE:
        format_named(format)
    length = request.headers.get("content-length", "")
    expected = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None
    if expected is not None and expected > jobs.max_upload_bytes:
        raise HTTPException(413, jobs.too_large())
    job = await jobs.receive(name, _chunks(request), format_name=format or None, length=expected)
    return json_response({"job": job.to_dict()}, 202)


@router.patch("/runs/{run_id}")
async def rename(request: Request, run_id: str, body: Renamed) -> Response:
    """Give a run another title."""
    library, _ = _runs(request)
    await library.rename(run_id, body.title)
    return json_response({"run": await library.find(run_id)})


@router.delete("/runs/{run_id}")
async def delete(request: Request, run_id: str) -> Response:
    """Delete a run for good."""
    library, _ = _runs(request)
    try:
        await library.delete(run_id)
    except RunBusyError as error:
        raise HTTPException(409, str(error)) from None
    opened = app_state(request.scope).opened
    store = opened.store if opened is not None and opened.live is not None else None
    # The disk gets the room back after the answer, and in small steps.
    return Response(status_code=204, background=BackgroundTask(give_back, store) if store is not None else None)


@router.get("/runs/{run_id}/export")
async def export(
    request: Request,
    run_id: str,
    session: Annotated[str | None, Query(max_length=4096)] = None,
    compress: Literal["none", "gz", "zst"] = "none",
) -> Response:
    """A run, or one session of it, as JSON lines to download."""
    library, _ = _runs(request)
    opened = await library.open(run_id)
    lines = export_lines(opened.store.reads, opened.run.id, session=session or None)
    try:
        # The first chunk is read here, so that a session that does not exist is a 404 and not a broken download.
        first = await anext(lines)
    except StopAsyncIteration:
        first = b""
    # Held: a recording that is downloaded for an hour must not be closed for others that are opened meanwhile.
    chunks = packed(_held(library, run_id, first, lines), compress)
    # The title is in the name alone: the records stay as they came, so an import shows the title they have.
    title = opened.run.title if opened.run.title != opened.run.id else None
    name = safe_id("-".join(part for part in ("tidegate", opened.run.id, session, title) if part))
    headers = {
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="{name}.jsonl{ENDINGS[compress]}"',
    }
    return StreamingResponse(chunks, media_type=_MEDIA[compress], headers=headers)


@router.get("/jobs")
async def all_jobs(request: Request) -> Response:
    """All imports, the newest first."""
    _, jobs = _runs(request)
    return json_response({"jobs": [job.to_dict() for job in jobs.list()]})


@router.get("/jobs/{job_id}")
async def one_job(request: Request, job_id: str) -> Response:
    """One import."""
    _, jobs = _runs(request)
    return json_response({"job": jobs.get(job_id).to_dict()})


@router.delete("/jobs/{job_id}")
async def cancel(request: Request, job_id: str) -> Response:
    """End an import that is under way; forget one that is over."""
    _, jobs = _runs(request)
    await jobs.cancel(job_id)
    return Response(status_code=204)


def _runs(request: Request) -> tuple[Library, Jobs]:
    return app_state(request.scope).runs()


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk


async def _held(library: Library, run_id: str, first: bytes, rest: Any) -> AsyncIterator[bytes]:
    async with library.hold(run_id):
        yield first
        async for chunk in rest:
            yield chunk
