"""How well a program that the kernel saw fits the command that an agent's hook told. Pure.

Agents run a command as ``bash -c COMMAND``, or within a script of their own (Claude Code: ``bash -c "source ... && eval
'COMMAND' < /dev/null && pwd ..."``), or without a shell. The kernel keeps the first 512 bytes of a command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final

from tidegate_collectors.categories.shell import is_assignment, segments

KERNEL_ARGV_BYTES: Final = 512
MIN_CONTAINED_CHARS: Final = 12
"""A shorter command, such as ``ls``, may stand in any script by chance."""

MIN_CUT_CHARS: Final = 8
_SEARCHERS: Final = {"Grep": frozenset(["rg", "grep", "ugrep"]), "Glob": frozenset(["rg", "find", "fd", "bfs"])}
"""Tools without a command whose work a program does."""


class Fit(IntEnum):
    """How well; more is better."""

    NONE = 0
    PROGRAM = 1
    PART = 2
    CUT = 3
    CONTAINED = 4
    EQUAL = 5


HOW: Final = {
    Fit.NONE: "time only",
    Fit.PROGRAM: "program name",
    Fit.PART: "one command of the command text",
    Fit.CUT: "beginning of the command text",
    Fit.CONTAINED: "command text within a script",
    Fit.EQUAL: "command text",
}


class Command:
    """What a tool is to run.

    Args:
        tool: the agent's name of the tool.
        text: its command; None for a tool that has none.
    """

    def __init__(self, tool: str, text: str | None) -> None:
        self.tool = tool
        self.text = (text or "").strip()
        self._parts = [found.words for found in segments(self.text) if found.words] if self.text else []
        self._programs = {_base(word) for words in self._parts if (word := _program(words)) is not None}

    @property
    def starts_processes(self) -> bool:
        """Whether this tool does its work in programs that the kernel can see."""
        return bool(self.text) or self.tool in _SEARCHERS

    def fit(self, argv: Sequence[str]) -> Fit:
        """How well the program with this command line fits."""
        if not argv:
            return Fit.NONE
        if not self.text:
            return Fit.PROGRAM if _base(argv[0]) in _SEARCHERS.get(self.tool, ()) else Fit.NONE
        cut = sum(len(word.encode("utf-8", "replace")) + 1 for word in argv) >= KERNEL_ARGV_BYTES
        best = max((self._fit_word(word, cut=cut and word is argv[-1]) for word in argv[1:]), default=Fit.NONE)
        return best or self._fit_words(argv)

    def _fit_word(self, word: str, *, cut: bool) -> Fit:
        """Compare with one word, which may be a script; ``cut``: the kernel's memory ended in it."""
        script, text = word.strip(), self.text
        if script == text:
            return Fit.CUT if cut else Fit.EQUAL
        if cut and len(script) >= MIN_CUT_CHARS and text.startswith(script):
            return Fit.CUT
        if "eval" in script and (fit := self._fit_eval(script, cut=cut)):
            return fit
        if len(text) >= MIN_CONTAINED_CHARS and text in script:
            return Fit.CONTAINED
        return Fit.NONE

    def _fit_eval(self, script: str, *, cut: bool) -> Fit:
        best = Fit.NONE
        for argument in _evaluated(script):
            if argument == self.text:
                return Fit.EQUAL
            if cut and len(argument) >= MIN_CUT_CHARS and self.text.startswith(argument):
                best = Fit.CUT
        return best

    def _fit_words(self, argv: Sequence[str]) -> Fit:
        """Compare with the command's own words: the agent started it without a shell."""
        own = [_base(argv[0]), *argv[1:]]
        if any([_base(words[0]), *words[1:]] == own for words in self._parts):
            return Fit.EQUAL if len(self._parts) == 1 else Fit.PART
        return Fit.PROGRAM if own[0] in self._programs else Fit.NONE


@lru_cache(maxsize=64)
def _evaluated(script: str) -> tuple[str, ...]:
    """What a script gives to ``eval``; kept, because many commands may be compared with one script."""
    found = [segment.words for segment in segments(script) if len(segment.words) >= 2]
    return tuple(words[1].strip() for words in found if words[0] == "eval")


def _program(words: Sequence[str]) -> str | None:
    return next((word for word in words if not is_assignment(word)), None)


def _base(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]
