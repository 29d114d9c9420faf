"""CPU at one instant, rebuilt from a percentage that is the average since a container started.

``podman stats --no-stream`` (and with it AgentCgroup's ``cpu_percent``) divides all CPU time used by all time passed.
Times the container's age that is the CPU time used, which never falls; its growth between two samples is the instant
load. The age at the first sample is not recorded: it is chosen so that the CPU time never falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .columns import F8

MAX_AGE_S: Final = 6.0
"""Greatest age at the first sample that is tried; a sampler that starts later than that sees no start."""

_STEP_S: Final = 0.05
_ROUNDING: Final = 0.005 / 100
"""The percentage is written with two digits."""

_EPSILON_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class RunningAverage:
    """CPU time behind a running average.

    Attributes:
        age_s: age of the container at the first sample, as chosen.
        used_s: CPU time used at each sample, never falling.
        falls: steps at which the CPU time falls by more than the rounding of the percentage explains.
        steps: steps in all.
    """

    age_s: float
    used_s: F8
    falls: int
    steps: int


def rebuild(epoch_s: F8, percent: F8) -> RunningAverage:
    """The CPU time used at each sample.

    Args:
        epoch_s: times of the samples in seconds, rising.
        percent: average load since the start, in percent of one core.
    """
    if len(epoch_s) == 0:
        return RunningAverage(0.0, np.empty(0), 0, 0)
    since_s = epoch_s - epoch_s[0]
    share = percent / 100
    age_s, falls = 0.0, len(epoch_s)
    # With an age that is too small nothing falls, it only moves what was used before the first sample behind it; with
    # one that is too great something does, once the container idles. So the greatest with the fewest falls is nearest.
    for step in range(round(MAX_AGE_S / _STEP_S) + 1):
        tried_s = step * _STEP_S
        growth = np.diff(share * (since_s + tried_s))
        rounding = _ROUNDING * (since_s[1:] + since_s[:-1] + 2 * tried_s) + _EPSILON_S
        fallen = int(np.count_nonzero(growth < -rounding))
        if fallen <= falls:
            age_s, falls = tried_s, fallen
    used_s: F8 = np.maximum.accumulate(share * (since_s + age_s))
    return RunningAverage(age_s, used_s, falls, len(epoch_s) - 1)
