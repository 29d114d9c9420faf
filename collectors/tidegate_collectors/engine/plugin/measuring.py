"""What a prefill costs on this engine, from the steps that did one; and what copies to the host and back cost."""

from __future__ import annotations

from typing import Any, Final

from tidegate_collectors.engine.fitting import SHOWN_SAMPLES, Calibration, Calibrator, Curve
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
        """A step was planned; it counts when it prefills one prompt, mostly from nothing, beside nothing but decodes.

        What a step costs anyway, the decodes of others among it, is the constant of the curve. In a busy engine steps
        that do nothing but one prefill are too rare to learn from.
        """
        self._tokens = 0
        new = output.scheduled_new_reqs
        if self._overlapping or len(new) != 1:
            return
        tokens = output.num_scheduled_tokens[new[0].req_id]
        others = output.total_num_scheduled_tokens - tokens
        if tokens > 1 and new[0].num_computed_tokens <= tokens // 4 and others < len(output.num_scheduled_tokens):
            self._tokens, self._began_s = tokens, now_s

    def over(self, now_s: float) -> None:
        """It is over."""
        if self._tokens:
            self._calibrator.add_rebuild(self._tokens, now_s - self._began_s)
            self._tokens = 0
            self._samples += 1

    def saved(self, size_bytes: int, copy_s: float, exposed_s: float) -> None:
        """A copy to the host took so long, of which somebody waited ``exposed_s``."""
        self._calibrator.add_save(size_bytes, copy_s, exposed_s)
        self._samples += 1

    def restored(self, size_bytes: int, waited_s: float) -> None:
        """A request waited so long for its blocks from the host."""
        self._calibrator.add_restore(size_bytes, waited_s)
        self._samples += 1

    def fitted(self, *, newest: bool = False) -> Calibration:
        """The fit of what was measured so far.

        Made when somebody asks and there is an eighth more to fit, or anything more with ``newest``: it takes as long
        as many decisions.
        """
        more = self._samples - self._fitted_samples
        if more > (0 if newest else min(self._fitted_samples, SHOWN_SAMPLES) // 8):
            self._fitted, self._fitted_samples = self._calibrator.fit(), self._samples
        return self._fitted

    def due(self, engine: str, t_us: int, now_s: float) -> KvCalibration | None:
        """The record of the fit, when it has changed and was not told for a while."""
        if self._samples == self._told_samples or now_s - self._told_s < _TELL_S:
            return None
        calibration = self.fitted(newest=True)
        if all(one.source == "prior" for one in (calibration.rebuild, calibration.restore, calibration.save)):
            return None
        self._told_s, self._told_samples = now_s, self._samples
        return KvCalibration(
            t=t_us, engine=engine, rebuild=_rebuild(calibration.rebuild), samples=self._calibrator.samples(),
            restore=_transfer(calibration.restore, "t0_s"),
            save=_transfer(calibration.save, "s0_s", overlap=calibration.overlap),
            breakeven_tokens=calibration.breakeven_tokens, kv_bytes_per_token=self._bytes_per_token,
        )  # fmt: skip


def _transfer(curve: Curve, constant: str, **more: float) -> dict[str, float]:
    """Of a copy; empty while nothing was measured. A cost that does not grow with the size has no throughput."""
    if curve.source == "prior":
        return {}
    speed = {"bytes_per_s": 1.0 / curve.a1_s} if curve.a1_s > 0.0 else {}
    return {constant: curve.a0_s, "r2": curve.r2, "n": float(curve.n)} | speed | more


def _rebuild(curve: Curve) -> dict[str, float]:
    if curve.source == "prior":
        return {}
    return {"a0_s": curve.a0_s, "a1_s": curve.a1_s, "a2_s": curve.a2_s, "r2": curve.r2, "n": float(curve.n)}
