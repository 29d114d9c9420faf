"""The words of :mod:`.hook_match`: one tool call as an agent's hooks tell it, and one that the kernel saw. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate_collectors.kernel.hook_text import Command
from tidegate_collectors.records import Category

SPANNING: Final = frozenset(["Task", "Agent", "AskUserQuestion", "ExitPlanMode"])
"""Tools that hold other calls or wait for a person: shown as calls they would fill the tool time."""

INSTANT: Final = frozenset(["Read", "NotebookRead", "LS", "TodoWrite", "TodoRead"])
"""Tools that are over at once and ask nobody. When one of them fails, some agents tell no end."""

CATEGORIES: Final[dict[str, Category]] = {
    "Read": "read",
    "NotebookRead": "read",
    "LS": "search",
    "Grep": "search",
    "Glob": "search",
    "Edit": "edit",
    "MultiEdit": "edit",
    "Write": "edit",
    "NotebookEdit": "edit",
    "WebFetch": "network",
    "WebSearch": "network",
}
"""Of the agent's own tools; those that run a command have that of the command."""


@dataclass(slots=True)
class Seen:
    """A call that the kernel saw."""

    id: str
    t_us: int
    argv: tuple[str, ...]
    ended_us: int | None = None
    bracket: Bracket | None = None


@dataclass(slots=True)
class Bracket:
    """One tool call of the agent, from what its hooks told.

    ``began_us`` None: only its end was told. ``own``: id of the call that was made for it because it has no process.
    """

    agent_session: str
    tool: str
    id: str
    digest: str
    command: Command
    detail: str | None
    began_us: int | None
    ended_us: int | None = None
    own: str | None = None
    why: str = ""
    result_chars: int | None = None
    failed: bool = False
    matched: list[tuple[Seen, str, bool]] = field(default_factory=list)
    """Calls that are its own, how that was found, and whether it is sure; in order."""

    @property
    def over(self) -> bool:
        """Whether all that it started has ended. Of a command that fails some agents tell no end."""
        return bool(self.matched) and all(seen.ended_us is not None for seen, _, _ in self.matched)

    def spans(self, t_us: int, early_us: int = 0) -> bool:
        """Whether this moment lies within, or less than ``early_us`` before its beginning."""
        if self.began_us is None or t_us < self.began_us - early_us:
            return False
        return self.ended_us is None or t_us <= self.ended_us
