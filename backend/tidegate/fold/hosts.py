"""Records about the host, its abilities, and what was lost on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_collectors.records import Capability, HostSample, Loss

from . import engines
from .limits import cut, short_id
from .model import LostCount
from .sessions import source_gone

if TYPE_CHECKING:
    from .state import State

OTHER_PLACE = ("(other)", "")
"""Key of losses at more places than are kept apart."""


def host_sample(state: State, record: HostSample) -> None:
    """The host at one instant, and what the collector took of it since the last sample."""
    host = state.host(record.host)
    if host is None or record.t < host.last_t_us:
        return
    host.last_t_us = record.t
    host.mem_available_bytes = record.mem_available_bytes
    host.mem_total_bytes = record.mem_total_bytes
    host.swap_used_bytes = record.swap_used_bytes
    host.cpu_busy_us = record.cpu_busy_us
    host.window_us = record.window_us
    own = record.own
    if own is None:
        return
    host.own_cpu_us = own.cpu_us
    host.own_rss_bytes = own.rss_bytes
    host.own_bpf_run_us = own.bpf_run_us
    host.own_events = (host.own_events or 0) + own.events


def capability(state: State, record: Capability) -> None:
    """The latest word on one ability."""
    key = (short_id(record.host), record.plane, cut(record.name))
    if key in state.capabilities or len(state.capabilities) < state.limits.names:
        state.capabilities[key] = (record.available, cut(record.reason))


def loss(state: State, record: Loss) -> None:
    """Records that were not kept. Their time is unknown: ``t`` is when it was noticed."""
    key: tuple[str, str] = (record.where, cut(record.of))
    if key not in state.lost and len(state.lost) >= state.limits.names:
        key = OTHER_PLACE
    known = state.lost.get(key)
    if known is None:
        state.lost[key] = LostCount(record.count, record.t)
    else:
        known.count += record.count
        known.last_t_us = max(known.last_t_us, record.t)
    state.session_of_known(record)
    if record.where == "link" and record.count == 0:
        source_gone(state, short_id(record.of))
        engines.source_gone(state, short_id(record.of))
    if state.tracker is not None:
        state.tracker.lost = True
