"""Every number and word shown on a page: what it means, how it is computed, where it comes from, what it is not."""

from __future__ import annotations

from typing import Final

from ._definition import Definition
from .calls import CALLS
from .charts import CHARTS
from .engines import ENGINES
from .health import HEALTH
from .hosts import HOSTS
from .playhead import PLAYHEAD
from .runs import RUNS
from .sessions import SESSIONS
from .turns import TURNS

DEFINITIONS: Final[tuple[Definition, ...]] = (
    *SESSIONS,
    *CALLS,
    *TURNS,
    *ENGINES,
    *CHARTS,
    *PLAYHEAD,
    *HOSTS,
    *RUNS,
    *HEALTH,
)
"""All definitions, in the order of the page."""

__all__ = ["DEFINITIONS", "Definition"]
