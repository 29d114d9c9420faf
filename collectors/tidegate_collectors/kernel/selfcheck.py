"""Known truths that the programs must report before anybody believes them.

A wrong type layout does not fail, it gives plausible garbage. So a helper process of ours does things whose outcome we
know: it starts a thread, which is no process, and a program of a known name and arguments, grows by a known size, waits
for a CPU as /proc says it did, and exits with a known status. Takes about 0.1 s.
"""

from __future__ import annotations

import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tidegate_collectors.kernel import cgroup_layout, clock
from tidegate_collectors.kernel.libbpf import BpfError
from tidegate_collectors.kernel.observer import FIRST_KERNEL_SUBJECT, Event, EventKind, SubjectStats

SUBJECT = FIRST_KERNEL_SUBJECT - 1
"""Subject of the helper; the daemon counts from the other end."""

GROWTH_BYTES = 16 << 20
TOLERANCE_BYTES = 1 << 20
BUSY_S = 0.02
EXIT_CODE = 37
ARGUMENT = "tidegate-selfcheck"

_TIMEOUT_S = 5.0
_CPU_TOLERANCE_US = 5_000
_TRIES = 3
"""Of a helper's times: on a busy machine the kernel's account and ours may differ by a time slice or a stolen one."""
_HELPER = f"""
import _thread, mmap, os, signal, sys, time
signal.alarm({int(_TIMEOUT_S)})
def turn(word):
    os.write(1, word)
    os.read(0, 1)
turn(b"r")
ended = _thread.allocate_lock()
ended.acquire()
_thread.start_new_thread(ended.release, ())
ended.acquire()
argv = [{ARGUMENT!r}, "-I", "-S", "-c", ""]
_, status = os.waitpid(os.posix_spawn(sys.executable, argv, {{}}), 0)
turn(b"c")
m = mmap.mmap(-1, {GROWTH_BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, {GROWTH_BYTES}, 4096):
    m[at] = 1
until = time.process_time() + {BUSY_S}
while time.process_time() < until:
    pass
turn(b"g")
m.close()
os._exit({EXIT_CODE} if status == 0 else 1)
"""


class _TimesDifferError(BpfError):
    """The times of the helper are not those that /proc tells; a wrong layout gets them wrong each time."""


class Checked(Protocol):
    """What is needed of the observer."""

    def fileno(self) -> int: ...
    def read_events(self) -> list[Event]: ...
    def track_runtime(self, cgroup_id: int | None, subject: int, *, pid: int | None) -> None: ...
    def untrack(self, cgroup_id: int | None, subject: int) -> None: ...
    def stats(self, subject: int) -> SubjectStats | None: ...
    def session_stats(self, runtime_subject: int) -> SubjectStats | None: ...


def run(observer: Checked) -> int:
    """Check all truths; how long it took, in microseconds.

    Raises:
        BpfError: which truth was reported wrongly.
    """
    started = time.monotonic_ns()
    for attempt in range(1, _TRIES + 1):
        try:
            _run(observer)
            break
        except _TimesDifferError:
            if attempt == _TRIES:
                raise
    return (time.monotonic_ns() - started) // 1000


def _run(observer: Checked) -> None:
    helper = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _HELPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    calls: list[int] = []
    try:
        _check(observer, helper, calls)
    except BpfError:
        raise
    except OSError as error:  # TimeoutError and ProcessLookupError among them
        raise BpfError(f"self-check: the helper process failed: {error}") from error
    finally:
        if helper.poll() is None:
            helper.send_signal(signal.SIGKILL)
        helper.wait()
        for pipe in (helper.stdin, helper.stdout):
            if pipe:
                pipe.close()
        observer.read_events()
        for subject in (SUBJECT, *calls):
            observer.untrack(None, subject)


def _check(observer: Checked, helper: subprocess.Popen[bytes], calls: list[int]) -> None:
    events: list[Event] = []
    _turn(helper, b"r")
    observer.track_runtime(None, SUBJECT, pid=helper.pid)
    began_us = clock.now_us()

    _go(helper)
    _turn(helper, b"c")
    call_gone: Callable[[Event], bool] = lambda e: e.kind is EventKind.EXIT and e.subject != SUBJECT  # noqa: E731
    _collect(observer, events, call_gone)
    calls.extend(e.subject for e in events if e.kind is EventKind.CALL)
    _check_call(events, helper.pid, began_us)

    # From here on it has neither child nor thread, so /proc tells all of its times.
    _settle(helper.pid)
    truth_before, before = _schedstat(helper.pid), _stats(observer)
    _go(helper)
    _turn(helper, b"g")
    _settle(helper.pid)
    grown = _stats(observer).used_bytes - before.used_bytes
    if abs(grown - GROWTH_BYTES) > TOLERANCE_BYTES:
        raise BpfError(f"self-check: a process that grew by {GROWTH_BYTES} bytes was seen to grow by {grown}")
    _check_times(before, _stats(observer), truth_before, _schedstat(helper.pid))
    highest = _highest_bytes(helper.pid)

    _go(helper)
    own_exit: Callable[[Event], bool] = lambda e: e.kind is EventKind.EXIT and e.pid == helper.pid  # noqa: E731
    _collect(observer, events, own_exit)
    end = next(e for e in events if own_exit(e))
    if end.a != EXIT_CODE << 8:
        raise BpfError(f"self-check: exit code {EXIT_CODE} was seen as wait status {end.a:#x}")
    if highest is not None and abs(end.b - highest) > TOLERANCE_BYTES:
        raise BpfError(f"self-check: a process that had {highest} bytes at most was seen to have had {end.b}")
    left = observer.session_stats(SUBJECT)
    if left is None or left.alive or left.used_bytes > TOLERANCE_BYTES:
        raise BpfError(f"self-check: all processes are gone, and this is still counted: {left}")


def _check_call(events: list[Event], parent: int, began_us: int) -> None:
    forks = [e.pid for e in events if e.kind is EventKind.FORK and e.ppid == parent and e.subject == SUBJECT]
    call = next((e for e in events if e.kind is EventKind.CALL), None)
    if call is None:
        raise BpfError("self-check: a program was started, and no call was seen")
    if forks != [call.pid] or call.ppid != parent or call.a != SUBJECT or call.subject < FIRST_KERNEL_SUBJECT:
        raise BpfError(f"self-check: the ids of a call of process {parent} are wrong: {call}; forks {forks}")
    comm = Path(sys.executable).resolve().name[:15]
    argv = (ARGUMENT, "-I", "-S", "-c", "")
    if call.argv != argv or call.comm not in (comm, Path(sys.executable).name[:15]):
        raise BpfError(f"self-check: {comm} {argv} was seen as {call.comm!r} {call.argv}")
    now_us = clock.now_us()
    if not began_us - 1000 <= call.t_us <= now_us + 1000:
        raise BpfError(f"self-check: a call between {began_us} and {now_us} us was seen at {call.t_us}")
    group = cgroup_layout.own_v2_id()
    if group is not None and call.cgroup_id != group:
        raise BpfError(f"self-check: a process in the cgroup {group} was seen in {call.cgroup_id}")
    ended = next((e for e in events if e.kind is EventKind.EXIT and e.subject == call.subject), None)
    if ended is None or ended.pid != call.pid or ended.a != 0:
        raise BpfError(f"self-check: the successful end of process {call.pid} was seen as {ended}")


def _check_times(
    before: SubjectStats, after: SubjectStats, truth_before: tuple[int, int] | None, truth: tuple[int, int] | None
) -> None:
    if truth is None or truth_before is None:
        return
    for name, seen, known in (
        ("time on a CPU", after.oncpu_us - before.oncpu_us, truth[0] - truth_before[0]),
        ("time waiting for a CPU", (after.wait_us or 0) - (before.wait_us or 0), truth[1] - truth_before[1]),
    ):
        if abs(seen - known) > _CPU_TOLERANCE_US + known // 4:
            raise _TimesDifferError(f"self-check: {name} was seen as {seen} us, /proc says {known} us")


def _settle(pid: int) -> None:
    """Wait until it sleeps: a wait for a CPU that begins or ends between two readings is in only one of them."""
    deadline = time.monotonic() + _TIMEOUT_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not wait within {_TIMEOUT_S:.0f} s")
        time.sleep(0.001)


def _schedstat(pid: int) -> tuple[int, int] | None:
    """Microseconds on a CPU and waiting for one, by the kernel's own account; ``None`` where it keeps none."""
    try:
        oncpu, wait, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return int(oncpu) // 1000, int(wait) // 1000


def _highest_bytes(pid: int) -> int | None:
    """The most memory it had so far, by the kernel's own account."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _stats(observer: Checked) -> SubjectStats:
    stats = observer.stats(SUBJECT)
    if stats is None:
        raise BpfError("self-check: the counters of the helper are missing")
    return stats


def _go(helper: subprocess.Popen[bytes]) -> None:
    assert helper.stdin is not None  # noqa: S101 - it was given as a pipe
    helper.stdin.write(b".")


def _turn(helper: subprocess.Popen[bytes], word: bytes) -> None:
    assert helper.stdout is not None  # noqa: S101 - it was given as a pipe
    if not select.select([helper.stdout], [], [], _TIMEOUT_S)[0]:
        raise TimeoutError(f"no {word!r} within {_TIMEOUT_S:.0f} s")
    if (got := helper.stdout.read(1)) != word:
        raise OSError(f"it said {got!r} instead of {word!r}")


def _collect(observer: Checked, events: list[Event], last: Callable[[Event], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not any(last(e) for e in events):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            kinds = [e.kind.name for e in events]
            raise BpfError(f"self-check: an event did not come; there were {kinds}")
        select.select([observer.fileno()], [], [], remaining)
        events.extend(observer.read_events())
