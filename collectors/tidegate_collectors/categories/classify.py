"""Judges a command line by the table of rules."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from tidegate_collectors.records import Category

from .shell import Segment, is_assignment, segments
from .table import Interpreter, Rule, Table, Wrapper, load

VARIABLE: Final = "TIDEGATE_CATEGORIES"
MAX_TOOL_CHARS: Final = 64
MAX_SUMMARY_CHARS: Final = 96
MAX_WORDS: Final = 512
_MAX_DEPTH: Final = 8
_SCRIPT_ENDINGS: Final = ("-cli.js", ".py", ".pyc", ".js", ".cjs", ".mjs", ".sh", ".rb", ".exe")


@dataclass(frozen=True, slots=True)
class Classified:
    """What a command line is.

    Attributes:
        category: class of the command.
        tool: base name of the program that matters, printable, at most 64 characters; "" when there is none.
        summary: the tool and the words that the rules know, such as ``git diff`` or ``python -m pytest``; no free
            arguments, printable, at most 96 characters.
    """

    category: Category
    tool: str
    summary: str


@dataclass(frozen=True, slots=True)
class _Found:
    category: Category
    tool: str
    words: tuple[str, ...]
    quiet: bool = False


@lru_cache(maxsize=1)
def configured_table() -> Table:
    """The table in use: that of ``$TIDEGATE_CATEGORIES``, else our own. Read once.

    A program that classifies calls this at its start, so that a broken table is told then.

    Raises:
        TableError: the file that the variable names cannot be used.
    """
    path = os.environ.get(VARIABLE)
    return load(Path(path) if path else None)


def classify(argv: Sequence[str], table: Table | None = None) -> Classified:
    """The category, the tool and a summary of a command line.

    Args:
        argv: the words of the command line as the kernel has them; may be cut off anywhere.
        table: rules; by default those of :func:`configured_table`.
    """
    table = table or configured_table()
    words = [str(word) for word in argv[:MAX_WORDS]]
    found = _segment(table, Segment(words), 0) if words else None
    if found is None:
        return Classified("other", "", "")
    tool = _printable(found.tool, MAX_TOOL_CHARS)
    summary = " ".join((tool, *found.words))
    return Classified(found.category, tool, _printable(summary, MAX_SUMMARY_CHARS))


def _script(table: Table, script: str, depth: int) -> _Found | None:
    """The segment that speaks for a script: the first of those with the foremost category."""
    if depth > _MAX_DEPTH:
        return None
    best: _Found | None = None
    for segment in segments(script):
        found = _segment(table, segment, depth)
        if found is not None and (best is None or _weight(table, found) < _weight(table, best)):
            best = found
    return best


def _weight(table: Table, found: _Found) -> tuple[bool, int]:
    return found.quiet, table.rank[found.category]


def _segment(table: Table, segment: Segment, depth: int) -> _Found | None:
    words = segment.words
    writes = segment.writes
    # Each round takes a wrapper or an interpreter off the front; a hostile command could have thousands of them.
    for _ in range(4 * _MAX_DEPTH):
        words = _without_assignments(words)
        if not words:
            return None
        program = _base_name(words[0])
        wrapper = table.wrapper(program)
        if wrapper is not None:
            inner = _unwrap(table, wrapper, words)
            if inner is not None and wrapper.joins:
                return _script(table, " ".join(inner), depth + 1)
            if inner:
                words = inner
                continue
        interpreter = table.interpreter(program)
        if interpreter is not None:
            opened = _open(table, interpreter, program, words, writes=writes, depth=depth)
            if isinstance(opened, list):
                words = opened
                continue
            if opened is not None:
                return opened
        return _by_rules(table, program, words[1:], writes=writes)
    return None


def _without_assignments(words: list[str]) -> list[str]:
    start = 0
    while start < len(words) and is_assignment(words[start]):
        start += 1
    return words[start:] if start else words


def _unwrap(table: Table, wrapper: Wrapper, words: list[str]) -> list[str] | None:
    """The command behind a wrapper; None when it wraps nothing."""
    position = 1
    if wrapper.words:
        position = _first_argument(words, 1, [*wrapper.values, *table.values.get(_base_name(words[0]), ())])
        if position >= len(words) or words[position] not in wrapper.words:
            return None
        position += 1
    position = _first_argument(words, position, wrapper.values)
    for _ in range(wrapper.arguments):
        position = _first_argument(words, position + 1, wrapper.values)
    return words[position:] or None


def _first_argument(words: list[str], position: int, values: Sequence[str]) -> int:
    """Index of the first word from ``position`` on that is no option and no value of one."""
    while position < len(words):
        word = words[position]
        if word == "--":
            return position + 1
        if not word.startswith(("-", "+")) or len(word) == 1:
            return position
        position += 2 if word in values else 1
    return position


def _open(
    table: Table, interpreter: Interpreter, program: str, words: list[str], *, writes: bool, depth: int
) -> _Found | list[str] | None:
    """Look through an interpreter: what it runs, as a result or as a further command; None when that is unknown."""
    position = 1
    code = False
    while position < len(words):
        word = words[position]
        if interpreter.module and word.startswith(interpreter.module) and not word.startswith("--"):
            module = word[2:] or (words[position + 1] if position + 1 < len(words) else "")
            rest = words[position + (1 if word[2:] else 2) :]
            return _module(table, interpreter, program, module, rest, writes=writes)
        if word == "--":
            position += 1
            break
        if not word.startswith(("-", "+")) or len(word) == 1:
            break
        if interpreter.code and _has_letter(word, interpreter.code[1]):
            code = True
            if not interpreter.shell:
                return _with_words(_by_rules(table, program, [], writes=writes), interpreter.code)
        position += 2 if word in interpreter.values else 1
    if position >= len(words):
        return None
    if code:
        return _script(table, words[position], depth + 1)
    if interpreter.shell and interpreter.code and program == "su":
        return _open(table, interpreter, program, [words[0], *words[position + 1 :]], writes=writes, depth=depth)
    return _look_into_script(table, program, words[position:], writes=writes)


def _look_into_script(table: Table, program: str, words: list[str], *, writes: bool) -> _Found | list[str] | None:
    """A script is judged like a program of its name, where the table knows that."""
    name = _base_name(words[0])
    ending = next((ending for ending in _SCRIPT_ENDINGS if name.endswith(ending)), "")
    if not ending:  # an installed program or a shim: it is the tool, and not what it is written in
        return [name, *words[1:]] if table.knows(name) else None
    if table.knows(name):
        found = _by_rules(table, name, words[1:], writes=writes)
        # The name of a script that only fits a pattern is the agent's own word and not shown.
        own = (name,) if table.names(name) else ()
        return _Found(found.category, program, (*own, *found.words))
    return [name.removesuffix(ending), *words[1:]] if table.knows(name.removesuffix(ending)) else None


def _module(
    table: Table, interpreter: Interpreter, program: str, module: str, rest: list[str], *, writes: bool
) -> _Found:
    """``python -m MODULE``: judged like a program of that name; the module is shown when the table knows it."""
    for name in (module, module.partition(".")[0]):
        if name and table.knows(name) and table.interpreter(name) is None:
            found = _by_rules(table, name, rest, writes=writes)
            if found.category != "other":
                return _Found(found.category, program, (interpreter.module, name, *found.words))
    return _with_words(_by_rules(table, program, [], writes=writes), interpreter.module)


def _by_rules(table: Table, program: str, arguments: list[str], *, writes: bool) -> _Found:
    options = [word for word in arguments if word.startswith("-") and len(word) > 1]
    positional = _positional(arguments, table.values.get(program, frozenset()))
    for names, rule in table.rules:
        if program not in names:
            continue
        shown = _fits(rule, options, positional, writes=writes)
        if shown is not None:
            return _Found(rule.category, program, shown)
    return _Found("other", program, (), quiet=program in table.quiet)


def _positional(arguments: list[str], values: frozenset[str]) -> list[str]:
    found: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word.startswith("-") and len(word) > 1:
            position += 2 if word in values else 1
            continue
        if not is_assignment(word):
            found.append(word)
        position += 1
    return found


def _fits(rule: Rule, options: list[str], positional: list[str], *, writes: bool) -> tuple[str, ...] | None:
    """The words to show when the rule fits, else None."""
    if rule.writes and not writes:
        return None
    shown: tuple[str, ...] = ()
    if rule.words:
        if not positional or positional[0] not in rule.words:
            return None
        shown = (positional[0],)
    if rule.any_words:
        hit = next((word for word in positional if word in rule.any_words), None)
        if hit is None:
            return None
        shown = (hit,)
    if rule.flags:
        flag = next((flag for flag in rule.flags if any(_has_flag(option, flag) for option in options)), None)
        if flag is None:
            return None
        shown = (flag,)
    if not shown and positional and positional[0] in rule.shows:
        shown = (positional[0],)
    return shown


def _has_flag(option: str, flag: str) -> bool:
    if len(flag) == 2 and flag[0] == "-":
        return _has_letter(option, flag[1])
    return option == flag or option.startswith(flag + "=")


def _has_letter(option: str, letter: str) -> bool:
    """Whether a group of one-letter options has the letter; an option may carry its value, so only its head counts."""
    return option[0] == "-" and option[1:2] != "-" and letter in option[1:4]


def _with_words(found: _Found, *words: str) -> _Found:
    return _Found(found.category, found.tool, (*words, *found.words), found.quiet)


def _base_name(word: str) -> str:
    name = word.rstrip("/").rpartition("/")[2]
    return name.lstrip("-") or name  # a login shell has a dash in front of its name


def _printable(text: str, limit: int) -> str:
    """One line that a terminal and a page can show: other characters become ``?``."""
    text = "".join(char if char.isprintable() and not 0xD800 <= ord(char) <= 0xDFFF else "?" for char in text[:limit])
    return text if len(text) <= limit else text[: limit - 1] + "…"
