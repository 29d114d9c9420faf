"""Our own programs are recognised, held back, and announced after all unless they say who they are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from tests.support.tracker_rig import C1, ROOT, Rig, call, execd, exited, fork
from tidegate_collectors.agent import shim
from tidegate_collectors.agent.hook_settings import hook_command
from tidegate_collectors.kernel.observer import Event, EventKind
from tidegate_collectors.kernel.own_programs import SHIM_PREFIX, is_exec_wrapper, is_hook, shim_at, without_shim
from tidegate_collectors.kernel.tracker_events import HOLD_US
from tidegate_collectors.kernel.tracker_model import PlaceCall, TrackerError
from tidegate_collectors.records import CallEnd, CallStart, MemBurst, ProcExec, ProcExit

HOOK = tuple(shlex.split(hook_command()))
SHELL = ("/bin/sh", "-c", hook_command())


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (HOOK, True),
        (SHELL, True),
        (("/bin/bash", "-c", hook_command()), True),
        (("/bin/sh", "-c", "/opt/my tools/tidegate hook"), False),
        (("/bin/sh", "-c", "'/opt/my tools/tidegate' hook"), True),
        (("/x/python3", "/x/bin/tidegate", "hook"), True),
        (("/bin/sh", "-c", hook_command() + " & evil"), False),
        (("/bin/sh", "-c", "evil; " + hook_command()), False),
        (("/bin/sh", "-c", "$(evil) " + hook_command()), False),
        (("/bin/sh", "-c", "evil;/x/tidegate hook"), False),
        (("/bin/sh", "-c", "python -IS $(evil)/tidegate_collectors/agent/hook.py"), False),
        (("/bin/sh", "-c", "'tidegate hook"), False),
        (("grep", "-r", "tidegate hook"), False),
        (("tidegate", "hooks", "install"), False),
        (("tidegate", "exec", "--", "hook"), False),
        ((), False),
    ],
)
def test_hooks_and_nothing_else(argv: Sequence[str], expected: bool) -> None:
    assert is_hook(argv) is expected


def test_shims_and_wrappers() -> None:
    assert SHIM_PREFIX == shim.PREFIX
    argv = ("/x/python", "-IS", f"/tmp/{SHIM_PREFIX}12ab/bash", "-c", "make")
    assert shim_at(argv) == 2
    assert without_shim(argv) == ("bash", "-c", "make")
    for other in (("bash", "-c", "make"), ("/x/python", "-IS", "/tmp/12ab/bash", "-c", "make"), ()):
        assert shim_at(other) is None
        assert without_shim(other) == other
    assert is_exec_wrapper(("/x/python", "/x/tidegate", "exec", "--", "make"))
    assert not is_exec_wrapper(HOOK)


def test_a_hook_that_spoke_was_no_call() -> None:
    rig = Rig()
    rig.feed(call(2000, C1, 20, *SHELL), execd(2001, C1, 20, "python"))
    assert rig.tracker.note_hook(20, 2500) == 2000
    rig.feed(exited(3000, C1, 20))
    assert [record for record in rig.records if record.session == "s" and record.t > 1000] == []
    assert rig.dropped == ["c1"], "its counters are given back"
    rig.carry_out(rig.tracker.due(2000 + 2 * HOLD_US))
    assert (rig.of(CallStart), rig.of(CallEnd)) == ([], [])


def test_who_only_looks_like_a_hook_is_a_call() -> None:
    """GIVEN a program under our name WHEN it ends without a word THEN it is announced with all that it did."""
    rig = Rig()
    rig.feed(call(2000, C1, 20, *SHELL), fork(2100, C1, 21, 20), execd(2200, C1, 21, "evil"))
    assert rig.of(CallStart) == []
    rig.feed(exited(3000, C1, 21), exited(3001, C1, 20, 7 << 8))
    (start,), (end,) = rig.of(CallStart), rig.of(CallEnd)
    assert (start.t, start.call, end.exit_code, end.processes) == (2000, "c1", 7, 2)
    assert [(record.pid, record.call) for record in rig.of(ProcExec)] == [(20, "c1"), (21, "c1")]
    assert [record.pid for record in rig.of(ProcExit)] == [21, 20]


def test_a_hook_that_lasts_is_a_call() -> None:
    rig = Rig()
    rig.feed(call(2000, C1, 20, *SHELL))
    rig.tracker.note_hook(20, 2500)
    rig.carry_out(rig.tracker.due(2000 + HOLD_US - 1))
    assert rig.of(CallStart) == []
    rig.carry_out(rig.tracker.due(2000 + HOLD_US))
    rig.feed(exited(9_000_000, C1, 20))
    assert (rig.of(CallStart)[0].t, rig.of(CallEnd)[0].t) == (2000, 9_000_000)


def test_a_hook_that_takes_much_memory_is_a_call() -> None:
    rig = Rig()
    rig.feed(call(2000, C1, 20, *SHELL))
    rig.tracker.note_hook(20, 2500)
    rig.feed(Event(EventKind.BURST, 3000, C1, 20, ROOT, a=64 << 20, b=65 << 20))
    assert (rig.of(CallStart)[0].call, rig.of(MemBurst)[0].call) == ("c1", "c1")
    assert len([command for command in rig.commands if isinstance(command, PlaceCall)]) == 1


def test_a_hook_that_leaves_something_behind_is_a_call() -> None:
    """Else whatever it started would go on unseen."""
    rig = Rig()
    rig.feed(call(2000, C1, 20, *SHELL))
    rig.tracker.note_hook(20, 2500)
    rig.feed(fork(2600, C1, 21, 20), exited(3000, C1, 20))
    rig.carry_out(rig.tracker.due(2000 + HOLD_US))
    assert [(start.call, start.pid) for start in rig.of(CallStart)] == [("c1", 21)]
    rig.feed(exited(9_000_000, C1, 21))
    assert [(end.call, end.t) for end in rig.of(CallEnd)] == [("c1", 9_000_000)]


def test_a_shell_of_a_hook_may_be_told_to_end_before_it() -> None:
    rig = Rig()
    rig.feed(call(2000, C1, 20, *SHELL), fork(2100, C1, 21, 20))
    rig.tracker.note_hook(21, 2500)
    rig.feed(exited(3000, C1, 20), exited(3000, C1, 21))
    rig.carry_out(rig.tracker.due(2000 + HOLD_US))
    assert (rig.of(CallStart), rig.of(CallEnd)) == ([], [])


def test_a_hook_may_speak_before_it_is_found() -> None:
    """A poll sees the process only after it has spoken; and it is not taken for another one of that number, later."""
    rig = Rig()
    rig.tracker.note_hook(20, 2500)
    rig.feed(call(2000, C1, 20, *SHELL), exited(3000, C1, 20))
    assert rig.of(CallStart) == []
    rig.tracker.note_hook(22, 2500)
    rig.feed(call(9_000_000, C1 + 1, 22, *SHELL), exited(9_000_100, C1 + 1, 22))
    assert [start.call for start in rig.of(CallStart)] == ["c2"]


def test_a_shim_is_named_by_what_it_runs() -> None:
    rig = Rig()
    argv = ("/x/python", "-IS", f"/tmp/{SHIM_PREFIX}1/bash", "-c", "make all")
    rig.feed(call(2000, C1, 20, *argv))
    assert rig.of(CallStart) == []
    found, outputs = rig.tracker.request_call(20, t_us=2500, argv=["bash", "-c", "make all"], nested=False)
    rig.carry_out(outputs)
    (start,) = rig.of(CallStart)
    assert (start.t, start.command, start.boundary, found.id) == (2000, "bash -c 'make all'", "wrapper", "c1")
    rig.feed(call(3000, C1 + 1, 30, *argv), exited(3100, C1 + 1, 30))  # one that could not speak
    assert rig.of(CallStart)[1].command == "bash -c 'make all'"


def test_a_shell_within_a_call_is_no_call_of_its_own() -> None:
    rig = Rig()
    rig.feed(call(2000, C1, 20, "npm", "test"), fork(2100, C1, 21, 20))
    with pytest.raises(TrackerError, match="part of call c1"):
        rig.tracker.request_call(21, t_us=2200, argv=["sh", "-c", "jest"], nested=False)
    found, _ = rig.tracker.request_call(21, t_us=2200, argv=["sh", "-c", "jest"])
    assert (found.id, found.within) == ("c2", "c1")
