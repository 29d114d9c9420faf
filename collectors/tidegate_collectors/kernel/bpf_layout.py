"""Layouts of ``bpf/collector.h`` in Python: events, counters, tags. The map sizes are compared with them at load."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tidegate_collectors.kernel.observer import HIST_BUCKETS, Event, EventKind, SubjectStats

CONFIG = "=QQQII"
TAG = "=QQII"
TAG_REQUEST = struct.Struct("=QQIIIi")
STATS = f"=4q4qQ2q7Qq2Q{HIST_BUCKETS}Q"
RUNNING = "=QQQ"
EVENT = struct.Struct("=QQQQQIIII16s")

KIND_RUNTIME, KIND_CALL = 1, 2
SOURCE_RSS_STAT, SOURCE_MEMCG = 1, 2
LOSS_RING, LOSS_MAP = 0, 1

_STATS_FIELDS = 4 + 4 + 1 + 2 + 7 + 1 + 2
_NO_STATS = (0,) * (_STATS_FIELDS + HIST_BUCKETS)


@dataclass(frozen=True, slots=True)
class Tag:
    """Who a process is counted for."""

    subject: int
    session: int
    kind: int
    depth: int = 0

    def packed(self) -> tuple[int, int, int, int]:
        """Fields in the order of ``struct tg_tag``."""
        return self.subject, self.session, self.kind, self.depth


def no_stats() -> tuple[int, ...]:
    """Counters of a new subject."""
    return _NO_STATS


def stats_of(fields: tuple[int, ...]) -> SubjectStats:
    """Counters as the daemon reads them. Deltas of different CPUs may briefly make a size negative: it is 0 then."""
    (file, anon, swap, shmem, _used, peak, window_max, _grown, _start, start_session, max_session) = fields[:11]
    (oncpu, wait, wait_max, switches, forks, execs, exits, alive, bursts, ooms) = fields[11:_STATS_FIELDS]
    return SubjectStats(
        anon_bytes=max(anon, 0),
        file_bytes=max(file, 0),
        shmem_bytes=max(shmem, 0),
        swap_bytes=max(swap, 0),
        peak_bytes=peak,
        window_max_bytes=window_max,
        oncpu_us=oncpu // 1000,
        wait_us=wait // 1000,
        wait_max_us=wait_max // 1000,
        switches=switches,
        hist=list(fields[_STATS_FIELDS:]),
        forks=forks,
        execs=execs,
        exits=exits,
        alive=max(alive, 0),
        bursts=bursts,
        start_session_bytes=max(start_session, 0),
        max_session_bytes=max(max_session, 0),
        ooms=ooms,
    )


def event_of(record: bytes, offset_ns: int) -> Event:
    """One record of the ring buffer; ``offset_ns`` turns its time into UTC.

    Raises:
        ValueError: no such kind of event.
        struct.error: the record is too short.
    """
    t_ns, subject, a, b, cgroup_id, kind, pid, ppid, argv_bytes, comm = EVENT.unpack_from(record)
    argv: tuple[str, ...] = ()
    if argv_bytes:
        raw = record[EVENT.size : EVENT.size + argv_bytes]
        argv = tuple(part.decode(errors="replace") for part in raw.removesuffix(b"\0").split(b"\0"))
    name = comm.partition(b"\0")[0].decode(errors="replace")
    return Event(EventKind(kind), (t_ns + offset_ns) // 1000, subject, pid, ppid, a, b, cgroup_id, name, argv)
