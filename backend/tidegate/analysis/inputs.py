"""What the store gives of one session for its charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .columns import I8, CallSpan, MemColumns, PsiColumns, SchedColumns


@dataclass(frozen=True, slots=True)
class SessionInput:
    """What the charts of one session are made of.

    Attributes:
        mem, sched, psi: samples of a span; of each subject, the last before it and the first behind it included.
        calls: the calls of the session that matter in that span.
        ended_us: end of the session; None while it runs.
        since_us: since when the session was observed; None: since the start of the chart.
        highest: see :func:`~tidegate.analysis.layers.memory_layers`.
        sampled_us: times of the memory samples of any subject, the last before the span first; None: of ``mem``.
    """

    mem: MemColumns = field(default_factory=MemColumns)
    sched: SchedColumns = field(default_factory=SchedColumns)
    psi: PsiColumns = field(default_factory=PsiColumns)
    calls: Sequence[CallSpan] = ()
    ended_us: int | None = None
    since_us: int | None = None
    highest: Mapping[str, int] = field(default_factory=dict)
    sampled_us: I8 | None = None

    @property
    def sample_times_us(self) -> I8:
        """When memory was sampled; elsewhere is silence."""
        return self.mem.t_us if self.sampled_us is None else self.sampled_us
