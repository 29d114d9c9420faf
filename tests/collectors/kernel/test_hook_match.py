"""Matching the hooks' word with the kernel's, each in every order in which it can come."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tracker_rig import naming
from tidegate_collectors.kernel.agent_protocol import Hook
from tidegate_collectors.kernel.hook_match import FORGET_US, MAX_MATCHED, MAX_OPEN, NO_END_US, SETTLE_US, HookMatcher
from tidegate_collectors.records import CallEnd, CallMatch, CallStart, Record

SECOND = 1_000_000
AGENT = "agent-1"


class Story:
    """One session whose hooks and kernel tell what the test says, at times in seconds."""

    def __init__(self) -> None:
        numbers = count(100)
        self.matcher = HookMatcher("s", naming, lambda: f"c{next(numbers)}")
        self.records: list[Record] = []

    def hook(self, event: Any, at_s: float, tool: str = "Bash", id: str = "", **fields: Any) -> None:  # noqa: A002
        hook = Hook(event=event, agent_session=AGENT, tool=tool, id=id, **fields)
        started_us = us(at_s) - 2000
        self.records.extend(self.matcher.take(hook, us(at_s), started_us))

    def bash(self, at_s: float, id: str, command: str) -> None:  # noqa: A002
        self.hook("before", at_s, id=id, command=command)

    def done(self, at_s: float, id: str, **fields: Any) -> None:  # noqa: A002
        self.hook("after", at_s, id=id, **fields)

    def call(self, at_s: float, call: str, *argv: str, within: str | None = None) -> None:
        self.records.extend(self.matcher.call_began(call, us(at_s), argv, within))

    def ended(self, at_s: float, call: str) -> None:
        self.matcher.call_ended(call, us(at_s))

    def due(self, at_s: float) -> None:
        self.records.extend(self.matcher.due(us(at_s)))

    def close(self, at_s: float) -> None:
        self.records.extend(self.matcher.close(us(at_s)))

    def matches(self) -> dict[str, CallMatch]:
        """The last word on each call."""
        return {record.call or "": record for record in self.records if isinstance(record, CallMatch)}

    def short(self) -> dict[str, tuple[str, str, str, int]]:
        return {
            call: (match.agent_call_id, match.confidence, match.how, match.position)
            for call, match in self.matches().items()
        }


def us(seconds: float) -> int:
    return round(seconds * SECOND)


def sh(command: str) -> tuple[str, str, str]:
    return ("bash", "-c", command)


def test_a_command_is_matched_when_its_call_begins_and_again_when_it_ends() -> None:
    story = Story()
    story.bash(1, "t1", "pytest -q")
    story.call(1.1, "c1", *sh("pytest -q"))
    first = story.matches()["c1"]
    assert (first.agent_tool, first.agent_call_id, first.confidence, first.how) == (
        "Bash",
        "t1",
        "exact",
        "command text",
    )
    assert (first.t, first.began_us, first.ended_us, first.position) == (us(1.1), us(1), None, 1)
    story.ended(2, "c1")
    story.done(2.1, "t1", result_chars=42)
    story.due(2.2)
    assert story.matches()["c1"].ended_us is None
    story.due(2.1 + SETTLE_US / SECOND)
    last = story.matches()["c1"]
    assert (last.ended_us, last.result_chars, last.failed) == (us(2.1) - 2000, 42, False)
    assert not [record for record in story.records if isinstance(record, CallStart)]


def test_parallel_tools_are_told_apart_by_their_commands() -> None:
    story = Story()
    story.bash(1, "t1", "sleep 1")
    story.bash(1.01, "t2", "sleep 2")
    story.call(1.02, "c2", *sh("sleep 2"))
    story.call(1.03, "c1", *sh("sleep 1"))
    assert story.short() == {"c1": ("t1", "exact", "command text", 1), "c2": ("t2", "exact", "command text", 1)}


def test_two_of_the_same_command_at_once_are_only_likely() -> None:
    story = Story()
    story.bash(1, "t1", "make")
    story.bash(1.01, "t2", "make")
    story.call(1.02, "c1", *sh("make"))
    story.call(1.03, "c2", *sh("make"))
    assert [(found[0], found[1]) for found in story.short().values()] == [("t1", "likely"), ("t2", "likely")]
    assert "by their order" in story.short()["c1"][2]


def test_a_retry_of_a_command_whose_end_was_not_told_is_another_one() -> None:
    """Some versions do not tell the end of a command that fails."""
    story = Story()
    story.bash(1, "t1", "pytest")
    story.call(1.1, "c1", *sh("pytest"))
    story.ended(2, "c1")
    story.bash(3, "t2", "pytest")
    story.call(3.1, "c2", *sh("pytest"))
    assert story.short() == {"c1": ("t1", "exact", "command text", 1), "c2": ("t2", "exact", "command text", 1)}


def test_all_programs_of_one_tool_get_its_id_and_a_position() -> None:
    story = Story()
    story.bash(1, "t1", "git diff | head -5")
    story.call(1.1, "c1", "git", "diff")
    story.call(1.1, "c2", "head", "-5")
    assert [(call, *found[:2], found[3]) for call, found in story.short().items()] == [
        ("c1", "t1", "likely", 1),
        ("c2", "t1", "likely", 2),
    ]


def test_a_boundary_within_a_matched_call_belongs_to_the_same_tool() -> None:
    story = Story()
    story.bash(1, "t1", "tidegate exec -- cargo build; echo done")
    story.call(1.1, "c1", *sh("tidegate exec -- cargo build; echo done"))
    story.call(1.2, "c2", "cargo", "build", within="c1")
    assert story.short()["c2"] == ("t1", "exact", "a part of call c1", 2)


def test_what_the_agent_runs_on_its_own_account_is_not_matched() -> None:
    story = Story()
    story.bash(1, "t1", "pytest")
    story.call(1.1, "c1", "git", "status")
    story.call(1.2, "c2", *sh("pytest"))
    story.done(2, "t1")
    story.call(2.1, "c3", "git", "status")
    story.due(9)
    assert list(story.short()) == ["c2"]


def test_by_time_only_when_nothing_else_speaks_for_it() -> None:
    story = Story()
    story.bash(1, "t1", "pytest")
    story.call(1.1, "c1", "sandbox-helper", "--profile", "x")
    story.done(2, "t1")
    assert story.short() == {}
    story.due(9)
    assert story.short()["c1"] == ("t1", "likely", "time only", 1)


def test_not_by_time_when_two_tools_could_have_started_it() -> None:
    story = Story()
    story.bash(1, "t1", "pytest")
    story.bash(1, "t2", "make")
    story.call(1.1, "c1", "sandbox-helper")
    story.done(2, "t1")
    story.due(2.5)
    assert story.short()["c100"] == ("t1", "none", "no process was seen", 0)
    assert "c1" not in story.short()


def test_the_program_of_a_search_is_likely_its_own() -> None:
    story = Story()
    story.hook("before", 1, tool="Grep", id="t1", detail="TODO")
    story.call(1.1, "c1", "/opt/claude/rg", "-n", "TODO")
    story.call(1.1, "c2", "git", "status")
    story.hook("after", 1.2, tool="Grep", id="t1", result_chars=9)
    story.due(9)
    assert story.short() == {"c1": ("t1", "likely", "program name", 1)}
    assert story.matches()["c1"].result_chars == 9


def test_kernel_events_may_come_after_the_end_was_told() -> None:
    story = Story()
    story.bash(1, "t1", "true")
    story.done(1.05, "t1")
    story.call(1.02, "c1", *sh("true"))
    story.due(9)
    assert story.short() == {"c1": ("t1", "exact", "command text", 1)}
    assert story.matches()["c1"].ended_us is not None


def test_a_tool_without_a_process_gets_a_call_of_its_own() -> None:
    story = Story()
    story.hook("before", 1, tool="Read", id="t1", detail="/etc/secret")
    start = story.records[0]
    assert isinstance(start, CallStart)
    assert (start.t, start.call, start.tool, start.category, start.boundary) == (us(1), "c100", "Read", "read", "hook")
    assert story.short()["c100"] == ("t1", "none", "it runs within the agent", 0)
    story.hook("after", 1.5, tool="Read", id="t1", result_chars=7)
    end = story.records[-1]
    assert isinstance(end, CallEnd)
    assert (end.call, end.duration_us, end.result_chars, end.lost) == ("c100", 498_000, 7, False)
    assert (end.peak_bytes, end.processes, end.exit_code) == (None, None, None)


def test_tools_that_hold_others_or_wait_for_a_person_are_no_calls() -> None:
    story = Story()
    story.hook("before", 1, tool="Task", id="t0")
    story.bash(1.1, "t1", "ls -l")
    story.call(1.2, "c1", *sh("ls -l"))
    story.done(1.3, "t1")
    story.hook("after", 60, tool="Task", id="t0")
    story.due(99)
    assert list(story.short()) == ["c1"]


def test_pairs_without_ids_and_with_one_id_only() -> None:
    story = Story()
    story.hook("before", 1, tool="Read", input_digest="a")
    story.hook("before", 1, tool="Read", input_digest="b")
    story.hook("after", 2, tool="Read", input_digest="b")
    story.hook("after", 3, tool="Read", input_digest="a", id="late")
    story.hook("before", 4, tool="Read", input_digest="c", id="early")
    story.hook("after", 5, tool="Read", input_digest="c")
    ends = [(record.call, record.t) for record in story.records if isinstance(record, CallEnd)]
    assert ends == [("c101", us(2) - 2000), ("c100", us(3) - 2000), ("c102", us(5) - 2000)]
    assert [found[0] for found in story.short().values()] == ["hook-1", "hook-2", "early"]


def test_hooks_that_are_installed_twice_count_once() -> None:
    story = Story()
    for _ in range(2):
        story.hook("before", 1, tool="Read", id="t1")
    for _ in range(2):
        story.hook("after", 2, tool="Read", id="t1")
    story.hook("before", 3, tool="Read", id="t1")
    kinds = [type(record).__name__ for record in story.records]
    assert (kinds.count("CallStart"), kinds.count("CallEnd")) == (1, 1)


def test_an_end_without_a_beginning_is_matched_by_its_command_or_not_at_all() -> None:
    story = Story()
    story.call(1, "c1", *sh("make test"))
    story.hook("after", 2, id="t1", command="make test", result_chars=3)
    assert story.short()["c1"] == ("t1", "likely", "command text; its beginning was not told", 1)
    assert story.matches()["c1"].began_us is None
    story.hook("after", 2, tool="Read", id="t2")
    story.hook("after", 3, id="t3", command="make other")
    assert list(story.short()) == ["c1"]


def test_a_beginning_without_an_end_is_closed_when_the_agent_waits() -> None:
    story = Story()
    story.hook("before", 1, tool="Edit", id="t1")
    story.bash(2, "t2", "rm -rf /")  # refused by the user
    story.hook("turn_over", 3)
    ends = [record for record in story.records if isinstance(record, CallEnd)]
    assert [(end.call, end.t, end.lost) for end in ends] == [("c100", us(3), True)]
    story.call(4, "c1", *sh("rm -rf /"))
    assert "c1" not in story.short()


def test_what_is_never_ended_is_forgotten() -> None:
    story = Story()
    story.bash(1, "t1", "sleep 1")
    story.call(1.1, "c1", *sh("sleep 1"))
    story.ended(2, "c1")
    story.bash(2, "t2", "sleep 9")
    story.due(3 + NO_END_US / SECOND)
    story.hook("before", 70, tool="WebFetch", id="t3")
    story.due(80 + FORGET_US / SECOND)
    (end,) = [record for record in story.records if isinstance(record, CallEnd)]
    assert end.lost
    story.hook("before", 90 + FORGET_US / SECOND, tool="Read", id="t4")  # it failed, and no end is told
    story.hook("before", 99 + FORGET_US / SECOND, tool="Read", id="t5")
    assert [record.call for record in story.records if isinstance(record, CallEnd)] == ["c100", "c101"]


def test_a_flood_of_beginnings_is_bounded() -> None:
    story = Story()
    for number in range(MAX_OPEN + 10):
        story.hook("before", 1, tool="WebFetch", id=f"t{number}")
    assert len([record for record in story.records if isinstance(record, CallEnd)]) == 10


def test_a_flood_of_ends_is_bounded() -> None:
    """Each that settles is compared with each call that was seen: they must not wait for it in any number."""
    story = Story()
    for number in range(MAX_OPEN + 10):
        story.bash(1, f"t{number}", "true")
        story.done(1.01, f"t{number}")
    assert len([record for record in story.records if isinstance(record, CallEnd)]) == 10
    story.due(2)
    assert len([record for record in story.records if isinstance(record, CallEnd)]) == MAX_OPEN + 10


def test_a_flood_of_processes_of_one_tool_is_bounded() -> None:
    """Ten times a second each open tool is asked whether all of its processes are over."""
    story = Story()
    story.bash(1, "t1", "make -j && make test")
    for number in range(MAX_MATCHED + 10):
        within = "n0" if number else None
        story.call(1.1, f"n{number}", *sh("make -j && make test"), within=within if number % 2 else None)
    assert len(story.matches()) == MAX_MATCHED
    story.done(2, "t1")
    story.close(3)
    assert {match.position for match in story.matches().values()} == set(range(1, MAX_MATCHED + 1))


def test_the_end_of_the_session_leaves_nothing_open() -> None:
    story = Story()
    story.hook("before", 1, tool="WebFetch", id="t1")
    story.bash(1, "t2", "true")
    story.done(2, "t2")
    story.close(2.01)
    ends = {record.call: record.lost for record in story.records if isinstance(record, CallEnd)}
    assert ends == {"c100": True, "c101": False}
    assert story.short()["c101"][1:3] == ("none", "no process was seen")


def test_another_run_hears_of_what_is_open() -> None:
    story = Story()
    story.hook("before", 1, tool="WebFetch", id="t1")
    story.bash(1, "t2", "sleep 5")
    story.call(1.1, "c1", *sh("sleep 5"))
    again = story.matcher.announce()
    assert [(type(record).__name__, record.call) for record in again] == [
        ("CallStart", "c100"), ("CallMatch", "c100"), ("CallMatch", "c1"),
    ]  # fmt: skip


COMMANDS = ["make", "make test", "git diff | head", "ls", "sleep 1"]
ARGVS = [*map(sh, COMMANDS), ("git", "diff"), ("rg", "x"), ("node",), ()]
STEP = st.one_of(
    st.tuples(
        st.just("hook"),
        st.sampled_from(["before", "after", "failed", "turn_over"]),
        st.sampled_from(["Bash", "Read", "Grep", "Task"]),
        st.sampled_from(["", "t1", "t2", "t3"]),
        st.sampled_from([None, *COMMANDS]),
    ),
    st.tuples(st.just("call"), st.sampled_from(ARGVS)),
    st.tuples(st.just("end"), st.integers(0, 20)),
    st.tuples(st.just("due")),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_in_any_order_each_call_has_one_tool_and_each_own_call_ends_once(steps: Sequence[tuple[Any, ...]]) -> None:
    story, calls = Story(), 0
    for at, step in enumerate(steps):
        match step:
            case ("hook", event, tool, identity, command):
                story.hook(event, at / 4, tool=tool, id=identity, command=command, input_digest=str(command))
            case ("call", argv):
                calls += 1
                story.call(at / 4, f"c{calls}", *argv)
            case ("end", number):
                story.ended(at / 4, f"c{number}")
            case _:
                story.due(at / 4)
    story.close(99)
    tools: dict[str, set[str]] = {}
    for record in story.records:
        if isinstance(record, CallMatch):
            tools.setdefault(record.call or "", set()).add(record.agent_call_id)
    assert all(len(ids) == 1 for ids in tools.values())
    starts = [record.call for record in story.records if isinstance(record, CallStart)]
    ends = [record.call for record in story.records if isinstance(record, CallEnd)]
    assert len(set(starts)) == len(starts)
    assert sorted(starts, key=str) == sorted(ends, key=str)
    positions = [(match.agent_call_id, match.position) for match in story.matches().values() if match.position]
    assert all(position >= 1 for _, position in positions)
