"""Samples of one session or host as numpy columns: what the store reads and the series are made of.

All columns of one object have the same length and are in order of ``t_us`` (microseconds UTC). Unknown numbers are -1.
``subject`` says whose sample a row is: :data:`SESSION`, :data:`RUNTIME`, or ``i + 1`` for ``calls[i]``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

I8 = NDArray[np.int64]
F8 = NDArray[np.float64]

SESSION: Final = -1
RUNTIME: Final = 0
UNKNOWN: Final = -1


def _none() -> I8:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class MemColumns:
    """mem.sample rows. ``used_bytes`` is anonymous + shared memory, ``peak_bytes`` its highest so far (kernel)."""

    t_us: I8 = field(default_factory=_none)
    subject: I8 = field(default_factory=_none)
    used_bytes: I8 = field(default_factory=_none)
    peak_bytes: I8 = field(default_factory=_none)
    calls: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SchedColumns:
    """sched.sample rows: time on a CPU and waiting for one within ``window_us`` before ``t_us``."""

    t_us: I8 = field(default_factory=_none)
    subject: I8 = field(default_factory=_none)
    oncpu_us: I8 = field(default_factory=_none)
    wait_us: I8 = field(default_factory=_none)
    window_us: I8 = field(default_factory=_none)
    calls: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PsiColumns:
    """psi.sample rows: time in which some task stalled, within ``window_us`` before ``t_us``."""

    t_us: I8 = field(default_factory=_none)
    subject: I8 = field(default_factory=_none)
    memory_some_us: I8 = field(default_factory=_none)
    cpu_some_us: I8 = field(default_factory=_none)
    io_some_us: I8 = field(default_factory=_none)
    window_us: I8 = field(default_factory=_none)
    calls: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HostColumns:
    """host.sample rows of one host."""

    t_us: I8 = field(default_factory=_none)
    mem_total_bytes: I8 = field(default_factory=_none)
    mem_available_bytes: I8 = field(default_factory=_none)
    cpu_busy_us: I8 = field(default_factory=_none)
    window_us: I8 = field(default_factory=_none)


@dataclass(frozen=True, slots=True)
class CallSpan:
    """What a chart needs to know of a call."""

    id: str
    category: str
    started_us: int | None
    ended_us: int | None
    peak_bytes: int | None = None
    kept_bytes: int | None = None
    lost: bool = False
