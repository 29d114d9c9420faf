"""What the playhead needs: the marks of its track, and the step to the next or previous event."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from tidegate.analysis.series import MAX_PX
from tidegate.runs.history import KINDS
from tidegate.store.marks import MARK_KINDS
from tidegate.web.errors import Refusal
from tidegate.web.lookup import stored_event
from tidegate.web.responses import json_response
from tidegate.web.shown import run_of, wanted

router: Final = APIRouter(prefix="/api")

Direction = Literal["next", "previous"]


class MarksCache:
    """Answers for runs that have ended, by history and width: they do not change any more."""

    def __init__(self, most: int = 32) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[object, int], dict[str, Any]] = OrderedDict()

    def get(self, key: tuple[object, int]) -> dict[str, Any] | None:
        """What is kept under the key."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: tuple[object, int], answer: dict[str, Any]) -> None:
        """Keep it; the one that was used longest ago makes room."""
        self._kept[key] = answer
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)


@router.get("/marks")
async def marks(request: Request, px: Annotated[int, Query(ge=1, le=MAX_PX)] = 800) -> Response:
    """Events by kind in the columns of the playhead's track, over the whole run; calls where they start."""
    run = await run_of(request)
    cache: MarksCache = request.app.state.marks
    key = (run.history, px)  # a run that is opened anew has another history
    answer = None if run.writing else cache.get(key)
    if answer is None:
        to_us = max(run.end_us, run.start_us + 1)
        counts = await run.store.reads.marks(run.run.id, run.start_us, to_us, px)
        columns = [{"kind": kind, "counts": counts[kind]} for kind in MARK_KINDS]
        answer = {"from_us": run.start_us, "to_us": to_us, "px": px, "columns": columns}
        if not run.writing:
            cache.put(key, answer)
    return json_response(answer)


@router.get("/step")
async def step(
    request: Request,
    direction: Direction = "next",
    kinds: Annotated[str, Query(max_length=200)] = "",
    session: Annotated[str | None, Query(max_length=4096)] = None,
) -> Response:
    """The next or previous event after or before the position, and the instant at which it is shown; null for none."""
    chosen = _kinds(kinds)
    run = await run_of(request)
    at_us = run.within(wanted(request)[1])  # without the state there, for which a step has no use
    row = await run.history.step(at_us, forward=direction == "next", kinds=chosen, session=session or None)
    if row is None:
        return json_response({"event": None, "at_us": None})
    return json_response({"event": stored_event(row), "at_us": await run.history.at_of(row.ord)})


def _kinds(text: str) -> frozenset[str]:
    given = frozenset(part.strip() for part in text.split(",") if part.strip())
    if given - KINDS:
        names = ", ".join(kind for kind in MARK_KINDS if kind in KINDS)
        raise Refusal(400, f"kinds: expected some of {names}, separated by commas.", "Leave it out for all of them.")
    return given or KINDS
