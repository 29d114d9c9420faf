"""The table of rules: its file format, read and checked."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from fnmatch import translate
from importlib import resources
from pathlib import Path
from typing import Final, get_args

import msgspec
from msgspec import Struct

from tidegate_collectors.records import Category

MAX_FILE_BYTES: Final = 1 << 20


class TableError(ValueError):
    """A table of rules that cannot be used: names the file and the rule."""


class _Programs(Struct, kw_only=True, forbid_unknown_fields=True):
    programs: list[str]


class Wrapper(_Programs, kw_only=True, forbid_unknown_fields=True):
    """Programs that run the program named behind them."""

    values: list[str] = []
    arguments: int = 0
    words: list[str] = []
    joins: bool = False


class Interpreter(_Programs, kw_only=True, forbid_unknown_fields=True):
    """Programs that run a script, a program text or a module."""

    shell: bool = False
    code: str = ""
    module: str = ""
    values: list[str] = []


class Rule(_Programs, kw_only=True, forbid_unknown_fields=True):
    """What gives a segment its category."""

    category: Category
    words: list[str] = []
    any_words: list[str] = []
    flags: list[str] = []
    writes: bool = False
    shows: list[str] = []


class _File(Struct, kw_only=True, forbid_unknown_fields=True):
    priority: list[Category]
    quiet: list[str] = []
    wrapper: list[Wrapper] = []
    interpreter: list[Interpreter] = []
    rule: list[Rule] = []
    values: dict[str, list[str]] = {}


class Names:
    """Program names, with shell patterns among them."""

    __slots__ = ("_pattern", "exact")

    def __init__(self, names: list[str]) -> None:
        patterns = [name for name in names if any(char in name for char in "*?[") and len(name) > 2]  # not [ and [[
        self._pattern = re.compile("|".join(map(translate, patterns))) if patterns else None
        self.exact = frozenset(names).difference(patterns)

    def __contains__(self, name: str) -> bool:
        return name in self.exact or (self._pattern is not None and self._pattern.match(name) is not None)


@dataclass(frozen=True, slots=True)
class Table:
    """All rules, in order."""

    rank: dict[Category, int]
    quiet: frozenset[str]
    wrappers: list[tuple[Names, Wrapper]]
    interpreters: list[tuple[Names, Interpreter]]
    rules: list[tuple[Names, Rule]]
    values: dict[str, frozenset[str]]

    def wrapper(self, program: str) -> Wrapper | None:
        """The wrapper of that name."""
        return next((wrapper for names, wrapper in self.wrappers if program in names), None)

    def interpreter(self, program: str) -> Interpreter | None:
        """The interpreter of that name."""
        return next((interpreter for names, interpreter in self.interpreters if program in names), None)

    def knows(self, program: str) -> bool:
        """Whether any part of the table names the program."""
        return (
            any(program in names for names, _ in self.rules)
            or self.interpreter(program) is not None
            or self.wrapper(program) is not None
        )

    def names(self, program: str) -> bool:
        """Whether a rule names the program itself, not by a pattern."""
        return any(program in names.exact for names, _ in self.rules)


def load(path: Path | None = None) -> Table:
    """Read a table; without a path the one that comes with Tidegate.

    Raises:
        TableError: the file cannot be read, or a rule in it does not fit; the message names both.
    """
    if path is None:
        source = "categories.toml"
        text = resources.files(__package__).joinpath(source).read_text(encoding="utf-8")
    else:
        source = str(path)
        text = _read(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TableError(f"{source}: not TOML: {error}") from None
    for kind in ("rule", "wrapper", "interpreter"):
        _check_entries(source, kind, data.get(kind, []))
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise TableError(f"{source}: {error}") from None
    _check_priority(source, file.priority)
    return Table(
        rank={category: place for place, category in enumerate(file.priority)},
        quiet=frozenset(file.quiet),
        wrappers=[(Names(wrapper.programs), wrapper) for wrapper in file.wrapper],
        interpreters=[(Names(interpreter.programs), interpreter) for interpreter in file.interpreter],
        rules=[(Names(rule.programs), rule) for rule in file.rule],
        values={program: frozenset(options) for program, options in file.values.items()},
    )


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TableError(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise TableError(f"{path}: {len(data)} bytes; a table of rules has at most {MAX_FILE_BYTES}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TableError(f"{path}: not UTF-8 at byte {error.start}") from None


_KINDS: Final[dict[str, type[_Programs]]] = {"rule": Rule, "wrapper": Wrapper, "interpreter": Interpreter}


def _check_entries(source: str, kind: str, entries: object) -> None:
    """Each entry by itself, so that the message can say which one it is."""
    if not isinstance(entries, list):
        raise TableError(f"{source}: {kind} has to be written as [[{kind}]]")
    for number, entry in enumerate(entries, start=1):
        programs = entry.get("programs") if isinstance(entry, dict) else None
        first = programs[0] if isinstance(programs, list) and programs else "?"
        place = f"{source}: {kind} {number} (of {first!r})"
        try:
            checked = msgspec.convert(entry, _KINDS[kind])
        except msgspec.ValidationError as error:
            raise TableError(f"{place}: {error}") from None
        if not checked.programs or not all(checked.programs):
            raise TableError(f"{place}: names no program")


def _check_priority(source: str, priority: list[Category]) -> None:
    missing = [category for category in get_args(Category) if category not in priority]
    if missing or len(set(priority)) != len(priority):
        problem = f"lacks {', '.join(missing)}" if missing else "names a category twice"
        raise TableError(f"{source}: priority {problem}")
