from __future__ import annotations

from tidegate.store.turn_records import AnyTurnRecord, Numbered, touching
from tidegate_collectors.records import TurnEnd, TurnStart, TurnTool


def numbered(*records: AnyTurnRecord) -> list[Numbered]:
    return [(record.t, record) for record in records]


def chosen(before: list[Numbered], within: list[Numbered], behind: list[Numbered], from_us: int = 100) -> list[int]:
    return sorted(ord_ for ord_, _ in touching(before, within, behind, from_us=from_us))


def test_a_turn_that_began_before_and_ends_behind_is_whole() -> None:
    before = numbered(TurnStart(t=1, turn="old"), TurnEnd(t=2, turn="old"), TurnStart(t=90, turn="t"))
    assert chosen(before, [], numbered(TurnEnd(t=300, turn="t"), TurnStart(t=310, turn="next"))) == [90, 300]


def test_of_a_turn_that_ended_in_the_span_the_beginning_is_there() -> None:
    before = numbered(TurnStart(t=1, turn="old"), TurnEnd(t=2, turn="old"), TurnStart(t=90, turn="t"))
    assert chosen(before, numbered(TurnEnd(t=150, turn="t")), numbered(TurnStart(t=210, turn="u"))) == [90, 150]


def test_what_the_gateway_calls_by_two_names_is_one_turn() -> None:
    before = numbered(
        TurnStart(t=1, turn="g", by="gateway"),
        TurnStart(t=2, turn="e1", by="engine"),
        TurnStart(t=3, turn="g", req="e1", by="gateway"),
        TurnStart(t=4, turn="x"),
        TurnEnd(t=5, turn="x"),
    )
    assert chosen(before, numbered(TurnEnd(t=150, turn="e1")), []) == [1, 2, 3, 150]


def test_a_turn_whose_tool_still_runs_is_there() -> None:
    ended = TurnEnd(t=20, turn="t")
    runs = TurnTool(t=21, turn="t", agent_call_id="a", began_us=20)
    over = TurnTool(t=50, turn="t", agent_call_id="a", began_us=20, ended_us=50)
    assert chosen(numbered(ended, runs), [], []) == [20, 21]
    assert chosen(numbered(ended, runs, over), [], []) == []
    assert chosen(numbered(ended, runs), [], numbered(TurnTool(t=300, turn="t", agent_call_id="a", began_us=20))) == [
        20, 21, 300,
    ]  # fmt: skip


def test_records_without_a_name_are_no_reason_to_fail() -> None:
    nameless = numbered(TurnStart(t=1), TurnStart(t=2, turn="", req=""))
    assert chosen(nameless, numbered(TurnEnd(t=120)), []) == [1, 2, 120]
