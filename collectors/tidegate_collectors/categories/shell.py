"""Cuts a shell script into simple commands, well enough to see which programs it runs.

It is no shell: it expands nothing, and where a script is broken or cut off (unbalanced quotes) it takes what is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

MAX_SCRIPT_CHARS: Final = 8192
MAX_SEGMENTS: Final = 256

_TOKEN: Final = re.compile(
    r"""
    (?P<space> [ \t\r\f\v]+ | \\\n )
  | (?P<redirection> \d*(?: <<<|<<-?|<>|<&|<|>>|>\||>&|> ) | &>>? )
  | (?P<operator> \n | ;;?&? | &&? | \|[|&]? | [()] )
  | (?P<single> '[^']*'? )
  | (?P<double> "(?: \\. | [^"\\] )*+"? )
  | (?P<escape> \\. )
  | (?P<plain> [^ \t\r\f\v\n;&|()<>'"\\]+ )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_DOUBLE_ESCAPE: Final = re.compile(r'\\([$`"\\\n])')
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=", re.ASCII)
_LEADING: Final = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "coproc"})
_HEADS: Final = frozenset({"for", "select", "case", "function", "done", "fi", "esac", "}", "in"})
_NOWHERE: Final = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "-", "&1", "&2", "1", "2"})


@dataclass(slots=True)
class Segment:
    """A simple command: its words without quotes and assignments, and whether its output goes into a file."""

    words: list[str] = field(default_factory=list)
    writes: bool = False


def is_assignment(word: str) -> bool:
    """Whether a shell would take the word for ``NAME=value``."""
    return _ASSIGNMENT.match(word) is not None


def segments(script: str) -> list[Segment]:
    """The simple commands of a script in order; those in ``$(...)`` count as well. Never raises."""
    return _Reader(script[:MAX_SCRIPT_CHARS]).read()


class _Reader:
    """Goes through the tokens once."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._found: list[Segment] = []
        self._segment = Segment()
        self._word: list[str] | None = None
        self._redirection = ""
        self._heredocs: list[str] = []

    def read(self) -> list[Segment]:
        position = 0
        while position < len(self._script) and len(self._found) < MAX_SEGMENTS:
            if self._word is None and self._script[position] == "#":
                position = self._find("\n", position)
                continue
            match = _TOKEN.match(self._script, position)
            if match is None:  # cannot be: `other` takes any character
                break
            position = match.end()
            text = match.group()
            match match.lastgroup:
                case "space":
                    self._end_word()
                case "redirection":
                    self._end_word()
                    self._redirection = text
                case "operator":
                    self._end_segment()
                    if text == "\n" and self._heredocs:
                        position = self._skip_heredocs(position)
                case "single":
                    self._add(text[1:].removesuffix("'"))
                case "double":
                    inner = text[1:-1] if len(text) > 1 and text.endswith('"') else text[1:]
                    self._add(_DOUBLE_ESCAPE.sub(r"\1", inner))
                case "escape":
                    self._add(text[1:])
                case _:
                    self._add(text.replace("`", " ") if text != "`" else "")
        self._end_segment()
        return self._found

    def _add(self, text: str) -> None:
        if self._word is None:
            self._word = []
        self._word.append(text)

    def _end_word(self) -> None:
        if self._word is None:
            return
        word = "".join(self._word)
        self._word = None
        if self._redirection:
            kind = self._redirection.lstrip("0123456789")
            to_output = self._redirection[0] not in "23456789"
            self._redirection = ""
            if kind in ("<<", "<<-"):
                self._heredocs.append(word)
            elif kind.lstrip("&").startswith(">") and to_output and word not in _NOWHERE:
                self._segment.writes = True
            return
        self._segment.words.append(word)

    def _end_segment(self) -> None:
        self._end_word()
        self._redirection = ""
        words = self._segment.words
        start = 0
        while start < len(words) and (words[start] in _LEADING or is_assignment(words[start])):
            start += 1
        del words[:start]
        if words and words[0] not in _HEADS:
            self._found.append(self._segment)
        self._segment = Segment()

    def _skip_heredocs(self, position: int) -> int:
        """Behind the texts of all documents that begin on the line that has just ended."""
        for delimiter in self._heredocs:
            while position < len(self._script):
                end = self._find("\n", position)
                line = self._script[position:end]
                position = min(end + 1, len(self._script))
                if line.strip("\t ") == delimiter:
                    break
        self._heredocs.clear()
        return position

    def _find(self, text: str, position: int) -> int:
        found = self._script.find(text, position)
        return len(self._script) if found < 0 else found
