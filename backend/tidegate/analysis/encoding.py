"""Arrays in JSON, in the form that Plotly reads without parsing numbers."""

from __future__ import annotations

from base64 import b64encode
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray


class F8Json(TypedDict):
    """A typed array: ``bdata`` is base64 of little-endian float64."""

    dtype: str
    bdata: str


def f8(values: NDArray[np.float64] | NDArray[np.int64]) -> F8Json:
    """The values as a typed array of JSON; NaN means unknown."""
    return {"dtype": "f8", "bdata": b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode("ascii")}


def milliseconds(t_us: NDArray[np.int64]) -> NDArray[np.float64]:
    """Microseconds as the milliseconds that browsers count in, fractions kept."""
    return t_us / 1000.0
