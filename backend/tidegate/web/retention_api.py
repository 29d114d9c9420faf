"""The API of retention: what limits would remove, and removing it."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tidegate.errors import UnavailableError
from tidegate.runs.library import Library
from tidegate.runs.retention import apply, preview
from tidegate.store.retention import Limits
from tidegate.web.appstate import AppState, app_state
from tidegate.web.responses import json_response

router: Final = APIRouter(prefix="/api")

MAX_DAYS: Final = 36_500
MAX_BYTES: Final = 1 << 53


class Wanted(BaseModel):
    """Body of the request that applies limits."""

    max_age_days: float | None = Field(default=None, ge=0, le=MAX_DAYS, allow_inf_nan=False)
    max_bytes: int | None = Field(default=None, ge=0, le=MAX_BYTES)


@router.get("/retention")
async def would_go(
    request: Request,
    max_age_days: Annotated[float | None, Query(ge=0, le=MAX_DAYS, allow_inf_nan=False)] = None,
    max_bytes: Annotated[int | None, Query(ge=0, le=MAX_BYTES)] = None,
) -> Response:
    """What limits would remove; without any, those of the settings."""
    state = app_state(request.scope)
    limits = Limits(max_age_days, max_bytes) or Limits(state.settings.keep_days, state.settings.keep_bytes)
    return json_response((await preview(_library(state), limits)).to_dict())


@router.post("/retention")
async def go(request: Request, wanted: Wanted) -> Response:
    """Remove what is over the limits."""
    state = app_state(request.scope)
    limits = Limits(wanted.max_age_days, wanted.max_bytes)
    if not limits:
        raise HTTPException(400, "Give max_age_days, max_bytes or both: without a limit nothing would be removed.")
    if state.replay:
        raise HTTPException(409, "A recording is shown; what was uploaded here goes when the backend ends.")
    library = _library(state)
    store = state.opened.store if state.opened is not None else None
    return json_response((await apply(library, store, limits)).to_dict())


def _library(state: AppState) -> Library:
    if state.library is None:
        raise UnavailableError("the backend is starting or ending; try again")
    return state.library
