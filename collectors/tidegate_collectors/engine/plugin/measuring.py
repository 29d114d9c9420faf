"""What a prefill costs on this engine, from the steps that did nothing else."""

from __future__ import annotations

from typing import Any, Final

from tidegate_collectors.engine.fitting import Calibration, Calibrator, Curve
from tidegate_collectors.records import KvCalibration

_TELL_S: Final = 5.0


class Measuring:
    """Times steps and keeps the fit.

    Args:
        kv_bytes_per_token: bytes of KV that a token takes.
        overlapping: steps overlap (asynchronous scheduling), so none can be timed by itself.
    """

    def __init__(self, kv_bytes_per_token: int, *, overlapping: bool) -> None:
        self._calibrator = Calibrator(kv_bytes_per_token)
        self._bytes_per_token = kv_bytes_per_token
        self._overlapping = overlapping
        self._tokens = 0
        self._began_s = 0.0
        self._samples = 0
        self._told_s = 0.0
        self._told_samples = 0
        self._fitted = Calibration()
        self._fitted_samples = 0

    def planned(self, output: Any, now_s: float) -> None:
        """A step was planned; it counts when it prefills one prompt from nothing and does nothing else."""
        self._tokens = 0
        new = output.scheduled_new_reqs
        if self._overlapping or len(new) != 1 or len(output.num_scheduled_tokens) != 1:
            return
        if new[0].num_computed_tokens == 0 and output.total_num_scheduled_tokens > 1:
            self._tokens, self._began_s = output.total_num_scheduled_tokens, now_s

    def over(self, now_s: float) -> None:
        """It is over."""
        if self._tokens:
            self._calibrator.add_rebuild(self._tokens, now_s - self._began_s)
            self._tokens = 0
            self._samples += 1

    def fitted(self) -> Calibration:
        """The fit of what was measured so far. Made when somebody asks: it takes as long as several decisions."""
        if self._fitted_samples != self._samples:
            self._fitted, self._fitted_samples = self._calibrator.fit(), self._samples
        return self._fitted

    def due(self, engine: str, t_us: int, now_s: float) -> KvCalibration | None:
        """The record of the fit, when it has changed and was not told for a while."""
        if self._samples == self._told_samples or now_s - self._told_s < _TELL_S:
            return None
        calibration = self.fitted()
        if calibration.rebuild.source == "prior":
            return None
        self._told_s, self._told_samples = now_s, self._samples
        return KvCalibration(
            t=t_us, engine=engine, rebuild=_fields(calibration.rebuild), samples=self._calibrator.samples(),
            breakeven_tokens=calibration.breakeven_tokens, kv_bytes_per_token=self._bytes_per_token,
        )  # fmt: skip


def _fields(curve: Curve) -> dict[str, float]:
    return {"a0_s": curve.a0_s, "a1_s": curve.a1_s, "a2_s": curve.a2_s, "r2": curve.r2, "n": float(curve.n)}
