"""Which records of turns belong to a span of time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from tidegate_collectors.records import TurnEnd, TurnFirstToken, TurnStart, TurnTool

AnyTurnRecord: TypeAlias = TurnStart | TurnFirstToken | TurnEnd | TurnTool
Numbered: TypeAlias = tuple[int, AnyTurnRecord]


class _Names:
    """Names that mean the same turn: the gateway and the engine each have one, and the gateway may tell both."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        while (parent := self._parent.setdefault(name, name)) != name:
            self._parent[name] = self._parent[parent]
            name = parent
        return name

    def turn_of(self, record: AnyTurnRecord) -> str:
        """One name for the record's turn; what it says of other names is kept in mind."""
        names = [name for name in (record.turn, record.req) if name]
        if not names:
            return self.find("")
        for other in names[1:]:
            self._parent[self.find(other)] = self.find(names[0])
        return self.find(names[0])


def touching(
    before: Iterable[Numbered], within: Iterable[Numbered], behind: Iterable[Numbered], *, from_us: int
) -> list[Numbered]:
    """The records within a span, and of those around it the ones of turns that the span touches.

    A turn touches it when a record within is of it, or when it began before and neither it nor a tool that it asked
    for had ended by ``from_us``.
    """
    before, within, behind = list(before), list(within), list(behind)
    names = _Names()
    for _, record in (*before, *within, *behind):
        names.turn_of(record)
    wanted = {names.turn_of(record) for _, record in within}
    open_turns: set[str] = set()
    ended: set[str] = set()
    open_tools: dict[tuple[str, str], bool] = {}
    for _, record in sorted(before, key=lambda pair: pair[0]):
        name = names.turn_of(record)
        if isinstance(record, TurnTool):
            open_tools[name, record.agent_call_id] = record.ended_us is None or record.ended_us > from_us
        elif isinstance(record, TurnEnd):
            ended.add(name)
        else:
            open_turns.add(name)
    wanted |= open_turns - ended
    wanted |= {name for (name, _), is_open in open_tools.items() if is_open}
    return [
        *(pair for pair in before if names.turn_of(pair[1]) in wanted),
        *within,
        *(pair for pair in behind if names.turn_of(pair[1]) in wanted),
    ]
