"""Which calls are the tools that answers asked for, and how surely."""

from __future__ import annotations

from tidegate.analysis.tool_calls import MOST, ToolCall, tool_calls
from tidegate.fold.call import Call, Processes
from tidegate.fold.turn import Turn
from tidegate_collectors.records import TurnTool

S = 1_000_000


def call(name: str, start_s: float, tool: str = "sh", agent_call_id: str | None = None) -> Call:
    """A call that started then."""
    found = Call("s", name, 1, Processes(8), tool=tool, agent_call_id=agent_call_id)
    found.started_us = round(start_s * S)
    return found


def asked(name: str, began_s: float, ended_s: float | None, tool: str = "bash", turn: str = "t1") -> TurnTool:
    """The gateway says that the tool was asked for, and when its result went back."""
    ended_us = None if ended_s is None else round(ended_s * S)
    return TurnTool(
        t=0, session="s", turn=turn, agent_call_id=name, agent_tool=tool, began_us=round(began_s * S), ended_us=ended_us
    )


def only(found: dict[str, list[ToolCall]]) -> ToolCall:
    """The one tool of the one turn."""
    ((tool,),) = found.values()
    return tool


def test_the_agents_id_is_exact_wherever_the_times_are() -> None:
    found = only(tool_calls([], [asked("x1", 1, 2)], [call("c1", 50, agent_call_id="x1"), call("c2", 1.5)]))
    assert (found.calls, found.confidence) == (["c1"], "exact")


def test_a_call_in_the_time_of_one_tool_is_likely_that_tool() -> None:
    calls = [call("before", 0.5), call("c1", 1.2), call("c2", 1.8), call("after", 2.0)]
    found = only(tool_calls([], [asked("x1", 1, None), asked("x1", 1, 2)], calls))
    assert (found.calls, found.confidence, found.ended_us) == (["c1", "c2"], "likely", 2 * S)


def test_an_agent_that_reads_ahead_starts_its_tool_a_little_early() -> None:
    assert only(tool_calls([], [asked("x1", 1, 2)], [call("c1", 0.985)])).calls == ["c1"]
    assert only(tool_calls([], [asked("x1", 1, 2)], [call("c1", 0.9)])).calls == []


def test_what_several_tools_could_have_started_goes_by_its_name_or_to_nobody() -> None:
    told = [asked("x1", 1, 3, "grep"), asked("x2", 1, 3, "pytest"), asked("x3", 1, 3, "pytest")]
    found = {
        tool.agent_call_id: tool
        for tool in tool_calls([], told, [call("c1", 1.5, "grep"), call("c2", 1.5, "pytest")])["t1"]
    }
    assert (found["x1"].calls, found["x1"].confidence) == (["c1"], "likely")
    assert (found["x2"].calls, found["x2"].confidence) == ([], None)
    assert found["x3"].calls == []


def test_a_call_that_is_exactly_another_tool_is_not_this_one() -> None:
    told = [asked("x1", 1, 3), asked("x2", 1, 3)]
    found = tool_calls([], told, [call("c1", 1.5, agent_call_id="x2")])["t1"]
    assert [(tool.agent_call_id, tool.calls) for tool in found] == [("x1", []), ("x2", ["c1"])]


def test_without_a_gateway_a_tool_lasts_until_the_next_turn() -> None:
    turns = [
        Turn("t1", engine=True, started_us=0, ended_us=1 * S, tools=["grep"]),
        Turn("t2", engine=True, started_us=3 * S, ended_us=4 * S),
    ]
    found = tool_calls(turns, [], [call("c1", 2), call("c2", 3.5)])
    assert list(found) == ["t1"]
    assert (only(found).calls, only(found).ended_us, only(found).agent_tool) == (["c1"], 3 * S, "grep")


def test_a_turn_whose_tools_the_gateway_tells_is_not_told_twice() -> None:
    turns = [Turn("t1", engine=True, started_us=0, ended_us=1 * S, tools=["grep"])]
    assert len(tool_calls(turns, [asked("x1", 1, 2)], [])["t1"]) == 1


def test_a_flood_of_calls_is_counted_and_cut() -> None:
    found = only(tool_calls([], [asked("x1", 1, 2)], [call(f"c{i}", 1.5) for i in range(1000)]))
    assert (len(found.calls), found.calls_total) == (MOST, 1000)
