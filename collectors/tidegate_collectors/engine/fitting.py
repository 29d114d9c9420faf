"""What rebuilding, restoring and saving KV blocks costs on this engine, fitted to measured times. Pure.

rebuild(n) = a0 + a1 n + a2 n^2 seconds for n tokens (attention makes the square); restore and save are
t0 + bytes / bytes_per_s. Least squares; a coefficient that comes out negative is left out and the others are fitted
again, since no work takes less time for being more. Before there are enough samples the values are assumed and say so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

MAX_SAMPLES: Final = 256
SHOWN_SAMPLES: Final = 64
MIN_REBUILDS: Final = 8
MIN_TRANSFERS: Final = 4
MAX_BREAKEVEN_TOKENS: Final = 1e8

Sample = tuple[float, float]
"""Amount (tokens or bytes) and seconds."""


class Curve(Struct, frozen=True, kw_only=True):
    """a0 + a1 x + a2 x^2 seconds; R2 of the fit over ``n`` samples. ``source``: prior where it is assumed."""

    a0_s: float
    a1_s: float
    a2_s: float = 0.0
    r2: float = 0.0
    n: int = 0
    source: Literal["measured", "prior"] = "prior"

    def seconds(self, amount: float) -> float:
        """Time for that amount."""
        return self.a0_s + self.a1_s * amount + self.a2_s * amount * amount if amount > 0.0 else 0.0


PRIOR_REBUILD: Final = Curve(a0_s=0.0, a1_s=60e-6)
PRIOR_TRANSFER: Final = Curve(a0_s=1e-3, a1_s=1e-10)
"""Assumed until measured: 60 microseconds a token; a millisecond and 10 GB/s."""


class Calibration(Struct, frozen=True, kw_only=True):
    """The three curves; ``overlap`` is the share of the time of a copy to the host that delays nobody.

    ``breakeven_tokens``: above so many tokens a restore is faster than a rebuild; None: never, or not measured.
    """

    rebuild: Curve = PRIOR_REBUILD
    restore: Curve = PRIOR_TRANSFER
    save: Curve = PRIOR_TRANSFER
    overlap: float = 0.0
    breakeven_tokens: float | None = None

    def rebuild_s(self, tokens: float, kept_tokens: float = 0.0) -> float:
        """Time to prefill ``tokens`` of which the first ``kept_tokens`` are there: R(n) - R(k)."""
        return max(0.0, self.rebuild.seconds(tokens) - self.rebuild.seconds(kept_tokens))

    def restore_s(self, size_bytes: float) -> float:
        """Time to bring so many bytes back."""
        return self.restore.seconds(size_bytes)

    def save_s(self, size_bytes: float) -> float:
        """What a copy of so many bytes to the host delays anybody."""
        return self.save.seconds(size_bytes) * (1.0 - self.overlap)


class Calibrator:
    """Collects samples, the newest :data:`MAX_SAMPLES` of each kind, and fits.

    Args:
        kv_bytes_per_token: for the break-even.
    """

    def __init__(self, kv_bytes_per_token: int) -> None:
        self._bytes_per_token = kv_bytes_per_token
        self.rebuilds: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.restores: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.saves: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._exposed_s: deque[float] = deque(maxlen=MAX_SAMPLES)

    def add_rebuild(self, tokens: int, seconds: float) -> None:
        """A step that did nothing but prefill ``tokens`` took so long."""
        if tokens > 0 and seconds > 0.0:
            self.rebuilds.append((float(tokens), seconds))

    def add_restore(self, size_bytes: int, seconds: float) -> None:
        """A copy from the host took so long."""
        if size_bytes > 0 and seconds > 0.0:
            self.restores.append((float(size_bytes), seconds))

    def add_save(self, size_bytes: int, seconds: float, exposed_s: float) -> None:
        """A copy to the host took so long, of which somebody waited ``exposed_s``."""
        if size_bytes > 0 and seconds > 0.0:
            self.saves.append((float(size_bytes), seconds))
            self._exposed_s.append(min(max(exposed_s, 0.0), seconds))

    def fit(self) -> Calibration:
        """The curves of what was measured so far."""
        rebuild = _curve(self.rebuilds, 2, MIN_REBUILDS) or PRIOR_REBUILD
        restore = _curve(self.restores, 1, MIN_TRANSFERS) or PRIOR_TRANSFER
        save = _curve(self.saves, 1, MIN_TRANSFERS) or PRIOR_TRANSFER
        taken = sum(seconds for _, seconds in self.saves)
        overlap = 1.0 - sum(self._exposed_s) / taken if taken > 0.0 else 0.0
        measured = rebuild.source == "measured" and restore.source == "measured"
        return Calibration(
            rebuild=rebuild,
            restore=restore,
            save=save,
            overlap=overlap,
            breakeven_tokens=breakeven_tokens(rebuild, restore, self._bytes_per_token) if measured else None,
        )

    def samples(self) -> dict[str, list[list[float]]]:
        """The newest samples of each kind, for a plot."""
        kinds = {"rebuild": self.rebuilds, "restore": self.restores, "save": self.saves}
        return {name: [list(sample) for sample in list(kind)[-SHOWN_SAMPLES:]] for name, kind in kinds.items()}


def breakeven_tokens(rebuild: Curve, restore: Curve, kv_bytes_per_token: int) -> float | None:
    """The number of tokens from which on a restore is faster than a rebuild; None where no prompt is that long.

    The positive root of rebuild(n) = restore(n bytes_per_token): the restore begins higher and rises more slowly.
    """
    constant = rebuild.a0_s - restore.a0_s
    slope = rebuild.a1_s - restore.a1_s * kv_bytes_per_token
    square = rebuild.a2_s
    if constant >= 0.0 and slope >= 0.0:
        return 0.0
    if square <= 0.0:
        return _within(-constant / slope) if slope > 0.0 else None
    discriminant = slope * slope - 4.0 * square * constant
    if discriminant < 0.0:
        return 0.0  # they never meet, and the rebuild begins higher
    root: float = discriminant**0.5
    # Of the two forms of the same root the one that adds: the other loses all digits where the square hardly matters.
    return _within(-2.0 * constant / (slope + root) if slope >= 0.0 else (root - slope) / (2.0 * square))


def _within(tokens: float) -> float | None:
    return tokens if tokens <= MAX_BREAKEVEN_TOKENS else None


def _curve(samples: Sequence[Sample], degree: int, least: int) -> Curve | None:
    """The fit of a polynomial of that degree without negative coefficients; None without enough to fit."""
    distinct = len({amount for amount, _ in samples})
    if len(samples) < least or distinct < 2:
        return None
    scale = max(amount for amount, _ in samples)  # powers of bytes would lose all their digits
    powers = list(range(min(degree, distinct - 1) + 1))
    points = [(amount / scale, seconds) for amount, seconds in samples]
    while True:
        fitted = _least_squares(points, powers)
        if fitted is None:
            return None
        negative = [power for power, value in zip(powers, fitted, strict=True) if value < 0.0]
        if not negative:
            break
        powers.remove(max(negative) if max(negative) != 1 or len(powers) == 1 else min(negative))
        if not powers:
            return None
    coefficients = dict(zip(powers, fitted, strict=True))
    a0, a1, a2 = (coefficients.get(power, 0.0) / scale**power for power in range(3))
    mean = sum(seconds for _, seconds in samples) / len(samples)
    total = sum((seconds - mean) ** 2 for _, seconds in samples)
    missed = sum((a0 + a1 * amount + a2 * amount * amount - seconds) ** 2 for amount, seconds in samples)
    return Curve(
        a0_s=a0, a1_s=a1, a2_s=a2, r2=1.0 - missed / total if total > 0.0 else 1.0, n=len(samples), source="measured"
    )


def _least_squares(points: Sequence[Sample], powers: Sequence[int]) -> list[float] | None:
    """Coefficients of the powers, by the normal equations; None where they have no one solution."""
    size = len(powers)
    rows = [[sum(x ** (p + q) for x, _ in points) for q in powers] + [sum(y * x**p for x, y in points)] for p in powers]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) < 1e-12:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(size):
            if row != column:
                factor = rows[row][column] / rows[column][column]
                rows[row] = [value - factor * of for value, of in zip(rows[row], rows[column], strict=True)]
    return [rows[index][size] / rows[index][index] for index in range(size)]
